"""What a measured run teaches about ops: each way in which it may leave the prediction, and what follows for the op."""

from __future__ import annotations

import msgspec
import pytest

from remat_cli.core.schedule.graph import Graph, Op, Tensor
from remat_cli.core.schedule.problem import make_problem
from remat_cli.core.schedule.simulate import baseline
from remat_cli.core.values.learning import NOTHING, Correction
from remat_cli.core.values.profile import OpCost, Profile, Provenance
from remat_cli.core.values.resident import RunsForecast, SessionMemory
from remat_cli.ort_rules.forecast import Judged, SessionForecast
from remat_cli.ort_rules.lessons import MOST_DIFFERENCES, Lesson, MeasuredCurve, lessons

OPS = ("first", "relu", "view", "sum")
"""What the runtime does by the rules: the second op works in place, the third gives a view, the last makes a tensor."""


def graph_of(in_place: tuple[tuple[int, int], ...] = ((1, 2),)) -> Graph:
    """Tensors of 100, 100, 100 and 40 bytes, of ops that each read the one before; the last is kept."""
    tensors = (
        Tensor("x", "float", (25,), 100),
        Tensor("a", "float", (25,), 100, 0),
        Tensor("b", "float", (25,), 100, 1),
        Tensor("c", "float", (25,), 100, 2, view_of=2),
        Tensor("d", "float", (10,), 40, 3, kept=True),
    )
    kinds = ("Exp", "Relu", "Reshape", "ReduceSum")
    ops = [Op(name, kind, (at,), (at + 1,)) for at, (name, kind) in enumerate(zip(OPS, kinds, strict=True))]
    ops[1] = msgspec.structs.replace(ops[1], in_place=in_place)
    return Graph(tuple(ops), tensors, ())


def forecast_of(graph: Graph) -> SessionForecast:
    provenance = Provenance("", "", "", "", "", 0, "", 0, 0)
    costs = tuple(OpCost(op.name, 1, 0) for op in graph.ops)
    plan = baseline(make_problem(graph, Profile("cpu", "", provenance, costs, 0, 100)))
    live = tuple(each - 100 for each in plan.live_bytes[0])
    memory = SessionMemory(plan.memory_bytes[0], live, (0,) * len(live), 100)
    other = msgspec.structs.replace(memory, live_bytes=tuple(each + 7 for each in live))
    judged = Judged(graph, plan, 100, (None,) * len(graph.tensors))
    return SessionForecast(judged, memory, other, RunsForecast(0, 0, 0, 0))


def told(found: tuple[Lesson, ...]) -> list[tuple[str, str, Correction]]:
    return [(each.learnt.op, each.learnt.cause, each.correction) for each in found]


FORECAST = forecast_of(graph_of())
LIVE, GROWN = (100, 100, 100, 140), (100, 0, 0, 40)
"""As predicted: bytes in use after each op, and by how many they grew meanwhile."""


def curve(live: tuple[int, ...] = LIVE, grown: tuple[int, ...] = GROWN, ops: tuple[str, ...] = OPS) -> MeasuredCurve:
    return MeasuredCurve(dict(zip(ops, live, strict=False)), dict(zip(ops, grown, strict=False)))


def test_a_run_as_predicted_teaches_nothing():
    assert FORECAST.exact.live_bytes == LIVE
    assert lessons(FORECAST, curve(), "exact") == ()


@pytest.mark.parametrize(
    ("live", "grown", "expected"),
    [
        (
            (100, 200, 200, 240),
            (100, 100, 0, 40),
            [("relu", "an in-place share was not taken", Correction(apart=(0,)))],
        ),
        ((100, 100, 200, 240), (100, 0, 100, 40), [("view", "a view was copied", Correction(copies=(0,)))]),
        ((130, 130, 130, 170), (130, 0, 0, 40), [("first", "a kernel took another amount", NOTHING)]),
        ((100, 130, 130, 170), (100, 30, 0, 40), [("relu", "a kernel took another amount", NOTHING)]),
        ((100, 100, 100, 130), (100, 0, 0, 30), [("sum", "a kernel took another amount", NOTHING)]),
        ((100, 160, 160, 200), (100, 0, 0, 40), [("relu", "a buffer was held longer", NOTHING)]),
        ((100, 40, 40, 80), (100, 0, 0, 40), [("relu", "a buffer was freed earlier", NOTHING)]),
        (
            (100, 260, 260, 300),
            (100, 100, 0, 40),
            [
                ("relu", "an in-place share was not taken", Correction(apart=(0,))),
                ("relu", "a buffer was held longer", NOTHING),
            ],
        ),
        (
            (100, 100, 200, 140),
            (100, 0, 100, 40),
            [("view", "a view was copied", Correction(copies=(0,))), ("sum", "a buffer was freed earlier", NOTHING)],
        ),
    ],
)
def test_where_a_run_leaves_the_curve_the_op_says_why(live, grown, expected):
    assert told(lessons(FORECAST, curve(live, grown), "exact")) == expected


