"""Which form a written model takes: the one in which a process holds least, by simulation of arena and pattern."""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from remat_cli.core.schedule.graph import Graph, TensorType
from remat_cli.core.schedule.plan import Plan
from remat_cli.core.schedule.problem import own_bytes, tensor_ids
from remat_cli.core.values.conditions import Conditions
from remat_cli.core.values.resident import RunsForecast
from remat_cli.onnx_io.read.free_shapes import Dims, dims_at_load
from remat_cli.onnx_io.read.to_graph import known_kind
from remat_cli.onnx_io.write.opset import raise_opset
from remat_cli.onnx_io.write.rewrite import Rewritten
from remat_cli.onnx_io.write.steady import OLDEST_OPSET, as_in_branch, can_be_steady, waiting_input
from remat_cli.ort_rules.arena import FIRST_REGION_BYTES, UNIT_BYTES, RunMemory, pattern_bytes, simulate_runs
from remat_cli.ort_rules.lessons import Judged
from remat_cli.ort_rules.requests import Request, run_requests
from remat_cli.ort_rules.reuse import KeptBuffers, kept_buffers
from remat_cli.ort_rules.steady import SteadyBranch, SteadyForm, steady_requests
from remat_cli.runtime.sessions.loading import shapes_at_load

RUNS = 128  # or until the arena is left as it was found, mostly after a few
HELD = (1, 0)  # runs whose outputs the caller still holds: callers drop them before the next run, or after it
LEAST_GAIN_BYTES = 2**20
LEAST_GAIN_SHARE = 0.05
MOST_TIME_SHARE = 0.02
PROLOGUE_NS = 20_000  # what the form's own ops take
BALLAST_SHARE = 1.25  # of what may be live: gaps of the arena need room too, and who caps the arena caps the ballast
NO_BALLAST = SteadyForm()
MOST_BALLASTS = 3
MOST_REQUESTS, LEAST_FORMS = 300_000, 8  # simulated in the search for ballasts, run by run; forms tried in any case
RESERVED_SHARE = 0.02
EARLY_SHARE = 1 / 16  # of the peak, that outputs may take which are made before the graph's first op
LEAST_STEP_SHARE = 0.005  # by which one more ballast, or another one, has to be better


def forecast(requests: Sequence[Request], form: SteadyForm | None = None, copies: Sequence[int] = ()) -> RunsForecast:
    """What a process holds for so many requests a run, beside copies of weights that loading puts into the arena."""
    found = forecast_below(requests, form, None, copies)
    assert found is not None
    return found


def forecast_below(
    requests: Sequence[Request], form: SteadyForm | None, most_bytes: int | None, copies: Sequence[int]
) -> RunsForecast | None:
    """What a process holds for so many requests a run; None as soon as that is no less than `most_bytes`."""
    found = list[tuple[RunMemory, ...]]()
    for held, newest_first in itertools.product(HELD, (True, False)):
        runs = simulate_runs(requests, RUNS, held, most_bytes, newest_first=newest_first, copies=copies)
        if len(runs) < RUNS or (most_bytes is not None and runs[-1].resident_bytes >= most_bytes):
            return None
        found.append(runs)
    return RunsForecast(
        first_run_bytes=max(runs[0].resident_bytes for runs in found),
        later_runs_bytes=max(run.resident_bytes for runs in found for run in runs[1:]),
        block_bytes=pattern_bytes([request for request in requests if request.in_block]),
        reserved_bytes=max(runs[-1].reserved_bytes for runs in found),
        ballast_bytes=None if form is None else form.ballast_bytes,
    )


def kept_by_default(graph: Graph, plan: Plan, known: Mapping[str, Dims]) -> KeptBuffers:
    """What a default session keeps of dead buffers for later tensors whose shape it knows."""
    ids, own = tensor_ids(graph), own_bytes(graph)
    made = [ids[instance.tensor] for instance in plan.instances]
    kinds = [known_kind(graph.tensors[tensor], known) if own[tensor] else None for tensor in made]
    return kept_buffers(plan, [own[tensor] for tensor in made], kinds)


