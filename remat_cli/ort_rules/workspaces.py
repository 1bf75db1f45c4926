"""Of which blocks a kernel's workspace consists, in the order in which it asks for them.

What is measured of an op is the most that it holds beside its tensors. For an arena it matters which blocks that is:
the first of two may get a free place whole, so that the second one needs a new region; and where blocks lie decides
which bytes are ever touched. So each kind of kernel that asks for several has a rule here, from shapes alone. Measured
with a library that notes requests (`tests/runtime/test_arena.py` repeats it), on 1 and 4 threads, as of 1.32.0:

- LSTM, GRU and DynamicQuantizeLSTM: the last states that are no results, then for each direction a few states and the
  gates of all steps; where a direction runs backwards, its input and result turned round; where weights are bytes,
  for each direction the input in bytes and the sums of one step.
- Attention (of the runtime's own domain) and QAttention: queries, keys and values; a mask; scores; the result with
  heads first. MultiHeadAttention and GroupQueryAttention: queries, keys and values with heads first, the latter's again
  once they are rotated, then either what a kernel needs that never holds all scores, or scores and a result.
  Attention (of ONNX): scores, then the mask.
- QLinearConv without a kernel of its own for its channels multiplies matrices, item by item: its sums come first, then,
  where channels are not last, its input and its result with channels last, then the columns of its input. With such a
  kernel, or one for each channel alone, addresses take the place of columns, and there may be no sums.
- Softmax and LogSoftmax that turn all axes round, and QLinearSoftmax: a copy of their input and one of their result.
  LRN: squares, then a padded row of them. Where: two tensors like its result, before it. DynamicQuantizeMatMul: its
  input in bytes, before its result.

Blocks that a kernel gives back before its end, as that of a bias which it adds first, are left out, and so is what
threads keep for themselves outside the arena.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Final

import msgspec

from remat_cli.core.schedule.graph import Graph, Op, Tensor

FLOAT_BYTES: Final = 4
ADDRESS_BYTES: Final = 8
STATE_AXES, RESULT_AXES = 3, 4
"""Axes of a last state of a recurrent op, and of its result."""

Blocks = tuple[int, ...]
_MS: Final = "com.microsoft"


class WorkspaceRules(msgspec.Struct, frozen=True, kw_only=True):
    """`sum_bytes` of a sum of products of bytes; blocks may be `slack_bytes` longer than what they hold, rounded up.

    `state_slack_bytes` are those of each number of a state of a recurrent op, for biases and the like.
    """

    sum_bytes: int
    slack_bytes: int
    state_slack_bytes: int


def parts_before_result(graph: Graph, op: Op, workspace_bytes: int, rules: WorkspaceRules) -> Blocks:
    """The blocks of an op's workspace, where it asks for them before its result; none where no rule says so."""
    if (op.domain, op.op_type) == (_MS, "DynamicQuantizeMatMul"):
        return (workspace_bytes,)
    if (op.domain, op.op_type) == ("", "Where"):
        return _chosen(_two_results(graph, op, workspace_bytes, rules), workspace_bytes, rules.slack_bytes)
    return ()


def workspace_parts(graph: Graph, op: Op, workspace_bytes: int, rules: WorkspaceRules) -> Blocks:
    """The blocks of an op's workspace; one where no rule says better."""
    rule = _RULES.get((op.domain, op.op_type))
    if rule is None or not workspace_bytes:
        return (workspace_bytes,)
    slack_bytes = rules.slack_bytes
    if op.op_type in _STATES:
        slack_bytes += rules.state_slack_bytes * graph.tensors[op.outputs[0]].shape[-1]
    return _chosen(rule(graph, op, workspace_bytes, rules), workspace_bytes, slack_bytes) or (workspace_bytes,)


def _chosen(candidates: Iterator[Blocks], workspace_bytes: int, slack_bytes: int) -> Blocks:
    """Those blocks that come nearest to what was measured, the last one as long as that leaves; none if none do."""
    near = [
        blocks
        for blocks in candidates
        if blocks and min(blocks) > 0 and abs(workspace_bytes - sum(blocks)) <= slack_bytes
    ]
    if not near:
        return ()
    *before, _ = min(near, key=lambda blocks: abs(workspace_bytes - sum(blocks)))
    rest_bytes = workspace_bytes - sum(before)
    return (*before, rest_bytes) if rest_bytes > 0 else ()


