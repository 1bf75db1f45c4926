"""Holds slicing rules to their word: an op run whole, then slab by slab as its rule says, compared bit for bit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
from onnx import helper, numpy_helper

from remat_cli.splitting.rules.table import slice_op
from remat_cli.splitting.tiles.op_view import OpView, Slab, Sliced

NCHWC = "com.microsoft.nchwc"
Array = np.ndarray
CLOSE = 1e-4  # of the largest magnitude: how far other orders of adding up may lead
ALIGNED_BYTES = 64


@dataclass(frozen=True, eq=False)
class OneOp:
    """An op with a value per input (None: left out); inputs at the positions in `weights` are initialisers.

    `opset` is the version of the op's own domain. `outputs` tells by position which outputs are given a name.
    """

    op_type: str
    inputs: tuple[Array | None, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    weights: frozenset[int] | tuple[int, ...] = ()
    domain: str = ""
    opset: int = 21
    outputs: tuple[bool, ...] = (True,)


@dataclass(frozen=True)
class Outcome:
    """What a rule said to each slab. Those in `exact` gave the bits of the whole op; `refused` got None."""

    exact: tuple[Slab, ...]
    refused: tuple[Slab, ...]

    @property
    def all_exact(self) -> bool:
        return bool(self.exact) and not self.refused

    @property
    def all_refused(self) -> bool:
        return bool(self.refused) and not self.exact


def check_slices(op: OneOp, axis: int, slabs: Iterable[Slab] | None = None, threads: int = 1) -> Outcome:
    """Runs every slab that the rule accepts; fails where one differs from the slice of the whole in a single bit.

    `axis` is one of the first output that exists; `slabs` default to `slabs_along` it.
    """
    whole = run(op, threads)
    shape = next(output.shape for output in whole if output is not None)
    view = replace(view_of(op, whole), own_threads=threads)
    asked = slabs_along(axis, shape[axis]) if slabs is None else tuple(slabs)
    found = [(slab, slice_op(view, slab)) for slab in asked]
    exact = [(slab, sliced) for slab, sliced in found if sliced is not None]
    compare(op, whole, exact, threads)
    return Outcome(tuple(slab for slab, _ in exact), tuple(slab for slab, sliced in found if sliced is None))


def check_close(op: OneOp, axis: int, slabs: Iterable[Slab] | None = None, threads: int = 1) -> tuple[Slab, ...]:
    """Runs every slab that the rule accepts where bits need not hold, and gives those that it refuses all the same.

    Fails where a slab is not close to the slice of the whole.
    """
    whole = run(op, threads)
    extent = next(output.shape for output in whole if output is not None)[axis]
    view = replace(view_of(op, whole), may_reassociate=True, own_threads=threads)
    found = [(slab, slice_op(view, slab)) for slab in (slabs_along(axis, extent) if slabs is None else slabs)]
    accepted = [(slab, sliced) for slab, sliced in found if sliced is not None]
    compare(op, whole, accepted, threads, assert_close)
    return tuple(slab for slab, sliced in found if sliced is None)


def check_all_axes(op: OneOp) -> list[tuple[Outcome, tuple[Slab, ...]]]:
    """What `check_slices` and `check_close` find along each axis, with all slabs in one session.

    Slabs that are cut alike either way are run once, and have the bits of the whole.
    """
    whole = run(op)
    view = view_of(op, whole)
    loose = replace(view, may_reassociate=True)
    lines = enumerate(next(output.shape for output in whole if output is not None))
    asked = [slabs_along(axis, extent) for axis, extent in lines]
    strict = {slab: slice_op(view, slab) for slabs in asked for slab in slabs}
    free = {slab: slice_op(loose, slab) for slab in strict}
    alike = {slab for slab, cut in free.items() if cut is not None and not cut.constants and cut == strict[slab]}
    exact = [(slab, cut) for slab, cut in strict.items() if cut is not None]
    close = [(slab, cut) for slab, cut in free.items() if cut is not None and slab not in alike]
    compare(op, whole, exact, 1, assert_equal, close)
    found = []
    for slabs in asked:
        taken, left = (tuple(slab for slab in slabs if (strict[slab] is None) is is_left) for is_left in (False, True))
        found.append((Outcome(taken, left), tuple(slab for slab in slabs if free[slab] is None)))
    return found


def assert_equal(got: Array, wanted: Array, where: str) -> None:
    """Bit for bit."""
    assert got.tobytes() == wanted.tobytes(), f"{where}: {_difference(got, wanted)}"


def assert_close(got: Array, wanted: Array, where: str) -> None:
    """Floats by the largest magnitude, everything else exactly."""
    if np.issubdtype(wanted.dtype, np.floating):
        magnitude = np.abs(wanted[np.isfinite(wanted)]).max(initial=0.0)
        np.testing.assert_allclose(got, wanted, rtol=0, atol=CLOSE * magnitude, err_msg=where)
    else:
        assert_equal(got, wanted, where)


def compare(
    op: OneOp,
    whole: list[Array | None],
    slabs: Sequence[tuple[Slab, Sliced]],
    threads: int = 1,
    check: Callable[[Array, Array, str], None] = assert_equal,
    close: Sequence[tuple[Slab, Sliced]] = (),
) -> None:
    """Runs all sliced ops, in one session, and compares each output with the slab of the whole one.

    Slabs in `close` need only be close to it.
    """
    for slab, sliced in (*slabs, *close):
        assert sliced.makes.contains(slab), f"{sliced.makes} lacks part of {slab}"
        assert len(sliced.needs) == len(op.inputs)
    found = run_all([sliced_op(op, sliced) for _, sliced in (*slabs, *close)], threads)
    checks = [check] * len(slabs) + [assert_close] * len(close)
    for made, cut_as, each in zip(found, (*slabs, *close), checks, strict=True):
        _compare_slab(op, whole, made, cut_as, each)


def _compare_slab(
    op: OneOp,
    whole: list[Array | None],
    made: list[Array | None],
    cut_as: tuple[Slab, Sliced],
    check: Callable[[Array, Array, str], None],
) -> None:
    slab, sliced = cut_as
    for position, (part, all_of_it) in enumerate(zip(made, whole, strict=True)):
        if part is None or all_of_it is None:
            continue
        shape = list(all_of_it.shape)
        shape[slab.axis] = sliced.makes.extent
        assert part.shape == tuple(shape), f"{op.op_type} {slab}: makes {part.shape}, not {tuple(shape)}"
        is_blocked = _is_blocked_output(op)
        wanted = cut(all_of_it, slab, is_blocked)
        got = cut(part, Slab(slab.axis, slab.start - sliced.makes.start, slab.stop - sliced.makes.start), is_blocked)
        assert got.dtype == wanted.dtype
        where = f"{op.op_type} output {position} of {all_of_it.shape}, {slab}, {sliced.needs}, {sliced.attributes}"
        check(got, wanted, where)


def sliced_op(op: OneOp, sliced: Sliced) -> OneOp:
    """The op with its inputs cut, its attributes and constants replaced."""
    inputs = []
    for position, (value, need) in enumerate(zip(op.inputs, sliced.needs, strict=True)):
        if position in sliced.constants:
            assert position in op.weights, f"input {position} is not a constant"
            inputs.append(np.asarray(sliced.constants[position]))
        else:
            inputs.append(value if value is None or need is None else cut(value, need, _is_blocked_input(op, position)))
    attributes = {**op.attributes, **sliced.attributes}
    return OneOp(op.op_type, tuple(inputs), attributes, op.weights, op.domain, op.opset, op.outputs)


def slabs_along(axis: int, extent: int) -> tuple[Slab, ...]:
    """Thirds, single positions at both ends and inside, uneven parts, all but the first or last, and the whole."""
    thirds = [round(i * extent / 3) for i in range(4)]
    bounds = {(thirds[i], thirds[i + 1]) for i in range(3)}
    bounds |= {(i, i + 1) for i in (0, 1, extent // 2, extent - 2, extent - 1)}
    bounds |= {(0, extent), (1, extent), (0, extent - 1), (1, extent - 1), (1, 4), (extent - 5, extent - 2)}
    bounds |= {(extent // 5, extent // 5 * 3), (extent // 5 * 3, extent)}
    return tuple(Slab(axis, start, stop) for start, stop in sorted(bounds) if 0 <= start < stop <= extent)


@lru_cache(maxsize=4)
def run(op: OneOp, threads: int = 1) -> list[Array | None]:
    """Outputs by position, None where one is left out; the runtime changes nothing about the op.

    One op is cut along several axes, one after the other: it is run whole once.
    """
    (found,) = run_all([op], threads)
    return found


def run_all(ops: Sequence[OneOp], threads: int = 1) -> list[list[Array | None]]:
    """The same of ops of one domain and version, which run side by side in one session: to open one takes longest."""
    if not ops:
        return []
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = threads
    options.log_severity_level = 4
    session = ort.InferenceSession(model_of(*ops).SerializeToString(), options, providers=["CPUExecutionProvider"])
    feeds = {
        f"x{i}of{number}": _aligned(value)
        for number, op in enumerate(ops)
        for i, value in enumerate(op.inputs)
        if value is not None and i not in op.weights
    }
    values = iter(session.run(None, feeds))
    return [[next(values) if is_given else None for is_given in op.outputs] for op in ops]


def model_of(*ops: OneOp) -> onnx.ModelProto:
    """A model of a node for each op, none of which reads what another one makes."""
    nodes, inputs, constants, outputs = [], [], [], []
    for number, op in enumerate(ops):
        names = ["" if value is None else f"x{i}of{number}" for i, value in enumerate(op.inputs)]
        results = [f"y{i}of{number}" if is_given else "" for i, is_given in enumerate(op.outputs)]
        name = f"op{number}"
        nodes.append(helper.make_node(op.op_type, names, results, domain=op.domain, name=name, **op.attributes))
        outputs += [onnx.ValueInfoProto(name=name) for name in results if name]
        for i, value in enumerate(op.inputs):
            if value is None:
                continue
            array = np.asarray(value, order="C")
            if i in op.weights:
                constants.append(numpy_helper.from_array(array, names[i]))
            else:
                dtype = helper.np_dtype_to_tensor_dtype(array.dtype)
                inputs.append(helper.make_tensor_value_info(names[i], dtype, array.shape))
    graph = helper.make_graph(nodes, "ops", inputs, outputs, constants)
    domain, opset = ops[0].domain, ops[0].opset
    imports = [helper.make_opsetid(domain, opset)]
    imports += [helper.make_opsetid("", 21)] if domain else []
    return helper.make_model(graph, opset_imports=imports, ir_version=10)


def view_of(op: OneOp, outputs: list[Array | None]) -> OpView:
    """The op as slicing rules see it."""
    node = next(iter(ir.from_proto(model_of(op)).graph))
    return OpView(
        node,
        tuple(None if value is None else value.shape for value in op.inputs),
        tuple(None if value is None else value.shape for value in outputs),
        tuple(i in op.weights for i in range(len(op.inputs))),
        op.opset,
    )


def cut(value: Array, slab: Slab, is_blocked: bool = False) -> Array:
    """A slab of a tensor; height and width of a blocked one lie inside groups of channels."""
    axis = slab.axis
    if is_blocked and axis >= 2:
        n, c, *sizes = value.shape
        b = block_size()
        part = value.reshape(n, c // b, *sizes, b)[(slice(None),) * axis + (slice(slab.start, slab.stop),)]
        return np.ascontiguousarray(part).reshape(n, c, *part.shape[2:-1])
    return np.ascontiguousarray(value[(slice(None),) * axis + (slice(slab.start, slab.stop),)])


def _aligned(value: Array) -> Array:
    """A copy that begins where the runtime's own buffers do: bits may depend on that."""
    room = np.empty(value.nbytes + ALIGNED_BYTES, np.uint8)
    start = -room.ctypes.data % ALIGNED_BYTES
    copy: Array = room[start : start + value.nbytes].view(value.dtype).reshape(value.shape)
    copy[...] = value
    return copy


