"""What a measured run teaches about ops: where it left the judge's curve, why, and the facts that follow from it.

The judge knows the runtime by rules that were measured one op at a time. Where a rule is wrong for an op of some model,
the counters of a run show it at that op: it took more or less than was predicted, or a buffer went later or earlier.
What can be said of the op becomes a correction, which holds for every op of the same signature from then on.
"""

from collections.abc import Sequence
from typing import Literal

import msgspec

from remat_cli.core.schedule.graph import Graph

Cause = Literal[
    "an in-place share was not taken",
    "an in-place share was taken",
    "a view was copied",
    "a buffer was held longer",
    "a buffer was freed earlier",
    "workspace",
    "a kernel took another amount",
]
Session = Literal["exact", "default"]


class Learnt(msgspec.Struct, frozen=True):
    """One thing that a measured run showed otherwise than predicted.

    `op` is where the run first left the prediction, `predicted_bytes` and `measured_bytes` what activations (of
    workspace: the workspace) took during it, `session` the options of that run. `is_corrected`: the rule was set right
    for ops of this kind, so that the judge predicts what was measured; else the budget was given room.
    """

    op: str
    op_type: str
    cause: Cause
    session: Session
    predicted_bytes: int
    measured_bytes: int
    is_corrected: bool = False


class Correction(msgspec.Struct, frozen=True, omit_defaults=True):
    """What an op does otherwise than its row of facts says; positions are among the op's distinct inputs and outputs.

    `apart`: results that do not take the buffer of an input in place. `shares`: (input, result) pairs that do.
    `copies`: results that are no view, but in a buffer of their own.
    """

    apart: tuple[int, ...] = ()
    shares: tuple[tuple[int, int], ...] = ()
    copies: tuple[int, ...] = ()

    def and_also(self, more: "Correction") -> "Correction":
        """Join two corrections; where they disagree, the newer holds."""
        apart = {*self.apart, *more.apart} - {result for _, result in more.shares}
        shares = {pair for pair in (*self.shares, *more.shares) if pair[1] not in more.apart}
        return Correction(tuple(sorted(apart)), tuple(sorted(shares)), tuple(sorted({*self.copies, *more.copies})))


NOTHING = Correction()


def corrected(graph: Graph, corrections: Sequence[Correction]) -> Graph:
    """The graph with what was learnt of each of its ops, in their order."""
    if all(each == NOTHING for each in corrections):
        return graph
    tensors = list(graph.tensors)
    ops = []
    for op, learnt in zip(graph.ops, corrections, strict=True):
        apart = {op.outputs[position] for position in learnt.apart if position < len(op.outputs)}
        shares = [
            (op.inputs[source], op.outputs[result])
            for source, result in learnt.shares
            if source < len(op.inputs) and result < len(op.outputs)
        ]
        for position in learnt.copies:
            if position < len(op.outputs):
                tensor = op.outputs[position]
                tensors[tensor] = msgspec.structs.replace(tensors[tensor], view_of=None)
        in_place = [pair for pair in op.in_place if pair[1] not in apart]
        in_place += [pair for pair in shares if pair not in in_place and tensors[pair[0]].producer is not None]
        ops.append(msgspec.structs.replace(op, in_place=tuple(in_place)))
    return Graph(tuple(ops), tuple(tensors), graph.weights)