def _two_results(graph: Graph, op: Op, workspace_bytes: int, _rules: WorkspaceRules) -> Iterator[Blocks]:
    """Two blocks of the size of an op's result, if that is nearer to its workspace than one of them or three."""
    result_bytes = graph.tensors[op.outputs[0]].size_bytes
    if abs(workspace_bytes - 2 * result_bytes) <= result_bytes:
        yield result_bytes, result_bytes


def _result_and_rest(graph: Graph, op: Op, workspace_bytes: int, _rules: WorkspaceRules) -> Iterator[Blocks]:
    result_bytes = graph.tensors[op.outputs[0]].size_bytes
    yield result_bytes, workspace_bytes - result_bytes


_STATES: Final[Mapping[str, tuple[int, tuple[int, ...]]]] = MappingProxyType(
    {"LSTM": (4, (3,)), "GRU": (3, (2, 3, 5, 7)), "DynamicQuantizeLSTM": (4, (3,))}
)
"""By op type: gates, and how many states come before them; with biases, and those apart, there are more."""


def _recurrent(graph: Graph, op: Op, _workspace_bytes: int, rules: WorkspaceRules) -> Iterator[Blocks]:
    """Of a recurrent op, one way or both."""
    steps, items, width = _shape_of(graph.tensors[op.inputs[0]], STATE_AXES)
    results = [graph.tensors[each] for each in op.outputs]
    if not steps or len(results[0].shape) not in {STATE_AXES, RESULT_AXES}:
        return
    hidden, ways = results[0].shape[-1], results[0].shape[-STATE_AXES]
    state_bytes = items * hidden * FLOAT_BYTES
    gates, counts = _STATES[op.op_type]
    last_states = 1 if op.op_type == "GRU" else 2
    made = [ways * state_bytes] * (last_states - sum(len(each.shape) == STATE_AXES for each in results))
    in_bytes = [steps * items * width, rules.sum_bytes * gates * items * hidden] if op.op_type.startswith("Dyn") else []
    turned = [steps * items * width * FLOAT_BYTES, steps * state_bytes]
    for count, backwards in itertools.product(counts, (False, True)):
        one_way = [*[state_bytes] * count, steps * gates * state_bytes]
        yield (*made, *one_way * ways, *turned * backwards, *in_bytes * ways)


def _attention(graph: Graph, op: Op, workspace_bytes: int, _rules: WorkspaceRules) -> Iterator[Blocks]:
    """Queries, keys and values as one, a mask, scores of as many heads as can be, and the result with heads first."""
    items, length, _ = _shape_of(graph.tensors[op.inputs[0]], STATE_AXES)
    result = graph.tensors[op.outputs[0]]
    mask_bytes = items * length * length * FLOAT_BYTES
    for masks in ((), (mask_bytes,)):
        heads = round((workspace_bytes - 4 * result.size_bytes - sum(masks)) / max(1, mask_bytes))
        if heads > 0 and result.shape[-1] % heads == 0:
            yield 3 * result.size_bytes, *masks, heads * mask_bytes, result.size_bytes


def _many_heads(graph: Graph, op: Op, workspace_bytes: int, rules: WorkspaceRules) -> Iterator[Blocks]:
    """Queries, keys and values with heads first where they are not; then scores and a result, or a kernel's own.

    Or, where that is more, values once more, while a bias is added.
    """
    fed = [graph.tensors[each] for each in op.inputs]
    if not _are_attended(fed[:2]):
        return
    turned = [each.size_bytes for each in fed[:3] if len(each.shape) == STATE_AXES and each.shape[1] > 1]
    made, length = graph.tensors[op.outputs[0]], fed[0].shape[1] if len(fed[0].shape) == STATE_AXES else 1
    rest_bytes = workspace_bytes - sum(turned)
    mask_bytes = made.shape[0] * (fed[1].shape[-2] if len(fed) > 1 else length) * FLOAT_BYTES
    of_head_bytes = max(1, mask_bytes * length)
    scores_bytes = round((rest_bytes - made.size_bytes) / of_head_bytes) * of_head_bytes
    are_scores = 0 <= rest_bytes - made.size_bytes - scores_bytes <= rules.slack_bytes + mask_bytes
    is_value = bool(turned) and abs(rest_bytes - turned[-1]) <= rules.slack_bytes
    yield (*turned, scores_bytes, rest_bytes - scores_bytes) if are_scores and not is_value else (*turned, rest_bytes)


