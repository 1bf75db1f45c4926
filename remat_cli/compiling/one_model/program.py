"""The program of a plan that is one model: one session under the plan's exact options."""

from pathlib import Path

import msgspec

from remat_cli.compiling.program import input_specs
from remat_cli.core.files.plan_file import PlanFile
from remat_cli.core.schedule.graph import Tensor
from remat_cli.core.schedule.program import Program, SessionAction, Value, WeightUse
from remat_cli.core.schedule.timeline import timeline
from remat_cli.devices.provider_table import named_spec
from remat_cli.onnx_io.read.load import outputs_of, prepare_optimized
from remat_cli.onnx_io.write.segment_models import whole_segment


def whole_program(read: PlanFile, path: Path) -> Program:
    """The rewritten model of a plan for one device, in one session under the plan's exact options."""
    model = prepare_optimized(path)
    inputs = input_specs(read)
    segment = whole_segment(model, path.name, tuple(spec.name for spec in inputs), read.promise.order)
    spec = named_spec(read.device)
    if not spec.threads:
        spec = msgspec.structs.replace(spec, threads=read.promise.exact_session.intra_op_num_threads)
    kept: dict[str, Tensor | WeightUse] = {tensor.name: tensor for tensor in read.graph.tensors if tensor.kept}
    kept |= {name: use for name, use in segment.weights.items() if name in segment.makes}
    # Workspace in bytes of each op that runs, repeated ones too, by its name in the rewritten model.
    costs = {cost.name: cost.workspace_bytes for cost in read.profile.ops}
    workspace = {
        name: costs[read.graph.ops[op].name] for name, op in zip(_ops(read), read.schedule.op_ids(), strict=True)
    }
    action = SessionAction(
        device=0,
        segment=segment,
        workspace_bytes=workspace,
        planned_ns=(0, read.solved.time_ns),
        planned_ops_ns=dict(zip(_ops(read), timeline(read.problem(), read.schedule), strict=True)),
        planned_ops_bytes=dict(zip(read.promise.order, read.promise.memory_bytes, strict=True)),
        planned_bytes=(read.promise.peak_bytes,),
    )
    return Program(
        folder=str(path.resolve().parent),
        devices=(spec,),
        memories=(spec.memory,),
        memory_of=(0,),
        budgets=(read.request.budget_bytes,),
        actions=(action,) if segment.makes else (),  # outputs that are inputs are the caller's already
        inputs=inputs,
        outputs=outputs_of(model),
        values={name: Value(kept[name].dtype, kept[name].shape, kept[name].size_bytes) for name in segment.makes},
        planned_ns=read.solved.time_ns,
        planned_fixed_bytes=(read.promise.fixed_bytes,),
        custom_ops=read.request.custom_ops,
    )


def _ops(read: PlanFile) -> list[str]:
    """Names of the ops that run in a rewritten model, gates left out."""
    gates = set(read.promise.gates)
    return [name for name in read.promise.order if name not in gates]
