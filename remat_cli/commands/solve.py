"""`remat solve`: an abstract benchmark instance, without ONNX."""

from __future__ import annotations

from pathlib import Path

from remat_cli.base.progress import Progress
from remat_cli.core.instance import instance_problem, load_instance
from remat_cli.report.report import solution_report
from remat_cli.report.solve import SolveReport
from remat_cli.settings.config import Config
from remat_cli.stages.solve import answer, ask, check_solver, prepare_kernels


def solve_instance(instance: Path, config: Config, progress: Progress) -> SolveReport:
    """Solve an abstract benchmark instance.

    Raises:
        InputError: the instance or the settings cannot be used.
    """
    check_solver(config)
    loaded = load_instance(instance)
    question = ask(instance_problem(loaded), config, loaded.names)
    prepare_kernels(config.solver, progress)
    solved = answer(question, config, progress)
    return SolveReport(
        instance=str(instance),
        ops=len(question.problem.ops),
        budget=question.text,
        solution=solution_report(solved.run, solved.question.problem, solved.question.baseline, solved.plan),
    )
