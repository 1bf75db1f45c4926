"""The first line of a report: whether what was asked for holds, with figures, bits and the price in time."""

import msgspec

from remat_cli.base.units import format_bytes
from remat_cli.core.values.promises import Asked, Bounds, CheaperBudget, fits, is_dear
from remat_cli.core.values.verification import OneModelSeen, Verification
from remat_cli.report.style import Style, plural

WHERE: dict[Bounds, str] = {"live": "live", "process": "in the process"}


class Need(msgspec.Struct, frozen=True, kw_only=True):
    """What is needed of what a budget bounds, and was before; `memory` is empty where there is one only."""

    needed_bytes: int
    budget_bytes: int
    bounds: Bounds = "live"
    original_bytes: int | None = None
    memory: str = ""

    @property
    def fits(self) -> bool:
        """Whether it is within the budget."""
        return fits(self.needed_bytes, self.budget_bytes)


class Price(msgspec.Struct, frozen=True, kw_only=True):
    """What a plan costs in time, in percent (None: not known), and the next cheaper budget that is known.

    `noise` says how far measured times may be off, and within `noise_percent` they decide nothing. `is_looked_up`:
    cheaper budgets were looked for.
    """

    predicted_percent: float | None
    measured_percent: float | None = None
    noise: str = ""
    noise_percent: float = 0.0
    cheaper: CheaperBudget | None = None
    is_looked_up: bool = True

    @property
    def is_dear(self) -> bool:
        """Whether it is so much, as predicted or as measured beyond what noise explains, that it is said first."""
        measured = self.measured_percent
        return is_dear(self.predicted_percent, None if measured is None else measured - self.noise_percent)


class ReportVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """What is said first: what is needed, measured or predicted, promises that were not kept, bits, and the price.

    `broken` are lines about promises that count, `warned` about predictions that nobody asked to be kept. `no_plan`
    says why there is none, `advice` what to do where it does not fit. `is_open`: there may well be a plan.
    """

    needs: tuple[Need, ...] = ()
    is_measured: bool = False
    broken: tuple[str, ...] = ()
    warned: tuple[str, ...] = ()
    bits: str = ""
    price: Price | None = None
    no_plan: str = ""
    advice: str = ""
    is_open: bool = False

    @property
    def fits(self) -> bool:
        """Whether there is a plan, all that was asked of it was kept, and it is within its budgets."""
        return not self.no_plan and not self.broken and all(need.fits for need in self.needs)

    @property
    def text(self) -> str:
        """The line."""
        if self.no_plan:
            return f"{'not known' if self.is_open else 'does not fit'}: {self.no_plan}"
        if self.broken:
            return f"NOT KEPT: {_first_of(self.broken)}"
        parts = [", ".join(map(_need_text, self.needs)), self.bits, *([_price_text(self.price)] if self.price else [])]
        head = ("fits" if self.fits else "does not fit") + ("" if self.is_measured else " by prediction")
        line = f"{head}: {', '.join(filter(None, parts))}"
        if not self.fits:
            return f"{line}{f'; {self.advice}' if self.advice else ''}"
        return f"{line}; WARNING, not kept: {_first_of(self.warned)}" if self.warned else line

    def line(self, style: Style) -> str:
        """The line in its colour."""
        return style.paint(self.text, "bad" if not self.fits else "warn" if self.warned else "good")


def _first_of(lines: tuple[str, ...]) -> str:
    """The first line; how many more there are."""
    return lines[0] + (f" (and {plural(len(lines) - 1, 'more promise')})" if len(lines) > 1 else "")


def _need_text(need: Need) -> str:
    """`23.10 MiB of 24.00 MiB in the process (was 55.20 MiB)`."""
    was = "" if need.original_bytes is None else f" (was {format_bytes(need.original_bytes)})"
    where = need.memory or WHERE[need.bounds]
    where = f"in '{need.memory}'" if need.memory else where
    return f"{format_bytes(need.needed_bytes)} of {format_bytes(need.budget_bytes)} {where}{was}"


def _price_text(price: Price) -> str:
    """`+3 % time`; where that is much, the next cheaper budget too."""
    told = price.predicted_percent if price.measured_percent is None else price.measured_percent
    if told is None:
        return ""
    text = f"{told:+.0f} % time"
    if price.measured_percent is not None and price.noise:
        text += f" ({price.noise})"
    if not price.is_dear:
        return text
    if price.measured_percent is not None and price.predicted_percent is not None:
        text += f", predicted {price.predicted_percent:+.0f} %"
    text += ": DEAR"
    if price.cheaper is not None:
        known = f"--budget {price.cheaper.share_percent}% is known to take {price.cheaper.overhead_percent:+.0f} %"
        return f"{text}, {known}"
    return f"{text}, no cheaper budget is known" if price.is_looked_up else text


def bits_of(seen: Verification) -> str:
    """What the outputs were found to be."""
    if seen.outputs_identical:
        return "same bits" if seen.is_compared_everywhere else "same bits where they were compared"
    return "outputs within tolerance" if seen.are_outputs_kept else "other outputs"


def session_need(
    seen: OneModelSeen | None, asked: Asked, budget_bytes: int, live_bytes: int, was_bytes: int | None
) -> Need:
    """What one session needs of what was bounded: measured where it was, else as predicted (`live_bytes`)."""
    process = None if seen is None else seen.process_seen
    if asked.process_budget_bytes is not None and process is not None:
        original_bytes = None
        if process.original is not None:
            original_bytes = process.original.counted_bytes(with_mapped=process.with_mapped) + process.input_bytes
        return Need(
            needed_bytes=process.needed_bytes,
            budget_bytes=asked.process_budget_bytes,
            bounds="process",
            original_bytes=original_bytes,
        )
    if asked.process_budget_bytes is not None and asked.process_bytes is not None:
        return Need(needed_bytes=asked.process_bytes, budget_bytes=asked.process_budget_bytes, bounds="process")
    if seen is None:
        return Need(needed_bytes=live_bytes, budget_bytes=budget_bytes, original_bytes=was_bytes)
    return Need(
        needed_bytes=seen.bounded_bytes,
        budget_bytes=budget_bytes,
        original_bytes=seen.original_default_session_peak_bytes,
    )
