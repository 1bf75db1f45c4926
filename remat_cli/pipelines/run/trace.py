"""A pipeline's run as a trace for ui.perfetto.dev: one track per device, one counter per stage."""

from collections.abc import Sequence
from typing import Any

import msgspec

from remat_cli.pipelines.plan.orders import TurnSpan
from remat_cli.pipelines.plan.schedule_file import PipelineFile


def pipeline_trace(plan: PipelineFile, spans: Sequence[TurnSpan]) -> bytes:
    """The trace as JSON; times begin with the first turn."""
    began = min((span.start_ns for span in spans), default=0)
    names = [
        {"name": "thread_name", "ph": "M", "pid": 1, "tid": device, "args": {"name": f"device {device}"}}
        for device in range(len(plan.devices))
    ]
    events: list[dict[str, Any]] = []
    for span in spans:
        start, takes = (span.start_ns - began) / 1000, (span.end_ns - span.start_ns) / 1000
        about = {"stage": span.stage, "micro_batch": span.batch, "alive": span.alive, "held_bytes": span.held_bytes}
        text = f"{span.kind}{span.batch} of stage {span.stage}"
        events.append({"name": text, "ph": "X", "pid": 1, "tid": span.device, "ts": start, "dur": takes, "args": about})
        counter = {"name": f"alive in stage {span.stage}", "ph": "C", "pid": 1, "tid": 0, "ts": start + takes}
        events.append({**counter, "args": {"micro-batches": span.alive}})
    return msgspec.json.encode({"traceEvents": [*names, *events], "displayTimeUnit": "ms"})
