"""From PLAN.json to a program: the models, names and figures that are needed to run a plan."""

from pathlib import Path

from remat_cli.base.errors import ModelError
from remat_cli.base.files import sha256
from remat_cli.compiling.record import find_file
from remat_cli.compiling.runs_on import refuse_other_processors
from remat_cli.compiling.ways import way
from remat_cli.core.files.plan_file import PlanFile
from remat_cli.core.schedule.program import InputSpec, Program


def make_program(read: PlanFile, path: Path, folder: Path) -> Program:
    """Write what a plan needs to be run into a folder.

    Raises:
        ModelError: its model is gone or was changed, the plan does not fit it, or was made for other processors.
    """
    model = find_file(read.output, path, "model")
    if sha256(model) != read.output.sha256:
        raise ModelError(f"{model} is not the model that the plan was written with: compile again")
    refuse_other_processors(read)
    return way(read.kind).run(read, model, folder)


def input_specs(read: PlanFile) -> tuple[InputSpec, ...]:
    """What a caller feeds."""
    tensors = [read.graph.tensors[i] for i in read.graph.model_inputs]
    return tuple(InputSpec(tensor.name, tensor.dtype, tensor.shape) for tensor in tensors)
