"""Constant target shapes of Reshape with one dimension left open, so that the runtime cannot know it beforehand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import onnx_ir as ir

from remat_cli.onnx_io.draft import Draft
from remat_cli.onnx_io.normalise import fresh_name


def free_reshapes(
    steps: tuple[Draft, ...], weights: Mapping[str, ir.TensorProtocol], taken: set[str]
) -> tuple[tuple[Draft, ...], dict[str, ir.TensorProtocol]]:
    """Replace fully known target shapes by ones with -1 in front, which mean the same; also the weights to use."""
    all_weights = dict(weights)
    opened: dict[str, str] = {}
    new: list[Draft] = []
    for step in steps:
        target = _constant_target(step, weights)
        if target and target not in opened:
            values = weights[target].numpy().copy()
            values[0] = -1
            opened[target] = fresh_name(f"{target}/remat_open", taken)
            all_weights[opened[target]] = ir.tensor(values, name=opened[target])
        new.append(replace(step, reads=(step.reads[0], opened[target])) if target else step)
    return tuple(new), all_weights


def _constant_target(step: Draft, weights: Mapping[str, ir.TensorProtocol]) -> str:
    """Name of the constant that gives a Reshape its complete shape, "" for everything else."""
    if step.op_type != "Reshape" or step.domain not in ("", "ai.onnx") or len(step.reads) != 2:
        return ""
    tensor = weights.get(step.reads[1])
    if tensor is None or step.reads[0] in weights or not tensor.size or bool((tensor.numpy() < 1).any()):
        return ""
    return step.reads[1]