@dataclass(frozen=True)
class Inside:
    """A written model as it is in the branch of the steady form: what the runtime knows of shapes there.

    `model` is the written one, under the oldest operator set that has sequences if it was under an older one. `early`
    are the outputs that are made before the branch begins, with their bytes.
    """

    model: Any
    known: Mapping[str, Dims]
    early: Mapping[str, int]
    rank: int
    form: SteadyForm = NO_BALLAST

    @property
    def branch(self) -> SteadyBranch:
        """What the form adds depends on."""
        return SteadyBranch(self.rank, tuple(self.early.values()))


def known_dims(model: Any, graph: Graph, conditions: Conditions) -> dict[str, Dims]:
    """What the runtime knows of the shape of every value before a run; `graph` is that of the model."""
    types = {tensor.name: TensorType(tensor.dtype, tensor.shape) for tensor in graph.tensors}
    return dims_at_load(model, types, partial(shapes_at_load, custom_ops=conditions.custom_ops))


def inside(rewritten: Rewritten, graph: Graph, conditions: Conditions) -> Inside | None:
    """What is known in the branch of the steady form; None where that is not wanted, or cannot be written."""
    model = raise_opset(rewritten.model, OLDEST_OPSET, graph) if conditions.may_be_steady else None
    if model is None or not can_be_steady(model):
        return None
    return _inside(model, graph, conditions, NO_BALLAST)


def with_early_outputs(found: Inside, graph: Graph, conditions: Conditions, most_bytes: int) -> Inside | None:
    """The same where small outputs, of so many bytes together, are made before the branch begins; None: there are none.

    They are what a training step hands back of its weights: made between tensors that come and go, and held until the
    next run has ended, they would leave that one other gaps than the run before had, and so on from run to run.
    """
    sizes = {tensor.name: tensor.size_bytes for tensor in graph.tensors}
    late = [
        value.name or "" for value in found.model.graph.outputs if value.name not in found.early and _has_size(value)
    ]
    smallest_first = sorted(late, key=lambda name: sizes[name])
    fit = sum(total <= most_bytes for total in itertools.accumulate(sizes[name] for name in smallest_first))
    chosen = frozenset(smallest_first[:fit])
    if not chosen:
        return None
    return _inside(found.model, graph, conditions, SteadyForm(early=tuple(name for name in late if name in chosen)))


def _has_size(value: Any) -> bool:
    return value.shape is not None and all(isinstance(dim, int) for dim in value.shape)


def _inside(model: Any, graph: Graph, conditions: Conditions, form: SteadyForm) -> Inside:
    known = known_dims(as_in_branch(model, form.early), graph, conditions)
    sizes = {tensor.name: tensor.size_bytes for tensor in graph.tensors}
    outputs = [value.name or "" for value in model.graph.outputs]
    early = {
        name: sizes[name] for name in outputs if name in known and all(isinstance(dim, int) for dim in known[name])
    }
    waiting = waiting_input(model)
    assert waiting is not None
    assert waiting.shape is not None
    return Inside(model, known, early, len(waiting.shape), form)


def may_gain(without: RunsForecast) -> bool:
    """Whether a process holds enough without the form for it to save anything worth while."""
    return without.most_bytes >= LEAST_GAIN_BYTES


@dataclass(frozen=True)
class Formed:
    """A form, and what it takes; no form: the file is as it was written. `fixed_bytes` are held for it all the time."""

    form: SteadyForm | None
    runs: RunsForecast
    fixed_bytes: int = 0


