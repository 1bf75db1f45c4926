"""Of which blocks a kernel's workspace consists, in the order in which it asks for them.

What is measured of an op is the most that it holds beside its tensors. Mostly that is one block. Two of half the size
are another thing for an arena: the first may get a free place whole, so that the second one needs a new region.
"""

from __future__ import annotations

import msgspec

from remat_cli.core.schedule.graph import Graph, Op


class WorkspaceRules(msgspec.Struct, frozen=True, kw_only=True):
    """`sum_bytes` of a sum of products of bytes; blocks may be `slack_bytes` longer than what they hold, rounded up.

    `turned` are ops that may turn all axes round: a copy of their input and one of their result come after the result.
    `selected` are ops that make two tensors like their result before it.
    """

    sum_bytes: int
    slack_bytes: int
    turned: frozenset[str] = frozenset()
    selected: frozenset[str] = frozenset()


def parts_before_result(graph: Graph, op: Op, workspace_bytes: int, rules: WorkspaceRules) -> tuple[int, ...]:
    """The blocks of an op's workspace, where it asks for them before its result; none where no rule says so."""
    is_before = op.op_type in rules.selected and not op.domain
    return _two_results(graph, op, workspace_bytes, rules) if is_before else ()


def _two_results(graph: Graph, op: Op, workspace_bytes: int, rules: WorkspaceRules) -> tuple[int, ...]:
    """Two blocks of the size of an op's result, if that is what its workspace is."""
    result_bytes = graph.tensors[op.outputs[0]].size_bytes
    is_twice = abs(workspace_bytes - 2 * result_bytes) <= min(rules.slack_bytes, result_bytes)
    return (result_bytes, result_bytes) if is_twice else ()


def workspace_parts(graph: Graph, op: Op, workspace_bytes: int, rules: WorkspaceRules) -> tuple[int, ...]:
    """The blocks of an op's workspace; one where no rule says better.

    A quantised convolution without a kernel of its own for its channels multiplies matrices: its sums come first, then,
    where channels are not last, its input and its result with channels last, then the columns of its input.
    """
    if op.op_type in rules.turned and not op.domain:
        return _two_results(graph, op, workspace_bytes, rules) or (workspace_bytes,)
    if op.op_type != "QLinearConv":
        return (workspace_bytes,)
    result, channels_last = graph.tensors[op.outputs[0]], bool(op.domain)
    channels = result.shape[-1 if channels_last else 1]
    filter_bytes = max((graph.weights[weight].size_bytes for weight in op.weights), default=0)
    if not isinstance(channels, int) or not channels:
        return (workspace_bytes,)
    turned = () if channels_last else (graph.tensors[op.inputs[0]].size_bytes, result.size_bytes)
    columns_bytes = filter_bytes // channels * (result.size_bytes // channels)
    before = (rules.sum_bytes * result.size_bytes, *turned)
    rest_bytes = workspace_bytes - sum(before)
    is_product = rest_bytes > 0 and abs(rest_bytes - columns_bytes) <= rules.slack_bytes
    return (*before, rest_bytes) if is_product else (workspace_bytes,)
