"""Sequences of tensors, as exporters write splits: while a step is written, each is just the tensors that it holds.

So a step has no sequence in it, and gradients flow through ordinary ops, such as Split in place of SplitToSequence.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import onnx_ir as ir

from remat_cli.autodiff.pieces import positive
from remat_cli.autodiff.reverse import Recorder
from remat_cli.autodiff.tape import Call, constant_of
from remat_cli.base.errors import ModelError

Tensors = tuple[ir.Value, ...]


def split_to_sequence(recorder: Recorder, call: Call) -> Tensors:
    """Parts of given sizes, or equal ones but for the last; with keepdims 0 the axis goes."""
    shape = call.shape()
    axis = positive(call.integer("axis"), len(shape))
    given = constant_of(call, 1, "sizes") if call.has(1) else np.array(1)
    if given.ndim:
        sizes = [int(size) for size in given]
    else:
        total, step = shape[axis], int(given)
        sizes = [min(step, total - start) for start in range(0, total, step)]
    parts = _run(recorder, call.name, "Split", [call.input(0), recorder.tape.ints(*sizes)], axis, len(sizes))
    if call.has(1) or call.integer("keepdims", 1):
        return parts
    return tuple(recorder.op("Squeeze", part, recorder.tape.ints(axis)) for part in parts)


def _run(
    recorder: Recorder, name: str, op_type: str, inputs: Sequence[ir.Value], axis: int, results: int = 1
) -> Tensors:
    """Write and remember an op along an axis."""
    call = Call(name, op_type, tuple(inputs), {"axis": ir.AttrInt64("axis", axis)})
    return tuple(value for value in recorder.run(call, [""] * results) if value is not None)


def sequence_at(_: Recorder, call: Call, held: Tensors) -> ir.Value:
    """The tensor at a constant place of a sequence."""
    place = int(constant_of(call, 1, "indices").item())
    if not -len(held) <= place < len(held):
        raise ModelError(f"op '{call.name}' ({call.op_type}): there is no tensor {place} among {len(held)}")
    return held[place]


def concat_from_sequence(recorder: Recorder, call: Call, held: Tensors) -> ir.Value:
    """All tensors of a sequence joined, along an axis of theirs or a new one."""
    axis = call.integer("axis")
    if call.integer("new_axis"):
        held = tuple(recorder.op("Unsqueeze", part, recorder.tape.ints(axis)) for part in held)
    return _run(recorder, call.name, "Concat", held, axis)[0]


def sequence_length(recorder: Recorder, _: Call, held: Tensors) -> ir.Value:
    """How many tensors a sequence holds, as a constant."""
    return recorder.tape.constant(np.array(len(held), np.int64))


MAKERS: Mapping[str, Callable[[Recorder, Call], Tensors]] = {
    "SplitToSequence": split_to_sequence,
    "SequenceConstruct": lambda _, call: tuple(value for value in call.inputs if value is not None),
}
READERS: Mapping[str, Callable[[Recorder, Call, Tensors], ir.Value]] = {
    "SequenceAt": sequence_at,
    "SequenceLength": sequence_length,
    "ConcatFromSequence": concat_from_sequence,
}


Held = dict[str, Tensors]  # sequences met so far, by name, as the tensors that they hold


def write_sequence_op(
    node: ir.Node, recorder: Recorder, values: dict[str, ir.Value], held: Held
) -> tuple[Tensors, Tensors] | None:
    """Write what stands for an op that makes or reads a sequence, and put its result where it belongs.

    Returns the tensors it reads and those it makes; None for other ops.

    Raises:
        ModelError: the op is not in the tables above, or sizes or indices are computed.
    """
    names = [value.name or "" if value is not None else "" for value in node.inputs]
    if node.op_type not in MAKERS and not any(name in held for name in names):
        return None
    call = Call(node.name or "", node.op_type, tuple(values.get(name) for name in names), dict(node.attributes))
    read = tuple(value for value in call.inputs if value is not None)
    result = node.outputs[0].name or ""
    if node.op_type in MAKERS:
        held[result] = MAKERS[node.op_type](recorder, call)
        return read, held[result]
    if node.op_type not in READERS:
        raise ModelError(
            f"op '{call.name}' ({call.op_type}) reads a sequence of tensors: gradients through it cannot be written"
        )
    values[result] = READERS[node.op_type](recorder, call, held[names[0]])
    return (*read, *held[names[0]]), (values[result],)
