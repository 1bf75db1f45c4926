"""What a process holds that runs a file with open sizes as it is, at some sizes, in an ordinary session.

Where a file leaves sizes open the runtime knows less than where they are bound: it folds other shapes, works in place
and uses a dead buffer again only where two shapes have the same names, and so needs other memory, at times twice as
much. So the user's own file is optimised and measured, beside the bound one that a plan is made for.
"""

import hashlib
from dataclasses import replace
from pathlib import Path

from remat_cli.base.progress import Progress
from remat_cli.compiling.ask import CompileRequest
from remat_cli.compiling.platform import Platform
from remat_cli.compiling.prepare import Prepared, facts_of, first_look, types_of
from remat_cli.compiling.process.forecast import model_forecast
from remat_cli.compiling.process.steady import known_dims
from remat_cli.compiling.profile import profile_model
from remat_cli.core.values.profile import Profile
from remat_cli.onnx_io.read.load import inputs_of, prepare_optimized, save_hashed
from remat_cli.onnx_io.read.to_graph import op_signatures, to_graph
from remat_cli.ort_rules.forecast import Forecast
from remat_cli.runtime.sessions.session import optimize


def forecast_of_file(prepared: Prepared, profile: Profile, work: Path, progress: Progress) -> Forecast:
    """What a process holds that loads and runs the user's file as it is, with default options.

    Raises:
        RuntimeFailure: the runtime refuses or fails to run it.
    """
    if not has_open_sizes(prepared) or prepared.runnable is not None:  # what cannot be run tells nothing
        return model_forecast(prepared, profile)
    # Optimise the file without telling the session any sizes, run it once, and keep what that showed.
    raw, path, conditions = work / "as_given.raw.onnx", work / "as_given.onnx", prepared.conditions
    level, threads = conditions.optimization, conditions.intra_op_threads
    optimize(prepared.original_path, raw, level, threads, conditions.custom_ops, conditions.run_seconds)
    reference = prepare_optimized(raw, prepared.source.ir)
    saved_sha256 = save_hashed(reference, path)
    seen = first_look(path, reference, prepared.feeds, conditions)
    facts = facts_of(seen, reference, types_of(inputs_of(prepared.source.ir)))
    known = known_dims(reference, to_graph(reference, facts.types), conditions)
    graph = to_graph(reference, facts.types, known)
    # The hash of the file at these sizes: what is measured of it holds for no others.
    sizes = sorted((name, array.shape) for name, array in prepared.feeds.items())
    given = replace(
        prepared,
        reference=reference,
        reference_path=path,
        reference_sha256=hashlib.sha256(f"{saved_sha256} {sizes}".encode()).hexdigest(),
        graph=graph,
        signatures=op_signatures(reference, graph, prepared.original.key),
        facts=facts,
    )
    return model_forecast(given, profile_model(given, conditions, progress).profile)


def plain_process_bytes(
    prepared: Prepared, platform: Platform, request: CompileRequest, work: Path, progress: Progress
) -> int | None:
    """What a process of the user's file as it is needs by prediction, inputs included; None: no process is bounded.

    Raises:
        RuntimeFailure: the runtime refuses or fails to run it.
    """
    if request.process_budget_bytes is None:
        return None
    memory = forecast_of_file(prepared, platform.profile, work, progress).process
    return memory.counted_bytes(with_mapped=request.count_mapped) + prepared.graph.input_bytes


def has_open_sizes(prepared: Prepared) -> bool:
    """Whether the file leaves sizes of what it is fed open, and is not one of ours, whose form makes up for that."""
    shapes = (port.shape for port in prepared.source.interface.inputs)
    is_open = any(shape is None or not all(isinstance(dim, int) for dim in shape) for shape in shapes)
    return is_open and prepared.source.form is None
