"""Writes down what a default session makes of a model on a kind of processor, so that the judge can count it."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import onnx_ir as ir

from remat_cli.core.schedule.graph import TensorType
from remat_cli.onnx_io.read.layout_scene import layout_scene
from remat_cli.onnx_io.sizes.free_shapes import Dims
from remat_cli.ort_rules.layout import BACK, CONV, IN_BLOCKS, RANK, REORDERED, LaidOut, LayoutOp, laid_out


@dataclass(frozen=True)
class LaidOutModel:
    """A model as a session has it once it is loaded, as `to_graph` wants it.

    `covers` names for each op those of the file that it computes; `grown_bytes` is by how much weights are padded.
    """

    model: ir.Model
    observed: Mapping[str, tuple[TensorType, ...]]
    known: Mapping[str, Dims]
    covers: Mapping[str, tuple[str, ...]]
    grown_bytes: int


def all_laid_out(
    model: ir.Model, types: Mapping[str, TensorType], known: Mapping[str, Dims], blocks: Sequence[int]
) -> Iterator[LaidOutModel]:
    """What default sessions make of a model with blocks of so many channels; `types` are those of all its values.

    In which order ops that take tensors out of blocks are numbered changes from run to run: as those stand that made
    them, or reversed. Blocks of which nothing else comes than of others, with no larger weights, are left out.
    """
    shapes = {name: kind.shape for name, kind in types.items()}
    scene = layout_scene(model, shapes | dict(known))
    seen: dict[object, int] = {}
    for block in blocks:
        laid = laid_out(scene, block)
        ops = [(op.name, op.op_type, op.domain, op.reads, op.makes, op.covers) for op in laid.ops]
        form = (tuple(ops), tuple((name, _padded(channels, block)) for name, channels in laid.channels.items()))
        grown_bytes = _grown_bytes(laid.ops, model, block)
        if grown_bytes <= seen.get(form, -1):
            continue
        seen[form] = grown_bytes
        back = [op for op in laid.ops if op.name.endswith(BACK)]
        before = laid.ops[: len(laid.ops) - len(back)]
        for after in (back, back[::-1]) if len(back) > 1 else (back,):
            yield _as_laid_out(model, types, known, replace(laid, ops=(*before, *after)), block)


def _as_laid_out(
    model: ir.Model, types: Mapping[str, TensorType], known: Mapping[str, Dims], laid: LaidOut, block: int
) -> LaidOutModel:
    """The same in one order."""
    ops = laid.ops
    kinds, dims = dict(types), dict(known)
    for op in _by_wiring(ops):
        for name in op.makes:
            if name in laid.channels:
                whole, first = types[name.removesuffix(IN_BLOCKS).removesuffix(REORDERED)], op.reads[0]
                batch, _, *rest = whole.shape
                channels = _padded(laid.channels[name], block)
                kinds[name] = TensorType(whole.dtype, (batch, channels, *rest))
                # All is known but how many blocks there are, which is what is known of what the op reads.
                before = dims.get(first) or (types[first].shape if first in types else (None,))
                dims[name] = (before[0], channels, *rest)
    nodes = {node.name: node for node in model.graph}
    built = _built(model, ops, nodes, kinds)
    return LaidOutModel(
        model=built,
        observed={op.name: tuple(kinds[name] for name in op.makes if name) for op in ops},
        known=dims,
        covers={op.name: op.covers for op in ops},
        grown_bytes=_grown_bytes(ops, model, block),
    )


def _padded(channels: int, block: int) -> int:
    return -(-channels // block) * block


def _by_wiring(ops: Sequence[LayoutOp]) -> list[LayoutOp]:
    """The ops, each behind those whose results it reads."""
    maker = {name: op for op in ops for name in op.makes if name}
    seen: set[str] = set()
    ordered: list[LayoutOp] = []
    stack = [(op, False) for op in reversed(ops)]
    while stack:
        op, is_ready = stack.pop()
        if is_ready:
            ordered.append(op)
        elif op.name not in seen:
            seen.add(op.name)
            stack.append((op, True))
            stack += [(maker[name], False) for name in op.reads if name in maker]
    return ordered


def _built(
    model: ir.Model, ops: Sequence[LayoutOp], nodes: Mapping[str | None, ir.Node], kinds: Mapping[str, TensorType]
) -> ir.Model:
    old = model.graph
    values: dict[str, ir.Value] = {}
    for value in (*old.inputs, *old.initializers.values()):
        values[value.name or ""] = ir.Value(
            name=value.name, type=value.type, shape=value.shape, const_value=value.const_value
        )
    inputs = [values[value.name or ""] for value in old.inputs]
    weights = [values[name] for name in old.initializers]
    for op in ops:
        for name in op.makes:
            if name:
                values[name] = ir.Value(name=name, type=ir.TensorType(ir.DataType.FLOAT))
    new = []
    for op in ops:
        node = nodes.get(op.name)
        # Attributes are those of the node that it was in the file, where it is one of the same type still.
        attributes = node.attributes.values() if node is not None and node.op_type == op.op_type else ()
        reads = [values[name] if name else None for name in op.reads]
        makes = [values[name] if name else ir.Value(name="") for name in op.makes]
        props = None if node is None else dict(node.metadata_props)
        new.append(
            ir.Node(op.domain, op.op_type, reads, [*attributes], outputs=makes, name=op.name, metadata_props=props)
        )
    graph = ir.Graph(
        inputs,
        [values[value.name or ""] for value in old.outputs],
        nodes=new,
        initializers=weights,
        opset_imports=dict(old.opset_imports),
        name=old.name,
    )
    return ir.Model(graph, ir_version=model.ir_version)


def _grown_bytes(ops: Sequence[LayoutOp], model: ir.Model, block: int) -> int:
    """By how much weights of convolutions in blocks are larger, each counted once."""
    grown: dict[str, int] = {}
    for op in ops:
        weight = model.graph.initializers.get(op.reads[1]) if op.is_blocked and op.op_type == CONV else None
        tensor = None if weight is None else weight.const_value
        if tensor is not None and len(tensor.shape) == RANK:
            outputs, inputs = tensor.shape.numpy()[:2]
            padded = _padded(outputs, block) * (_padded(inputs, block) if inputs >= block else inputs)
            grown[op.reads[1]] = tensor.nbytes // (outputs * inputs) * (padded - outputs * inputs)
    return sum(grown.values())