def best_form(plain: Judged, within: Judged, found: Inside, most_bytes: int, below_bytes: int | None = None) -> Formed:
    """The form in which a process holds least; none where that saves little, or takes more than a little time.

    `plain` and `within` are what the judge says of the model without the form and in it; `most_bytes` are there for
    activations. What holds no less than `below_bytes` is not wanted.
    """
    without = forecast(run_requests(plain.graph, plain.plan, plain.kept), copies=plain.copies)
    forms = itertools.chain([NO_BALLAST], _forms(BALLAST_SHARE * most_bytes))
    best = _leanest(within, found.branch, forms, _price, below_bytes)
    gain = max(LEAST_GAIN_BYTES, LEAST_GAIN_SHARE * without.most_bytes)
    if best is None or best.form is None or without.most_bytes - best.runs.most_bytes < gain:
        return Formed(None, without)
    return replace(best, form=replace(best.form, early=found.form.early))


def roomy_form(within: Judged, branch: SteadyBranch, most_bytes: int) -> Formed:
    """The form for a model of many sizes, which must have one, with a region that has room for all.

    The runtime uses the pattern of one size for others; and where regions just fit the tensors of one size, each other
    size takes more of them.
    """
    return _leanest(within, branch, _roomy_forms(BALLAST_SHARE * most_bytes), _price_at_all) or _bare(within, branch)


def _bare(within: Judged, branch: SteadyBranch) -> Formed:
    """The form without ballasts."""
    asked = steady_requests(run_requests(within.graph, within.plan, within.kept), branch, NO_BALLAST)
    return Formed(NO_BALLAST, forecast(asked, NO_BALLAST, within.copies))


def _leanest(
    within: Judged,
    branch: SteadyBranch,
    forms: Iterable[SteadyForm],
    price: Callable[[SteadyForm, RunsForecast], float],
    below_bytes: int | None = None,
) -> Formed | None:
    """The form under which the arena comes to hold least; None where its own ops take too long.

    Small tensors go into small regions where there are some, and then do not lie in the way of large ones.
    """
    if MOST_TIME_SHARE * within.plan.time_ns < PROLOGUE_NS:
        return None
    requests = run_requests(within.graph, within.plan, within.kept)
    best: Formed | None = None
    for form in itertools.islice(forms, 1 + max(LEAST_FORMS, MOST_REQUESTS // len(requests))):
        most_bytes = below_bytes if best is None else int(best.runs.most_bytes * (1 - LEAST_STEP_SHARE))
        runs = forecast_below(steady_requests(requests, branch, form), form, most_bytes, within.copies)
        if runs is not None and (best is None or price(form, runs) < price(best.form or form, best.runs)):
            best = Formed(form, runs)
    return best


def _price(_: SteadyForm, runs: RunsForecast) -> float:
    """What is resident, and a little for what is only reserved: some systems count that too."""
    return runs.most_bytes + RESERVED_SHARE * runs.reserved_bytes


def _price_at_all(form: SteadyForm, runs: RunsForecast) -> float:
    """The same for runs at many sizes: others than the largest fill regions for small tensors, which it left empty."""
    smaller = sum(2 * (ballast - UNIT_BYTES) for ballast in form.ballast_bytes[:-1])
    return _price(form, runs) + smaller


def _forms(most_bytes: float) -> Iterator[SteadyForm]:
    """Forms with ballasts for regions of every size, in order, the ones with fewer first."""
    for count in range(1, 1 + MOST_BALLASTS):
        yield from map(SteadyForm, itertools.combinations(_ballasts(most_bytes), count))


def _roomy_forms(most_bytes: float) -> Iterator[SteadyForm]:
    """Forms with a region that has room for all tensors at once, alone or with one for small tensors before it."""
    *smaller, largest = _ballasts(most_bytes) or [FIRST_REGION_BYTES // 2 + UNIT_BYTES]
    yield SteadyForm((largest,))
    yield from (SteadyForm((small, largest)) for small in smaller)


def _ballasts(most_bytes: float) -> list[int]:
    """What makes the arena take a region of each of its sizes."""
    doublings = (FIRST_REGION_BYTES << number for number in itertools.count())
    return list(itertools.takewhile(lambda size: size <= most_bytes, (each // 2 + UNIT_BYTES for each in doublings)))
