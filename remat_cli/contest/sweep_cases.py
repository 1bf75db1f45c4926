"""What a sweep goes through: budgets in steps, batches, and a case for each of both, which can go anywhere."""

from __future__ import annotations

import hashlib
import re
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from remat_cli.base.errors import ConfigError, RematError
from remat_cli.base.files import WORK_FOLDER, sha256
from remat_cli.base.processes import Tell
from remat_cli.base.progress import Event, Incumbent, Stage, listening
from remat_cli.commands.compile import compile_model
from remat_cli.contest.report.sweep_report import Bounded, Found, SweepRow
from remat_cli.core.values.budget import parse_budget
from remat_cli.onnx_io.read.load import read_proto
from remat_cli.report.compile import CompileReport
from remat_cli.settings.settings import Settings

BUDGETS, STEP_PERCENT = "20..100%", 10
MOST_CASES = 1000


class SweepCase(msgspec.Struct, frozen=True):
    """One compile of a sweep: whoever has the file can do it."""

    model: Path
    settings: Settings
    budget: str
    batch: int | None
    key: str

    @property
    def name(self) -> str:
        """Its budget, and its batch where there are several."""
        return self.budget if self.batch is None else f"batch {self.batch}, {self.budget}"


@dataclass(frozen=True)
class SweepRequest:
    """A model, budgets and batches, who runs the cases, and the file that keeps their rows."""

    model: Path
    budgets: tuple[str, ...]
    batches: tuple[int, ...]
    executor: str
    results: Path
    is_resumed: bool
    svg: Path | None = None


def parse_sweep_budgets(text: str) -> tuple[str, ...]:
    """Budgets from `20..100%`, `20..100%:5` (in steps of 5 %) or a list as `90%,64MiB,min`, as they are written.

    Raises:
        ConfigError: one is no budget, or there are none.
    """
    if found := re.fullmatch(r"\s*(\d+)\s*%?\s*\.\.\s*(\d+)\s*%(?:\s*:\s*(\d+)\s*%?)?\s*", text):
        low, high, step = int(found[1]), int(found[2]), int(found[3] or STEP_PERCENT)
        if not (0 < low <= high <= 100 and step > 0):
            raise ConfigError(f"budgets '{text}': write shares from 1 to 100 %, the smaller first, such as {BUDGETS}")
        return tuple(f"{share}%" for share in range(high, low - 1, -step))
    budgets = tuple(part.strip() for part in text.split(",") if part.strip())
    if not budgets:
        raise ConfigError(f"budgets '{text}' are none: write {BUDGETS} or 90%,64MiB,min")
    for budget in budgets:
        if "=" in budget:
            raise ConfigError(f"budget '{budget}': a sweep is for one device: write {BUDGETS} or 90%,64MiB,min")
        try:
            parse_budget(budget)
        except ConfigError as error:
            raise ConfigError(f"{error}; a range is written {BUDGETS}") from None
    return tuple(dict.fromkeys(budgets))


def parse_batches(text: str | None) -> tuple[int, ...]:
    """Batches from `1..64` (doubling) or `1,8,24`; none where nothing is asked.

    Raises:
        ConfigError: it is neither.
    """
    if text is None:
        return ()
    if found := re.fullmatch(r"\s*(\d+)\s*\.\.\s*(\d+)\s*", text):
        low, high = int(found[1]), int(found[2])
        if 0 < low <= high:
            sizes = []
            while low < high:
                sizes.append(low)
                low *= 2
            return (*sizes, high)
    elif re.fullmatch(r"\s*[1-9]\d*\s*(,\s*[1-9]\d*\s*)*", text):
        return tuple(dict.fromkeys(int(part) for part in text.split(",")))
    raise ConfigError(f"batch '{text}' is no list of sizes: write 1..64 (doubling) or 1,8,24")


def sweep_cases(request: SweepRequest, settings: Settings) -> tuple[SweepCase, ...]:
    """A case for each batch and budget, the smallest budget last: what others found then helps it most.

    Raises:
        ModelError: the model cannot be read.
        ConfigError: its batch is not open, or there are too many cases.
    """
    model, name, cases = request.model.resolve(), "", []
    if request.batches:  # they bind the first dimension of the first input that leaves it open
        graph = read_proto(model).graph
        weights = {weight.name for weight in graph.initializer}
        inputs = (value for value in graph.input if value.name not in weights)
        first = (value.type.tensor_type.shape.dim[:1] for value in inputs)
        name = next((dim.dim_param for dims in first for dim in dims if dim.dim_param), "")
        if not name:
            raise ConfigError(f"--batch: no input of {model} leaves its first dimension open under a name")
    digest = sha256(model)
    for batch in request.batches or (None,):
        own = settings if batch is None else msgspec.structs.replace(settings, dims={**settings.dims, name: batch})
        for budget in request.budgets:
            asked = msgspec.structs.replace(own, budget=parse_budget(budget), output=None, plan=None, svg=None)
            told = repr((digest, msgspec.structs.replace(asked, force=False, cache_dir=Path(), work_dir=None)))
            cases.append(SweepCase(model, asked, budget, batch, hashlib.sha256(told.encode()).hexdigest()))
    if len(cases) > MOST_CASES:
        raise ConfigError(f"{len(cases)} cases are too many: at most {MOST_CASES}, write fewer --budgets or --batch")
    return tuple(cases)


def solve_sweep_case(case: SweepCase, tell: Tell) -> SweepRow:
    """Compile a case in a folder that goes again; an error becomes a row."""
    began = time.monotonic()

    def passed_on(event: Event) -> None:
        if isinstance(event, Stage | Incumbent):
            tell(str(event))

    with tempfile.TemporaryDirectory(prefix=f"{WORK_FOLDER}sweep_") as folder:
        output = Path(folder) / "case.onnx"
        settings = msgspec.structs.replace(case.settings, output=output, plan=Path(folder) / "case.plan.json")
        try:
            report = compile_model(case.model, settings, listening(passed_on))
        except RematError as error:
            row = SweepRow(key=case.key, budget=case.budget, batch=case.batch, found="failed", message=str(error))
        else:
            row = row_of(case, report)
    return msgspec.structs.replace(row, seconds=round(time.monotonic() - began, 1))


EXITS: dict[int, Found] = {0: "plan", 3: "impossible", 5: "unkept"}


def row_of(case: SweepCase, report: CompileReport) -> SweepRow:
    """What a compile found, as a row."""
    solution, seen = report.solution, report.verification
    has_plan = solution.time is not None
    found = EXITS.get(report.exit_code, "unkept" if has_plan and report.exit_code == 4 else "none")
    changeable = solution.baseline_peak_bytes - solution.fixed_bytes
    share = 100 * (solution.budget_bytes - solution.fixed_bytes) / changeable if changeable else None
    bounds: Bounded = "least" if case.budget.lower() == "min" else "live"
    if report.asked.process_budget_bytes is not None:
        bounds = "process"
    measured: Any = None if seen is None else getattr(seen, "measured_overhead_percent", None)
    return SweepRow(
        key=case.key,
        budget=case.budget,
        batch=case.batch,
        found=found,
        bounds=bounds,
        budget_percent=share,
        budget_bytes=solution.budget_bytes,
        peak_bytes=solution.peak_bytes if has_plan else None,
        original_bytes=solution.baseline_peak_bytes,
        process_bytes=report.asked.process_bytes if has_plan else None,
        overhead_percent=solution.overhead_percent,
        measured_overhead_percent=measured,
        split=len(getattr(report, "regions", ())),
        recomputed_ops=solution.recomputed_ops or 0,
        message=getattr(report, "split_obstacle", None) or "",
    )
