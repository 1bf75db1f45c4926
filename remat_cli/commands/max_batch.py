"""The largest batch whose training step fits a budget, with at most one forward pass computed again."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from remat_cli.base.errors import ConfigError
from remat_cli.base.progress import Event, Incumbent, Progress
from remat_cli.commands.asked import refuse_ranges, request_of
from remat_cli.commands.train import compile_settings
from remat_cli.compiling.ask import CompileRequest, ask
from remat_cli.compiling.one_model.plan import plan_one_model
from remat_cli.compiling.plan import within_overhead
from remat_cli.compiling.planned import Refused
from remat_cli.compiling.platform import Platform
from remat_cli.compiling.prepare import Prepared, prepare, work_folder
from remat_cli.compiling.profile import profile_model
from remat_cli.compiling.step import make_step, write_step
from remat_cli.core.schedule.solver_run import Status
from remat_cli.core.values.training import StepPaths
from remat_cli.report.training import BatchProbe, MaxBatchReport
from remat_cli.settings.devices import only_device
from remat_cli.settings.settings import Settings, require_budget
from remat_cli.settings.train import check_train

MOST_BATCH = 2**20


def find_max_batch(model: Path, settings: Settings, progress: Progress) -> MaxBatchReport:
    """Search over the batch: the largest one that keeps everything, and the largest one with recomputation.

    Every answer is a plan of the training step with that batch, measured op by op and judged. Memory grows with the
    batch, so each search doubles the batch until it no longer fits, and halves the gap from there. Where no plan of
    whole ops fits, the step runs by items of its batch, and in other tiles (`--split off`: never). Where no plan at all
    can fit the next larger batch, that is a proof that there is no more.

    Raises:
        InputError: the model or the settings cannot be used.
        RuntimeFailure: ONNX Runtime refuses a step.
    """
    started = time.monotonic()
    check_train(settings.train)
    refuse_ranges(settings, "a training step is")
    budget = require_budget(settings)
    if budget.for_device(only_device(settings.devices).name).kind != "bytes":
        raise ConfigError(f"budget '{budget.text}' depends on the batch: write it in bytes, such as --budget 2GiB")
    if settings.train.batch is not None:
        raise ConfigError(f"--batch {settings.train.batch}: max-batch looks for the batch itself")
    request = request_of(compile_settings(settings))
    with work_folder(model, settings.work_dir, settings.memory_limit_bytes) as work:
        search = _Search(model, settings, request, work, progress)
        keeping = search.largest(search.keeps_all, 1)
        planned = search.largest(search.has_plan, max(keeping, 1))
        best = search.probes.get(planned)
    return MaxBatchReport(
        model=str(model),
        budget=budget.text,
        budget_bytes=search.budget_bytes,
        keep_all_batch=keeping or None,
        max_batch=planned or None,
        best=best,
        probes=tuple(search.probes[batch] for batch in sorted(search.probes)),
        seconds=time.monotonic() - started,
        interrupted=progress.should_stop(),
    )


@dataclass
class _Search:
    """Probes of single batches, each made once; `latest` is what was prepared last."""

    model: Path
    settings: Settings
    request: CompileRequest
    work: Path
    progress: Progress
    probes: dict[int, BatchProbe] = field(default_factory=dict)
    budget_bytes: int = 0
    latest: tuple[int, Prepared, Platform] | None = None

    def largest(self, fits: Callable[[int], bool], first: int) -> int:
        """The largest batch that fits, 0 if none does; `first` is where to begin."""
        low, high = 0, first
        while high <= MOST_BATCH and fits(high):
            low, high = high, 2 * high
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if fits(middle) else (low, middle)
        return low

    def keeps_all(self, batch: int) -> bool:
        """Whether the step fits as it is."""
        return self._probe(batch).baseline_peak_bytes <= self.budget_bytes

    def has_plan(self, batch: int) -> bool:
        """Whether a plan fits and costs at most one forward pass."""
        probe = self._probe(batch)
        if probe.fits is not None:
            return probe.fits
        most = 100 * probe.forward_ns / probe.baseline_ns
        # The solver stops once a plan costs no more than one forward pass.
        enough: list[Incumbent] = []

        def tell(event: Event) -> None:
            if isinstance(event, Incumbent) and event.overhead_percent is not None:
                enough.extend([event] if event.overhead_percent <= most else [])
            self.progress.tell(event)

        progress = Progress(tell, lambda: bool(enough) or self.progress.should_stop())
        found = plan_one_model(*self._prepared(batch), self.request, self.work, progress)
        if enough and isinstance(found, Refused) and not self.progress.should_stop():
            # What was enough by the solver did not fit once it was written, and nothing else was looked for.
            found = plan_one_model(*self._prepared(batch), self.request, self.work, self.progress)
        planned = within_overhead(found, self.request.search)
        if isinstance(planned, Refused):
            is_ruled_out = isinstance(found, Refused) and found.answer.run.status is Status.INFEASIBLE
            probe = msgspec.structs.replace(probe, fits=False, is_ruled_out=is_ruled_out)
        else:
            plan = planned.written.plan
            overhead = 100 * (plan.time_ns / probe.baseline_ns - 1)
            fits = overhead <= most and plan.peak <= self.budget_bytes
            probe = msgspec.structs.replace(probe, fits=fits, peak_bytes=plan.peak, overhead_percent=overhead)
        self.probes[batch] = probe
        return bool(probe.fits)

    def _probe(self, batch: int) -> BatchProbe:
        """The step of a batch as it is."""
        if batch not in self.probes:
            platform = self._prepared(batch)[1]
            question = ask(platform, self.request)
            before, self.budget_bytes = question.baseline, question.budget_bytes
            costs = zip(platform.graph.ops, platform.profile.ops, strict=True)
            forward_ns = sum(cost.time_ns for op, cost in costs if op.phase == "forward")
            probe = BatchProbe(batch, before.peak, before.time_ns, forward_ns)
            if before.peak <= self.budget_bytes:
                probe = msgspec.structs.replace(probe, fits=True, peak_bytes=before.peak, overhead_percent=0.0)
            self.probes[batch] = probe
        return self.probes[batch]

    def _prepared(self, batch: int) -> tuple[Prepared, Platform]:
        """The step of a batch, written and measured op by op."""
        if self.latest is None or self.latest[0] != batch:
            options = msgspec.structs.replace(self.settings.train, batch=batch)
            self.progress.note(f"batch {batch}")
            paths = StepPaths(self.work / "step.onnx", self.work / "step.state.npz")
            step = make_step(self.model, options, self.settings.conditions, self.progress)
            write_step(step, paths)
            forgets_costs = self.request.conditions.forgets_costs and self.latest is None
            conditions = msgspec.structs.replace(self.request.conditions, forgets_costs=forgets_costs)
            prepared = prepare(paths.step, conditions, self.work, self.progress)
            self.latest = (batch, prepared, profile_model(prepared, conditions, self.progress))
        return self.latest[1:]