def test_an_input_that_is_as_large_as_what_was_not_taken_was_shared():
    apart = forecast_of(graph_of(in_place=()))
    assert apart.exact.live_bytes == (100, 200, 100, 140)  # the judge takes a new buffer for the second op's result
    found = lessons(apart, curve((100, 100, 100, 140), (100, 0, 0, 40)), "exact")
    assert told(found)[0] == ("relu", "an in-place share was taken", Correction(shares=((0, 0),)))
    assert (found[0].learnt.predicted_bytes, found[0].learnt.measured_bytes) == (200, 100)


def test_the_buffer_of_a_model_input_is_never_shared():
    found = lessons(FORECAST, curve((0, 0, 0, 40), (0, 0, 0, 40)), "exact")
    assert told(found) == [("first", "a kernel took another amount", NOTHING)]


def test_a_model_input_of_one_byte_is_not_shared_either():
    tensors = (
        Tensor("x", "bool", (1,), 1),
        Tensor("y", "bool", (1,), 1, 0),
        Tensor("z", "bool", (1,), 1, 1, kept=True),
    )
    forecast = forecast_of(Graph((Op("not", "Not", (0,), (1,)), Op("again", "Not", (1,), (2,))), tensors, ()))
    first, second = forecast.exact.live_bytes
    measured = MeasuredCurve({"not": first - 1, "again": second - 1}, {"not": 0, "again": 1})
    assert told(lessons(forecast, measured, "exact")) == [("not", "a kernel took another amount", NOTHING)]


def test_bytes_are_compared_with_the_session_that_ran():
    as_default = curve(tuple(each + 7 for each in LIVE), GROWN)
    assert lessons(FORECAST, as_default, "default") == ()
    (found,) = lessons(FORECAST, as_default, "exact")
    assert found.learnt.session == "exact"
    assert (found.learnt.op, found.learnt.op_type) == ("first", "Exp")
    assert (found.learnt.predicted_bytes, found.learnt.measured_bytes) == (100, 107)


def test_buffers_that_were_kept_for_a_result_are_not_asked_for_again():
    kept = msgspec.structs.replace(FORECAST.default_session, live_bytes=LIVE, reused_bytes=(0, 0, 0, 40))
    reused = SessionForecast(FORECAST.judged, FORECAST.exact, kept, FORECAST.runs)
    assert lessons(reused, curve((100, 100, 100, 200), (100, 0, 0, 0)), "default")[0].learnt.cause == (
        "a buffer was held longer"
    )
    assert lessons(reused, curve((100, 100, 100, 200), (100, 0, 0, 40)), "default")[0].learnt.cause == (
        "a kernel took another amount"
    )


def test_nothing_is_said_of_ops_behind_one_that_did_not_run():
    found = lessons(FORECAST, curve((160, 160), (160, 0), ("first", "sum")), "exact")
    assert [each.learnt.op for each in found] == ["first"]


def test_only_the_first_few_differences_are_told():
    tensors = [Tensor("x", "float", (25,), 100)]
    tensors += [Tensor(f"t{at}", "float", (25,), 100, at) for at in range(20)]
    graph = Graph(tuple(Op(f"o{at}", "Exp", (at,), (at + 1,)) for at in range(20)), tuple(tensors), ())
    forecast = forecast_of(graph)
    live = {
        op.name: each + 10 * at for at, (op, each) in enumerate(zip(graph.ops, forecast.exact.live_bytes, strict=True))
    }
    found = lessons(forecast, MeasuredCurve(live, dict.fromkeys(live, 100)), "exact")
    assert [each.learnt.op for each in found] == [f"o{at}" for at in range(1, 1 + MOST_DIFFERENCES)]


@pytest.mark.parametrize("is_shared", [True, False])
def test_corrections_name_places_among_inputs_and_results(is_shared):
    """An op with a small input and result before those that may share a buffer."""
    tensors = (
        Tensor("x", "float", (25,), 100),
        Tensor("small", "float", (5,), 20, 0),
        Tensor("large", "float", (25,), 100, 0),
        Tensor("count", "float", (3,), 12, 1),
        Tensor("sorted", "float", (25,), 100, 1),
    )
    ops = (
        Op("split", "Split", (0,), (1, 2)),
        Op("both", "TopK", (1, 2), (3, 4), in_place=((2, 4),) if is_shared else ()),
    )
    forecast = forecast_of(Graph(ops, tensors, ()))
    apart, shared = MeasuredCurve(*made(120, 232, 112)), MeasuredCurve(*made(120, 132, 12))
    as_judged, otherwise = (shared, apart) if is_shared else (apart, shared)
    assert lessons(forecast, as_judged, "exact") == ()
    cause, correction = (
        ("an in-place share was not taken", Correction(apart=(1,)))
        if is_shared
        else ("an in-place share was taken", Correction(shares=((1, 1),)))
    )
    assert told(lessons(forecast, otherwise, "exact")) == [("both", cause, correction)]


def made(first: int, second: int, grown: int) -> tuple[dict[str, int], dict[str, int]]:
    """Bytes in use after each of two ops, and by how many they grew."""
    return {"split": first, "both": second}, {"split": first, "both": grown}
