"""Converts forms of a model file that ONNX Runtime reads and the rest of remat does not to today's, exactly."""

from pathlib import Path

import numpy as np
import onnx
from onnx import helper, numpy_helper

from remat_cli.base.errors import ModelError
from remat_cli.onnx_io.read.checking import all_bodies, all_nodes
from remat_cli.onnx_io.read.mapped import bytes_wanted

OLDEST_OPSET = 7
ASSUMED_OPSET = 17  # for the few standard ops that gates add to a model that has none
ONNX_DOMAINS = ("", "ai.onnx")
MOST_DENSE_BYTES = 2**31  # a protobuf message cannot hold more


def as_loaded(path: Path, proto: onnx.ModelProto) -> None:
    """Write down in place what a session makes of a file that says something twice, or nowhere, while it loads it.

    Raises:
        ModelError: a sparse tensor cannot be written out.
    """
    # Operators of ONNX have one name, of all the versions that are given for them the last counts.
    versions = {("" if entry.domain == "ai.onnx" else entry.domain): entry.version for entry in proto.opset_import}
    del proto.opset_import[:]
    proto.opset_import.extend(helper.make_opsetid(domain, version) for domain, version in versions.items())
    for node in (node for node in proto.graph.node if node.domain == "ai.onnx"):
        node.domain = ""
    proto.graph.name = proto.graph.name or "graph"
    with_dense_tensors(path, proto)
    # Without weights that have no name, and of those of one name only that which the runtime takes; `Constant` nodes
    # come behind the weights.
    constants = [each for each in proto.graph.node if each.op_type == "Constant" and each.domain in ONNX_DOMAINS]
    found: dict[str, list[onnx.TensorProto | onnx.NodeProto]] = {}
    for tensor in proto.graph.initializer:
        found.setdefault(tensor.name, []).append(tensor)
    for constant in constants:
        found.setdefault(constant.output[0], []).append(constant)
    nameless = found.pop("", [])
    dropped = set(map(id, nameless))
    for twins in (twins for twins in found.values() if len(twins) > 1):
        first = twins[0]
        tensor = first if isinstance(first, onnx.TensorProto) else first.attribute[0].t
        is_first = (bytes_wanted(tensor) or 0) >= LEAST_BYTES_OF_FIRST
        dropped.update(map(id, twins[1:] if is_first else twins[:-1]))
    if dropped:
        tensors = [each for each in proto.graph.initializer if id(each) not in dropped]
        kept = [onnx.TensorProto.FromString(each.SerializeToString()) for each in tensors]
        for constant in [constant for constant in constants if id(constant) in dropped]:
            proto.graph.node.remove(constant)
        del proto.graph.initializer[:]
        proto.graph.initializer.extend(kept)


LEAST_BYTES_OF_FIRST = 128
"""Of weights of one name that hold less the runtime takes the last, of larger ones the first."""


def with_dense_tensors(path: Path, proto: onnx.ModelProto) -> None:
    """Write sparse initialisers and constants out in full, in place; the runtime does the same when it loads them.

    They come behind the other initialisers, of which the runtime takes one that has the same name.

    Raises:
        ModelError: one is too large to write out, or lies in a file of its own.
    """
    bodies = (proto.graph, *all_bodies(proto.graph))
    for graph in [graph for graph in bodies if graph.sparse_initializer]:
        for sparse in graph.sparse_initializer:
            graph.initializer.append(_dense(path, sparse))
        del graph.sparse_initializer[:]
    for node in all_nodes(proto.graph):
        if node.op_type == "Constant" and node.domain in ONNX_DOMAINS:
            for attribute in node.attribute:
                if attribute.type == onnx.AttributeProto.SPARSE_TENSOR:
                    attribute.CopyFrom(helper.make_attribute("value", _dense(path, attribute.sparse_tensor)))


def _dense(path: Path, sparse: onnx.SparseTensorProto) -> onnx.TensorProto:
    name, shape = sparse.values.name, tuple(sparse.dims)
    if onnx.TensorProto.EXTERNAL in (sparse.values.data_location, sparse.indices.data_location):
        raise ModelError(f"model {path}: sparse tensor '{name}' lies in a file of its own: put it into the model")
    try:
        values, indices = numpy_helper.to_array(sparse.values), numpy_helper.to_array(sparse.indices)
    except Exception as error:  # whatever the parser of data raises: types that are none, data of another length
        raise ModelError(f"model {path}: sparse tensor '{name}' cannot be read: {error}") from None
    if int(np.prod([int(size) for size in shape], dtype=object)) * max(1, values.itemsize) > MOST_DENSE_BYTES:
        raise ModelError(f"model {path}: sparse tensor '{name}' of shape {list(shape)} is too large to write out")
    try:
        dense = np.zeros(shape, values.dtype)
        dense[tuple(indices.T) if indices.ndim == 2 else np.unravel_index(indices, shape)] = values
    except (IndexError, ValueError, TypeError):
        raise ModelError(f"model {path}: sparse tensor '{name}' of shape {list(shape)} has indices beyond it") from None
    found = numpy_helper.from_array(dense, name)
    found.data_type = sparse.values.data_type
    return found


def check_opset(path: Path, proto: onnx.ModelProto) -> None:
    """Refuse a model that has ops of ONNX's own and does not say of which version.

    Raises:
        ModelError: it is one.
    """
    if _opset(proto) is None and any(node.domain in ONNX_DOMAINS for node in all_nodes(proto.graph)):
        raise ModelError(f"model {path} does not say which ONNX opset it uses")


def _opset(proto: onnx.ModelProto) -> int | None:
    versions = {entry.domain: entry.version for entry in proto.opset_import}
    return versions.get("", versions.get("ai.onnx"))


def is_too_old(proto: onnx.ModelProto) -> bool:
    """Whether a model's operators are of a version that has to be converted."""
    opset = _opset(proto)
    return opset is not None and opset < OLDEST_OPSET


def with_known_opset(path: Path, proto: onnx.ModelProto) -> tuple[onnx.ModelProto, str | None]:
    """The model under a version of ONNX's operators that remat knows, and a line that says what was converted.

    Raises:
        ModelError: it is too old and cannot be converted.
    """
    opset = _opset(proto)
    if opset is None:
        proto.opset_import.append(helper.make_opsetid("", ASSUMED_OPSET))
        return proto, None
    if not is_too_old(proto):
        return proto, None
    refusal = f"model {path} uses opset {opset}: convert it to {OLDEST_OPSET} or later, such as 17"
    if any(tensor.data_location == onnx.TensorProto.EXTERNAL for tensor in proto.graph.initializer):
        raise ModelError(f"{refusal} (its weights lie outside the file, where ONNX's converter does not find them)")
    try:
        converted = onnx.version_converter.convert_version(proto, OLDEST_OPSET)
    except Exception as error:  # the converter is C++ and raises what it likes
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise ModelError(f"{refusal} (ONNX's converter cannot: {reason})") from None
    del converted.graph.value_info[:]  # some that the converter makes have no element type
    return converted, f"{path} uses opset {opset}: it was converted to opset {OLDEST_OPSET}"
