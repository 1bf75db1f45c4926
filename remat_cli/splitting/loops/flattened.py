"""Products of rows that were laid flat before and folded again behind, as products of tensors that keep their axes.

TensorFlow's and Keras's dense layers see a batch of sequences as one long list of rows: two lengths that vary become
one, and no loop knows the parts of that. The runtime itself lays a tensor flat that it multiplies with one matrix, so
that the product has the same bits. What a Gemm adds to it is added behind: to sums of at most as many terms as one run
of a packed matrix has these are the same bits (measured with ONNX Runtime 1.32.0, 1, 2 and 4 threads: of 42 shapes on
each of 10 such depths none differ, and of deeper ones most do).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from remat_cli.base.present import present
from remat_cli.core.schedule.graph import TensorType
from remat_cli.core.values.sizes import Dim, number, product_of
from remat_cli.onnx_io.read.interface import dims_of, fixed_value
from remat_cli.onnx_io.read.normalise import fresh_name, names_in
from remat_cli.onnx_io.write.weights import weight_in
from remat_cli.splitting.loops.expands import drop_unread
from remat_cli.splitting.loops.known_shapes import PREFIX
from remat_cli.splitting.loops.open_shapes import Partable
from remat_cli.splitting.rules.record import COPIED

PLAIN_GEMM: Mapping[str, float] = {"alpha": 1, "beta": 1, "transA": 0}
PACKED_RUN = 256  # terms that are summed at once of a product with a packed matrix
MATRIX, ADDED = 1, 2
"""Inputs of a Gemm."""


@dataclass(frozen=True)
class Flattened:
    """A product between two Reshapes: `lengths` are the leading ones, which stay, and `columns` of its matrix.

    `is_turned`: the matrix is stored transposed. `added`: what a Gemm, or an Add behind, adds to each row.
    """

    laid: ir.Node
    product: ir.Node
    folded: ir.Node
    lengths: tuple[Dim, ...]
    columns: tuple[int, int]
    is_turned: bool
    added: ir.Value | None


def without_flattening(
    model: ir.Model,
    dims: Mapping[str, tuple[Dim, ...]],
    types: Mapping[str, tuple[TensorType, ...]],
    most: Mapping[str, int],
) -> Partable:
    """The model with such products, each between Reshapes that copy its lengths; `most` are the largest sizes.

    `dims` are the dimensions of tensors for all sizes, `types` what ops make at the largest ones.
    """
    if not any(_flattened(node, dims) for node in model.graph):
        return Partable(model, {}, {})
    new = model.clone()
    taken, more = names_in(new), dict[str, tuple[Dim, ...]]()
    made: dict[str, tuple[TensorType, ...]] = {}

    def reshaped(value: ir.Value, near: ir.Node, after: Sequence[Dim], kept: int) -> ir.Value:
        """A value in a shape of which the first lengths are copied."""
        shape = [COPIED] * kept + [dim.offset for dim in after[kept:]]
        wanted = weight_in(new.graph, f"{PREFIX}{'_'.join(map(str, shape))}", np.array(shape, np.int64))
        node = ir.node("Reshape", [value, wanted], name=fresh_name(near.name or "", taken))
        known(node, near.name or "", after)
        new.graph.insert_before(near, node)
        return node.outputs[0]

    def known(node: ir.Node, like: str, after: Sequence[Dim]) -> None:
        """Name what an op makes, and say its dimensions."""
        node.outputs[0].name = fresh_name(f"{node.name}/made", taken)
        more[node.outputs[0].name] = tuple(after)
        made[node.name or ""] = (TensorType(types[like][0].dtype, tuple(dim.at(most) for dim in after)),)

    for node in list(new.graph):
        found = _flattened(node, dims)
        if found is None:
            continue
        (rows, columns), kept = map(number, found.columns), len(found.lengths)
        source = present(found.laid.inputs[0], "what is laid flat")
        if dims[source.name or ""] != (*found.lengths, rows):
            source = reshaped(source, found.laid, (*found.lengths, rows), kept)
        result, after = source, dims[found.folded.outputs[0].name or ""]
        for op_type, other in _parts(new.graph, found):
            part = ir.node(op_type, [result, other], name=fresh_name(node.name or "", taken))
            known(part, node.name or "", (*found.lengths, columns))
            new.graph.insert_before(found.folded, part)
            result = part.outputs[0]
        if after != (*found.lengths, columns):
            result = reshaped(result, found.folded, after, kept)
        old = found.folded.outputs[0]
        if old.is_graph_output():
            more[old.name or ""] = more.pop(result.name or "")
            result.name, old.name, result.type, result.shape = old.name, result.name, old.type, old.shape
        old.replace_all_uses_with(result, replace_graph_outputs=True)
    drop_unread(new.graph, model.graph)
    return Partable(new, more, made)


def _flattened(node: ir.Node, dims: Mapping[str, tuple[Dim, ...]]) -> Flattened | None:
    """The product that an op is, where Reshapes lay flat what it reads and fold what it makes."""
    matrix = node.inputs[1] if _is_product(node) else None
    stored = fixed_value(matrix)
    if matrix is None or stored is None or len(dims_of(stored)) != 2:
        return None
    is_turned = (turned := node.attributes.get("transB")) is not None and turned.as_int() != 0
    rows, columns = dims_of(stored)[:: -1 if is_turned else 1]
    if node.op_type == "Gemm" and stored.dtype != ir.DataType.FLOAT:
        return None  # its kernels of other types are not those of MatMul
    added, listed = node.inputs[ADDED] if len(node.inputs) > ADDED else None, node.inputs[0]
    laid, folded = None if listed is None else listed.producer(), _only_reader(node)
    if added is None and folded is not None and (added := _bias(folded, node)) is not None:
        folded = _only_reader(folded)
    if added is not None and not (rows <= PACKED_RUN and _is_for_columns(added, columns)):
        return None
    if not (_is_reshape(laid) and _is_reshape(folded)) or laid is None or folded is None:
        return None
    values = (laid.inputs[0], listed, folded.outputs[0])
    before, flat, after = (dims.get((value and value.name) or "") for value in values)
    if before is None or flat is None or after is None:
        return None
    kept = next((at for at, pair in enumerate(zip(before, after, strict=False)) if pair[0] != pair[1]), len(before))
    lengths = before[: min(kept, len(after))]
    while lengths and not lengths[-1].terms:
        lengths = lengths[:-1]
    rest = (*before[len(lengths) :], *after[len(lengths) :])
    is_whole = product_of(lengths) == product_of(flat[:1]) and not any(dim.terms or dim == Dim() for dim in rest)
    found = Flattened(laid, node, folded, lengths, (rows, columns), is_turned, added)
    return found if is_whole and len(lengths) > 1 else None


def _parts(graph: ir.Graph, found: Flattened) -> list[tuple[str, ir.Value]]:
    """The ops that a product is, each with what it reads beside the result before it."""
    matrix, added = present(found.product.inputs[MATRIX], "what is multiplied with"), found.added
    if found.is_turned:
        stored = present(matrix.const_value, "a matrix that is constant").numpy()
        matrix = weight_in(graph, f"{matrix.name}/turned", np.ascontiguousarray(stored.T))
    return [("MatMul", matrix), *([] if added is None else [("Add", added)])]


def _only_reader(node: ir.Node) -> ir.Node | None:
    """The one op that reads what an op makes, if nothing else does."""
    made = node.outputs[0]
    uses = tuple(made.uses())
    return uses[0].node if len(uses) == 1 and not made.is_graph_output() else None


def _bias(node: ir.Node, product: ir.Node) -> ir.Value | None:
    """What an op adds to a product, where it does just that: the runtime may make one op of both."""
    if (node.domain, node.op_type) != ("", "Add"):
        return None
    return next((value for value in node.inputs if value is not None and value is not product.outputs[0]), None)


def _is_for_columns(added: ir.Value, columns: int) -> bool:
    """Whether what is added is constant, one number or one for each column."""
    constant = fixed_value(added)
    return constant is not None and dims_of(constant) in ((), (1,), (1, 1), (columns,), (1, columns))


def _is_product(node: ir.Node) -> bool:
    """Whether an op multiplies with one matrix, may add something, and does nothing else."""
    if node.domain or node.op_type not in ("MatMul", "Gemm") or len(node.inputs) < MATRIX + 1:
        return False
    given = {name: attribute.value for name, attribute in node.attributes.items() if name in PLAIN_GEMM}
    return all(value == PLAIN_GEMM[name] for name, value in given.items())


def _is_reshape(node: ir.Node | None) -> bool:
    return node is not None and (node.domain, node.op_type) == ("", "Reshape")
