"""What is believed of earlier measurements: costs that agree with a run here and now, and multiples of a run."""

from collections.abc import Mapping

from remat_cli.compiling.facts import known_facts_of
from remat_cli.compiling.prepare import Prepared
from remat_cli.core.values.noise import TimeNoise
from remat_cli.core.values.profile import OpCost
from remat_cli.runtime.measure.busy import CpuClock, cpu_clock
from remat_cli.runtime.measure.profile_cache import PLAUSIBLE_SHARE
from remat_cli.runtime.measure.profilers import WholeTime, time_apart, time_whole
from remat_cli.runtime.sessions.session import SessionSettings

CALL_NS, OP_CALL_NS = 100_000, 5_000  # of a run and of each op in it, beside the kernels
CHECK_SECONDS = 0.2
MOST_SLOWED = 8
"""How many times as long a run takes at most because other programs are in its way."""


def expected_ns_of(prepared: Prepared, known: Mapping[str, OpCost]) -> int:
    """How long a run takes by the costs that are known of its ops.

    Their sum, or as much more as the run took when this very model was measured.
    """
    sum_ns, measured = sum(known[signature].time_ns for signature in prepared.signatures), prepared.facts.measured
    return sum_ns * measured.run_ns // measured.ops_ns if measured and measured.ops_ns else sum_ns


def is_wrong(prepared: Prepared, expected_ns: int, seen: WholeTime) -> bool:
    """Whether a run takes longer or shorter than expected by more than noise and what lies between ops explain.

    Noise only adds, so a run that takes longer says less.
    """
    share = PLAUSIBLE_SHARE * (1 if expected_ns > seen.time_ns else 2) + seen.noise_percent / 100
    allowed_ns = seen.time_ns * share + CALL_NS + OP_CALL_NS * len(prepared.signatures)
    return abs(expected_ns - seen.time_ns) > allowed_ns


def are_others_in_the_way(before: CpuClock) -> bool:
    """Whether other programs kept the machine busy since some moment."""
    return TimeNoise(None, *cpu_clock().since(before)).is_busy


def is_right_now(prepared: Prepared, expected_ns: int, settings: SessionSettings) -> bool:
    """Whether a run, or a few, take as long as expected: costs from another model or minute are not just believed.

    Runs that take longer say nothing while other programs are in the way, which slow all ops down.

    Raises:
        RuntimeFailure: the runtime refuses or fails to run the model.
    """
    path, feeds = prepared.reference_path, prepared.feeds
    if prepared.conditions.family is not None:
        return not is_wrong(prepared, expected_ns, time_apart(path, feeds, settings, CHECK_SECONDS))

    def is_enough(first: WholeTime) -> bool:
        return not is_wrong(prepared, expected_ns, first)

    before = cpu_clock()
    seen = time_whole(path, feeds, settings, CHECK_SECONDS, is_enough)
    is_slowed = expected_ns < seen.time_ns < MOST_SLOWED * expected_ns and are_others_in_the_way(before)
    return is_slowed or is_enough(seen)


def known_relative(prepared: Prepared) -> float | None:
    """How long a run takes as a multiple of the model beside, if an earlier compile ran the two in turn."""
    facts = known_facts_of(prepared.reference_sha256, prepared.conditions)
    return None if facts is None else facts.relative_time
