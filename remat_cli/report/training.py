"""What `train` and `max-batch` found out, and how people read it."""

import msgspec

from remat_cli.base.errors import EXIT_INTERRUPTED
from remat_cli.base.units import format_bytes
from remat_cli.core.values.budget import describe_bytes
from remat_cli.core.values.training import StepFacts
from remat_cli.report.compile import CompileReport
from remat_cli.report.pictures.shown import Shown
from remat_cli.report.solution import EXIT_DONE, EXIT_IMPOSSIBLE, EXIT_NOT_FOUND
from remat_cli.report.style import Style, columns, duration, percent, plural, shorten

HEADINGS = ("batch", "fits", "peak", "peak, keep all", "extra time", "one forward pass", "time, keep all")


class TrainReport(Shown, msgspec.Struct, frozen=True, kw_only=True):
    """What `train` wrote: the step, its first state, and with a budget what compiling it gave."""

    model: str
    step: str
    state: str
    facts: StepFacts
    snippet: str
    compiled: CompileReport | None = None
    seconds: float = 0.0

    @property
    def exit_code(self) -> int:
        """That of compiling, where it was asked for."""
        return EXIT_DONE if self.compiled is None else self.compiled.exit_code

    def lines(self, style: Style) -> list[str]:
        """What the step trains and takes, what compiling it gave, and the loop that runs it."""
        facts = self.facts
        lines = [style.paint(f"{self.model} -> {self.step}", "strong")]
        lines.append(
            f"{facts.parameters:,} parameters in {plural(len(facts.trained), 'tensor')}; "
            f"{plural(facts.forward_ops, 'op')} forward, {facts.backward_ops} backward, {facts.update_ops} update"
        )
        if facts.frozen:
            lines.append(f"not trained: {shorten(', '.join(facts.frozen), 100)}")
        lines += [f"note: {note}" for note in facts.notes]
        lines += ["", f"step  {self.step}", f"state {self.state}"]
        if self.compiled is not None:
            lines += ["", *msgspec.structs.replace(self.compiled, snippet="", one_line="").lines(style)]
        if self.exit_code == EXIT_DONE:
            lines += [
                "",
                "Train with it:",
                "",
                *(f"    {line}".rstrip() for line in self.snippet.rstrip().splitlines()),
            ]
        return lines


class BatchProbe(msgspec.Struct, frozen=True):
    """What was found for one batch. `fits` is None where no plan was looked for; `forward_ns` is the forward pass.

    `is_ruled_out`: it is proved that no plan fits, in any order, however often ops run and however they are cut.
    """

    batch: int
    baseline_peak_bytes: int
    baseline_ns: int
    forward_ns: int
    fits: bool | None = None
    peak_bytes: int | None = None
    overhead_percent: float | None = None
    is_ruled_out: bool = False


class MaxBatchReport(Shown, msgspec.Struct, frozen=True, kw_only=True):
    """The largest batches that fit: keeping everything, and with at most one forward pass computed again.

    None where not even one sample fits. `best` is the probe of `max_batch`; `probes` are all, by batch. `interrupted`:
    Ctrl-C ended the search, so that larger batches may fit.
    """

    model: str
    budget: str
    budget_bytes: int
    keep_all_batch: int | None
    max_batch: int | None
    best: BatchProbe | None
    probes: tuple[BatchProbe, ...]
    seconds: float = 0.0
    interrupted: bool = False

    @property
    def is_proved(self) -> bool:
        """Whether the next larger batch is ruled out, and with it all beyond: they need no less."""
        return any(probe.batch == (self.max_batch or 0) + 1 and probe.is_ruled_out for probe in self.probes)

    @property
    def exit_code(self) -> int:
        """Impossible where not even one sample can fit; not found where none does without a proof."""
        if self.interrupted:
            return EXIT_INTERRUPTED
        if self.max_batch:
            return EXIT_DONE
        return EXIT_IMPOSSIBLE if self.is_proved else EXIT_NOT_FOUND

    def lines(self, style: Style) -> list[str]:
        """The two batches, how they compare, and every batch that was tried."""
        lines = [style.paint(self.model, "strong"), f"budget {self.budget} = {describe_bytes(self.budget_bytes)}", ""]
        lines += ["interrupted: larger batches than these may fit", ""] if self.interrupted else []
        lines.append(f"largest batch, keep all    {self.keep_all_batch or 'none: not even one sample fits'}")
        times = (
            f"  ({self.max_batch / self.keep_all_batch:.2f} times)" if self.keep_all_batch and self.max_batch else ""
        )
        lines.append(f"largest batch, recomputing {self.max_batch or 'none was found'}{times}")
        if self.is_proved:
            lines.append(f"not more: batch {(self.max_batch or 0) + 1} is proved not to fit, with any plan")
        elif self.max_batch and not self.interrupted:
            lines.append("that larger ones do not fit is not proved: a longer --time-limit may find more")
        if self.probes and not self.max_batch:
            needed = f"one sample needs {format_bytes(self.probes[0].baseline_peak_bytes)} when everything is kept"
            lines.append(f"{needed}: raise --budget, or the solver's --time-limit")
        rows = [HEADINGS]
        for probe in self.probes:
            row = (
                str(probe.batch),
                "" if probe.fits is None else "yes" if probe.fits else "no",
                "" if probe.peak_bytes is None else format_bytes(probe.peak_bytes),
                format_bytes(probe.baseline_peak_bytes),
                "" if probe.overhead_percent is None else percent(probe.overhead_percent),
                percent(100 * probe.forward_ns / probe.baseline_ns if probe.baseline_ns else None),
                duration(probe.baseline_ns),
            )
            rows.append(row)
        return [*lines, "", *columns(rows, "><>>>>>")]
