"""Write into a model where its ops run, for people and tools; a session ignores it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx_ir as ir

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