@cache
def block_size() -> int:
    """Channels that lie together in the CPU's blocked layout on this machine."""
    channels = np.zeros((1, 16, 1, 2), np.float32)
    channels[0, 0, 0, 1] = 1  # second position of the first channel: comes right after the first block
    (blocked,) = run(OneOp("ReorderInput", (channels,), {"channels_last": 0}, domain=NCHWC, opset=1))
    assert blocked is not None
    return int(np.flatnonzero(blocked)[0])


def _is_blocked_input(op: OneOp, position: int) -> bool:
    if op.domain != NCHWC or op.op_type == "ReorderInput":
        return False
    if op.op_type != "Conv":
        return position == 0
    value = op.inputs[0]
    return position == 3 or (position == 0 and value is not None and value.shape[1] % block_size() == 0)


def _is_blocked_output(op: OneOp) -> bool:
    return op.domain == NCHWC and op.op_type != "ReorderOutput"


def _difference(got: Array, wanted: Array) -> str:
    differs = got.view(np.uint8).reshape(*got.shape, -1) != wanted.view(np.uint8).reshape(*got.shape, -1)
    places = np.argwhere(differs.any(axis=-1))
    first = tuple(int(i) for i in places[0])
    return f"{len(places)} of {got.size} differ, first at {first}: {got[first]!r}, not {wanted[first]!r}"
