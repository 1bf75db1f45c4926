"""The order of nodes in the file, such that a default session runs the step as it was written."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir


def arranged(nodes: Sequence[ir.Node]) -> list[ir.Node]:
    """Ops that nobody reads go to the end, the first one last.

    A default session searches depth first, from the last op that nobody reads. In written order that would be the
    update of the first layer, which needs the whole backward pass, and all other gradients would wait for it.
    """
    ends = [node for node in nodes if not any(value.uses() for value in node.outputs)]
    rest = [node for node in nodes if any(value.uses() for value in node.outputs)]
    return [*rest, *reversed(ends)]
