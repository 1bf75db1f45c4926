"""`remat solve`: an abstract benchmark instance, without ONNX."""

from dataclasses import replace
from pathlib import Path

from remat_cli.base import progress as stages
from remat_cli.base.progress import Progress
from remat_cli.commands.asked import search_of
from remat_cli.compiling.ask import ask_abstract
from remat_cli.compiling.page_answer import abstract_terms, answer_paged, paged_solution
from remat_cli.compiling.solve import answer, prepare_kernels
from remat_cli.core.schedule.instance import instance_problem, load_instance
from remat_cli.core.schedule.solver_run import cut_short
from remat_cli.report.solution import solution_report
from remat_cli.report.solve import SolveReport
from remat_cli.settings.settings import Settings, require_budget


def solve_instance(instance: Path, settings: Settings, progress: Progress) -> SolveReport:
    """Solve an abstract benchmark instance; its values may wait in another memory where the settings name one.

    Raises:
        InputError: the instance or the settings cannot be used.
    """
    search, asked = search_of(settings), require_budget(settings).bounding(settings.scope)
    loaded = load_instance(instance)
    question = ask_abstract(instance_problem(loaded), asked, loaded.names)
    if settings.spill is None:
        solved = answer(question, search, progress)
        run = cut_short(solved.run, is_split=False) if progress.should_stop() else solved.run
        solution = solution_report(run, solved.question.problem, solved.question.baseline)
    else:
        problem, limits = question.problem, replace(search.limits, should_stop=progress.should_stop)
        paging = abstract_terms(problem, settings.spill).question(problem)
        prepare_kernels(search.known_pager, problem, progress)
        progress.stage(stages.SOLVING)
        found = answer_paged(paging, search.known_pager, limits)
        if progress.should_stop():
            found = replace(found, run=cut_short(found.run, is_split=False))
        solution = paged_solution(found, problem, question.baseline)
    return SolveReport(instance=str(instance), ops=len(question.problem.ops), budget=question.text, solution=solution)