def _grouped_heads(graph: Graph, op: Op, workspace_bytes: int, _rules: WorkspaceRules) -> Iterator[Blocks]:
    """Queries, keys and values with heads first, or the packed three; again rotated; then a kernel's own."""
    fed = [graph.tensors[each] for each in op.inputs]
    apart = list(itertools.takewhile(lambda each: len(each.shape) == STATE_AXES, fed[:3]))
    turned = [each.size_bytes for each in apart]
    sizes = [graph.weights[each].size_bytes for each in op.weights]
    tables = [size for size in sizes if size > ADDRESS_BYTES and sizes.count(size) > 1]
    is_rotated = bool(tables) or sum(len(each.shape) == STATE_AXES - 1 and each.dtype == "float" for each in fed) > 1
    if apart and apart[0].shape[1] > 1:
        blocks = [*turned, *(turned[:2] if is_rotated else ())]
        yield *blocks, workspace_bytes - sum(blocks)


def _scores_and_mask(graph: Graph, op: Op, workspace_bytes: int, rules: WorkspaceRules) -> Iterator[Blocks]:
    """Scores of all items and heads, and a mask for one, where with it there are as many as heads can be."""
    fed = [graph.tensors[each] for each in op.inputs]
    if not _are_attended(fed[:2]):
        return
    mask_bytes = fed[0].shape[-2] * fed[min(1, len(fed) - 1)].shape[-2] * FLOAT_BYTES
    of_items_bytes = mask_bytes * fed[0].shape[0]
    # Of three axes the last has all heads; of four the second says how many.
    heads = fed[0].shape[1] if len(fed[0].shape) == RESULT_AXES else 0
    with_mask, without = ((workspace_bytes - each) / max(1, of_items_bytes) for each in (mask_bytes, 0))
    slack = rules.slack_bytes / max(1, of_items_bytes)

    def are_heads(count: float) -> bool:
        whole = round(count)
        is_right = whole == heads if heads else whole > 0 and fed[0].shape[-1] % whole == 0
        return is_right and abs(count - whole) <= slack

    if are_heads(with_mask) and not are_heads(without):
        yield workspace_bytes - mask_bytes, mask_bytes


def _convolution(graph: Graph, op: Op, workspace_bytes: int, rules: WorkspaceRules) -> Iterator[Blocks]:
    """Sums, what is turned round, then columns or addresses."""
    fed, result, channels_last = graph.tensors[op.inputs[0]], graph.tensors[op.outputs[0]], bool(op.domain)
    items, channels = result.shape[0], result.shape[-1 if channels_last else 1]
    if not channels or not items:
        return
    filter_bytes = max((graph.weights[weight].size_bytes for weight in op.weights), default=0)
    places = result.size_bytes // items // channels
    sums_bytes = rules.sum_bytes * result.size_bytes // items
    turned = () if channels_last else (fed.size_bytes // items, result.size_bytes // items)
    rest_bytes = workspace_bytes - sums_bytes - sum(turned)
    if not filter_bytes:
        yield (sums_bytes, *turned, *([rest_bytes] if rest_bytes else ()))
    for read in {1, fed.shape[-1 if channels_last else 1]}:
        addresses_bytes = filter_bytes // channels // max(1, read) * places * ADDRESS_BYTES
        yield (*turned, addresses_bytes)
        yield (sums_bytes, *turned, addresses_bytes)
    yield (sums_bytes, *turned, filter_bytes // channels * places)


def _are_attended(fed: Sequence[Tensor]) -> bool:
    """Whether these can be queries and keys: where keys are weights, a mask takes their place among what is fed."""
    return bool(fed) and all(len(each.shape) in {STATE_AXES, RESULT_AXES} for each in fed)


def _shape_of(tensor: Tensor, axes: int) -> Sequence[int]:
    """Its shape if it has so many axes, else no lengths."""
    return tensor.shape if len(tensor.shape) == axes else (0,) * axes


Rule = Callable[[Graph, Op, int, WorkspaceRules], Iterator[Blocks]]
_RULES: Final[Mapping[tuple[str, str], Rule]] = MappingProxyType(
    {
        ("", "LSTM"): _recurrent,
        ("", "GRU"): _recurrent,
        (_MS, "DynamicQuantizeLSTM"): _recurrent,
        (_MS, "Attention"): _attention,
        (_MS, "QAttention"): _attention,
        (_MS, "MultiHeadAttention"): _many_heads,
        (_MS, "GroupQueryAttention"): _grouped_heads,
        ("", "Attention"): _scores_and_mask,
        ("", "QLinearConv"): _convolution,
        (_MS, "QLinearConv"): _convolution,
        ("", "Softmax"): _two_results,
        ("", "LogSoftmax"): _two_results,
        (_MS, "QLinearSoftmax"): _result_and_rest,
        ("", "LRN"): _result_and_rest,
    }
)
"""By domain and op type."""
