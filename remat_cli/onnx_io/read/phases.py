"""Marks ops for people and tools: forward, backward or update, and where and when each op runs."""

from collections.abc import Mapping, Sequence

import onnx_ir as ir

PHASE_KEY = "remat.phase"
PHASES = ("none", "forward", "backward", "update")


def carry_phases(before: ir.Model, after: ir.Model) -> ir.Model:
    """Mark the ops of an optimised model as they were marked before it was optimised. In place; returns `after`.

    Results keep their names. An op whose results are all new belongs to the latest phase that it reads from.
    """
    # Phase of each result of the marked ops; names that are no phase are left for the graph to refuse.
    marked = ((node, node.metadata_props.get(PHASE_KEY)) for node in before.graph)
    made: dict[str | None, str] = {
        value.name: phase for node, phase in marked if phase in PHASES for value in node.outputs if value.name
    }
    if not made:
        return after
    for node in after.graph:
        phases = [made[value.name] for value in node.outputs if value.name in made]
        phases = phases or [made[value.name] for value in node.inputs if value is not None and value.name in made]
        phase = max(phases, key=PHASES.index, default=PHASES[0])
        if phase != PHASES[0]:
            node.metadata_props[PHASE_KEY] = phase
            made.update({value.name: phase for value in node.outputs if value.name not in made})
    return after


DEVICE_KEY, STEP_KEY = "remat.device", "remat.step"


def annotate(model: ir.Model, runs: Mapping[str, Sequence[tuple[str, int]]], about: Mapping[str, str]) -> ir.Model:
    """A copy of a model that says of each op on which devices and at which steps it runs, and `about` of itself.

    `runs` are (device, step) pairs by op name, in order; an op that is recomputed has several.
    """
    noted = model.clone()
    for node in noted.graph:
        times = runs.get(node.name or "", ())
        if times:
            node.metadata_props[DEVICE_KEY] = ",".join(dict.fromkeys(device for device, _ in times))
            node.metadata_props[STEP_KEY] = ",".join(str(step) for _, step in times)
    noted.metadata_props.update(about)
    return noted
