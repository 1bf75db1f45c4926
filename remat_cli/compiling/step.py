"""From a forward model to a training step and its first state, as files."""

from pathlib import Path

from remat_cli import __version__
from remat_cli.autodiff.forward import Rebatch
from remat_cli.autodiff.step import RATE, TrainingStep, build_step
from remat_cli.base import progress as stages
from remat_cli.base.progress import Progress
from remat_cli.core.values.conditions import Conditions
from remat_cli.core.values.training import StepPaths, TrainOptions
from remat_cli.onnx_io.read.load import STATE_FILE_KEY, DimBindings, load, save
from remat_cli.onnx_io.write.rewrite import set_model_metadata
from remat_cli.runtime.sessions.array_file import write_arrays


def make_step(model: Path, options: TrainOptions, conditions: Conditions, progress: Progress) -> TrainingStep:
    """The training step of a model as the options ask for it.

    Raises:
        InputError: the model or the options cannot be used, or an op has no gradient rule.
    """
    bindings = DimBindings(conditions.dims, conditions.input_shapes, options.batch, summed=conditions.summed)
    source = load(model, bindings, has_custom_ops=bool(conditions.custom_ops))
    if source.converted is not None:
        progress.note(source.converted)
    progress.stage(stages.DIFFERENTIATING)
    # What the batch was in the file, where it was a number and is another one now.
    batch = options.batch
    rebatch = None
    if batch is not None:
        firsts = {port.shape[0] for port in source.interface.inputs if port.shape is not None and len(port.shape)}
        numbers = {first for first in firsts if isinstance(first, int)}
        if len(numbers) == 1 and numbers != {batch}:
            rebatch = Rebatch(numbers.pop(), batch)
    step = build_step(source.ir, options, seed=conditions.seed, batch=rebatch)
    set_model_metadata(step.model, "remat.version", __version__)
    set_model_metadata(step.model, "remat.source_sha256", source.sha256)
    return step


def write_step(step: TrainingStep, paths: StepPaths) -> None:
    """Write the step and its first state, each whole or not at all, the state first."""
    write_arrays(paths.state, step.state)
    set_model_metadata(step.model, STATE_FILE_KEY, paths.state.name)
    save(step.model, paths.step)


def step_snippet(step: TrainingStep, paths: StepPaths, compiled: str | None) -> str:
    """Python that trains with the step, ready to paste."""
    inputs = {value.name: value for value in step.model.graph.inputs}
    data = (*step.facts.inputs, *filter(None, [step.facts.target]))
    # Name, element type and shape of each input, as numpy writes them.
    kinds = {name: inputs[name].dtype for name in data}
    described = (
        f"'{name}' {'?' if kind is None else kind.numpy()} {list(inputs[name].shape or ())}"
        for name, kind in kinds.items()
    )
    rate = ', "learning_rate": np.array(0.001, np.float32)' if RATE in inputs else ""
    return (
        "import numpy as np\nimport onnxruntime as ort\n\n"
        "options = ort.SessionOptions()\n"
        "options.enable_mem_pattern = False  # else later runs take one block for all tensors\n"
        f'path = "{Path(compiled or paths.step).as_posix()}"\n'
        'session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])\n'
        "names = [output.name for output in session.get_outputs()]\n"
        f'state = dict(np.load("{paths.state.as_posix()}"))\n'
        f"# each batch is a dict of numpy arrays: {', '.join(described)}\n"
        "for batch in batches:\n"
        f"    results = dict(zip(names, session.run(None, {{**state, **batch{rate}}})))\n"
        "    for name in state:  # into the arrays that are there: new ones would be there beside them\n"
        '        state[name][...] = results[f"{name}.next"]\n'
        f'    print(results["{step.facts.loss}"])\n'
        "    results.clear()  # gives the runtime its memory back\n"
    )
