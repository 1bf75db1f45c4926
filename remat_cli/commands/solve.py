"""`remat solve`: an abstract benchmark instance, without ONNX."""

from pathlib import Path

from remat_cli.base.progress import Progress
from remat_cli.commands.asked import search_of
from remat_cli.core.instance import instance_problem, load_instance
from remat_cli.report.solution import solution_report
from remat_cli.report.solve import SolveReport
from remat_cli.settings.settings import Settings, require_budget
from remat_cli.stages.ask import ask_abstract
from remat_cli.stages.solve import answer


def solve_instance(instance: Path, settings: Settings, progress: Progress) -> SolveReport:
    """Solve an abstract benchmark instance.

    Raises:
        InputError: the instance or the settings cannot be used.
    """
    search, budget = search_of(settings), require_budget(settings)
    loaded = load_instance(instance)
    question = ask_abstract(instance_problem(loaded), budget, settings.scope, loaded.names)
    solved = answer(question, search, progress)
    return SolveReport(
        instance=str(instance),
        ops=len(question.problem.ops),
        budget=question.text,
        solution=solution_report(solved.run, solved.question.problem, solved.question.baseline),
    )
