"""The trade-off curve: no answer is dominated, none is slower for more memory, and what was searched is not again."""

from __future__ import annotations

import itertools

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from remat_cli.core.values.curve import CurvePoint, CurveQuestion, LadderStep, Searched, TradeOff, ladder_of

SIZES = st.integers(1, 12)
TIMES = st.integers(80, 300).map(lambda percent: percent / 100)


@st.composite
def points(draw: st.DrawFn) -> list[CurvePoint]:
    """Plans with few different figures, so that many are alike in some of them."""
    count = draw(st.integers(1, 12))
    found = []
    for number in range(count):
        live = draw(SIZES)
        more, on_top = draw(st.integers(0, 3)), draw(st.integers(0, 1))
        found.append(
            CurvePoint(
                f"plan {number}", live, live + more, draw(SIZES) + 10, draw(TIMES), min(on_top, more), number > 0
            )
        )
    return found


def curve_of(known: list[CurvePoint]) -> TradeOff:
    curve = TradeOff()
    for point in known:
        curve = curve.with_point(point)
    return curve


@given(points(), SIZES, SIZES, st.booleans())
@settings(max_examples=300)
def test_no_answer_is_dominated_and_more_memory_is_never_slower(known, one, other, is_share):
    curve = curve_of(known)
    small, large = sorted((one, other))
    answers = [curve.best(CurveQuestion(most_bytes=most, is_share=is_share)) for most in (small, large)]
    for most, answer in zip((small, large), answers, strict=True):
        fitting = [point for point in known if (point.share_bytes if is_share else point.budget_bytes) <= most]
        assert (answer is None) == (not fitting)
        assert answer is None or not any(point.dominates(answer) for point in fitting)
    if answers[0] is not None:
        assert answers[1].relative_time <= answers[0].relative_time


@given(points(), TIMES, TIMES)
@settings(max_examples=200)
def test_the_least_process_is_never_larger_for_more_time(known, one, other):
    curve = curve_of(known)
    short, long = sorted((one, other))
    answers = [curve.best(CurveQuestion("process", most_time=most)) for most in (short, long)]
    if answers[0] is not None:
        assert answers[1].process_bytes <= answers[0].process_bytes
        assert answers[0].process_bytes == min(p.process_bytes for p in known if p.relative_time <= short)


@given(points(), st.permutations(range(12)))
@settings(max_examples=100)
def test_the_order_in_which_plans_are_found_changes_no_answer(known, order):
    other = curve_of([known[number] for number in order if number < len(known)])
    for most in range(1, 16):
        question = CurveQuestion(most_bytes=most)
        found, again = curve_of(known).best(question), other.best(question)
        assert (found is None) == (again is None)
        assert found is None or found.objectives == again.objectives


FREE = CurvePoint("free", 90, 90, 100, 1.0)
DEAR = CurvePoint("dear", 40, 44, 60, 1.5, is_split=True)
CURVE = curve_of([FREE, DEAR])


def within(most: int | None = None, seconds: float = 30.0, effort: str = "", **more: object) -> Searched:
    return Searched(CurveQuestion(most_bytes=most, **more), seconds, effort)


def test_a_plan_that_costs_nothing_needs_no_search():
    assert CURVE.answer(within(95)) == FREE
    assert CURVE.answer(within(80)) is None


def test_what_a_search_led_to_answers_about_the_same_question_again():
    curve = msgspec.structs.replace(CURVE, searched=(within(80),))
    assert curve.answer(within(80)) == DEAR
    assert curve.answer(within(78)) == DEAR
    assert curve.answer(within(60)) is None
    assert curve.answer(within(85)) is None
    assert curve.answer(within(80, seconds=60.0)) is None
    assert curve.answer(within(80, effort="other")) is None
    assert curve.answer(within(80, most_time=1.2)) is None
    assert curve.with_point(CurvePoint("tight", 79, 79, 70, 1.2)).answer(within(78)) is None
    assert curve.with_point(CurvePoint("between", 70, 70, 70, 1.2)).answer(within(78)).key == "between"


def test_the_least_is_answered_once_it_was_searched_for():
    least = Searched(CurveQuestion("process", most_time=1.6), 30.0)
    assert CURVE.answer(least) is None
    assert msgspec.structs.replace(CURVE, searched=(least,)).answer(least) == DEAR


def test_what_is_known_of_a_plan_is_put_right_and_forgotten():
    larger = msgspec.structs.replace(DEAR, budget_bytes=50)
    assert CURVE.with_point(larger).best(CurveQuestion(most_bytes=45)) is None
    assert CURVE.without("dear").points == (FREE,)
    assert CURVE.with_point(msgspec.structs.replace(DEAR, key="again")).points == CURVE.points


def test_a_ladder_goes_down_at_rising_prices_with_guesses_where_nothing_is_kept():
    guesses = [
        LadderStep(45, 20.0, is_estimate=True),  # about what a kept plan holds, and cheaper than that was found to be
        LadderStep(70, 10.0, is_estimate=True),
        LadderStep(69, 12.0, is_estimate=True),  # hardly less than the one before
        LadderStep(20, 80.0, is_estimate=True),
        LadderStep(10, 180.0, is_estimate=True),  # too dear
    ]
    found = ladder_of(CURVE, guesses, 100.0)
    assert found == (LadderStep(90, 0.0), guesses[1], LadderStep(44, 50.0), guesses[3])
    assert ladder_of(TradeOff(), [], 100.0) == ()
    assert ladder_of(CURVE, [], 10.0) == (LadderStep(90, 0.0),)


@given(points(), st.lists(st.builds(LadderStep, st.integers(1, 15), st.integers(0, 150), st.just(True)), max_size=8))
@settings(max_examples=100)
def test_no_step_of_a_ladder_is_dominated_by_another(known, guesses):
    found = ladder_of(curve_of(known), guesses, 100.0)
    for above, below in itertools.pairwise(found):
        assert below.budget_bytes < above.budget_bytes
        assert below.overhead_percent >= above.overhead_percent
