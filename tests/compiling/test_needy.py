"""Steps of which one op needs more than a budget: it is cut, and what waits for it is made again."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace

import pytest

import remat_cli as remat
from remat_cli.compiling.search import needy
from remat_cli.compiling.search.loop import Known
from remat_cli.compiling.search.needy import NEEDY_AIMS, NeedySplits, fit_needy, fit_needy_bands, is_less_by_needy
from sample_models.papers import paper_model

TRANSFORMER = Path(__file__).resolve().parents[2] / "sample_models" / "transformer.onnx"


def proposals(keys):
    """By aim what is proposed; aims without a key lead to none."""
    return {share: SimpleNamespace(regions=("one",), key=key) for share, key in keys.items() if key}


def tiles(keys, free_bytes=1000, waits=True):
    known = {int(free_bytes * share): found for share, found in proposals(keys).items()}
    return SimpleNamespace(
        free_bytes=free_bytes,
        propose_needy=lambda count: (known[count],) if count in known else (),
        proposer=SimpleNamespace(waits_for_more=lambda count: waits and count == free_bytes),
    )


def test_ever_smaller_regions_are_proposed_and_those_that_are_cut_alike_once():
    first, second, third, *others = NEEDY_AIMS
    found = list(NeedySplits(tiles({first: "a", second: "a", third: "b", others[-1]: "c"})).propose(Known()))
    assert [each.proposal.key for each in found] == ["a", "b", "c"]
    assert [each.aim for each in found] == [first, third, others[-1]]
    assert list(NEEDY_AIMS) == sorted(NEEDY_AIMS, reverse=True)


def test_where_nothing_waits_for_what_runs_nothing_is_tried(monkeypatch):
    monkeypatch.setattr(needy, "search", lambda *given: pytest.fail("there is nothing to search for"))
    assert fit_needy(tiles({NEEDY_AIMS[0]: "a"}, waits=False), math.inf, set()) is None


def test_what_is_beaten_is_followed_by_nothing_for_less_and_nothing_is_tried_twice():
    first, second, third, *_ = NEEDY_AIMS
    known, tried = Known(is_beaten=True), {"a"}
    found = list(NeedySplits(tiles({first: "a", second: "b", third: "c"}), tried).propose(known))
    assert [each.proposal.key for each in found] == ["b"]
    assert tried == {"a", "b"}


@pytest.mark.parametrize(("others", "needy_ns", "is_less"), [(900, 100, True), (900, 870, False), (40, 0, False)])
def test_they_come_first_where_all_others_are_clearly_dearer_by_estimate(others, needy_ns, is_less):
    given = tiles({NEEDY_AIMS[0]: "a"})
    given.task = SimpleNamespace(baseline_ns=1000)
    given.propose_needy = lambda count: (SimpleNamespace(regions=("one",), added_ns=needy_ns),)
    assert is_less_by_needy(given, (SimpleNamespace(doubted_ns=others),)) is is_less
    given.proposer.waits_for_more = lambda count: False
    assert not is_less_by_needy(given, (SimpleNamespace(doubted_ns=others),))


def banded_tiles(monkeypatch, keys, is_step=True, waits=True):
    """Tiles of a step for which bands with these keys are proposed, and the keys of those that are built."""
    built = []

    def run(proposer, rule, progress):
        for candidate in proposer.propose(Known()):
            built.append(candidate.proposal.key)
            found = SimpleNamespace(name=candidate.proposal.key)
            if rule.is_enough(found):
                return found
        return None

    monkeypatch.setattr(needy, "search", run)
    given = tiles({}, waits=waits)
    given.is_step = is_step
    given.is_cheap = lambda found: found.name == "cheap"
    given.propose_needy_bands = lambda count: tuple(SimpleNamespace(regions=("one",), key=key) for key in keys)
    limits = SimpleNamespace(seconds=60.0)
    request = SimpleNamespace(splits=SimpleNamespace(race_share=1.0), search=SimpleNamespace(limits=limits))
    given.task = SimpleNamespace(request=request, better=None, ending=None)
    return given, built


def test_bands_of_a_step_are_tried_until_one_is_cheap_and_none_twice(monkeypatch):
    given, built = banded_tiles(monkeypatch, ("dear", "known", "cheap", "left"))
    assert fit_needy_bands(given, math.inf, {"known"}).name == "cheap"
    assert built == ["dear", "cheap"]


@pytest.mark.parametrize(("is_step", "waits"), [(False, True), (True, False)])
def test_bands_are_made_again_only_in_steps_in_which_much_waits(monkeypatch, is_step, waits):
    given, built = banded_tiles(monkeypatch, ("cheap",), is_step, waits)
    assert fit_needy_bands(given, math.inf, set()) is None
    assert not built


@pytest.mark.slow
def test_a_step_by_items_fits_half_of_what_whole_ops_need(tmp_path, cache):
    model = tmp_path / "vgg16.onnx"
    model.write_bytes(paper_model("vgg16", resolution=64, width=0.125, classes=10).SerializeToString())
    made = remat.train(model, loss="cross-entropy", batch=16, gradients_only=True, output=tmp_path / "step.onnx")
    words = {"budget": "7.68MiB", "budget_scope": "live", "time_limit": 60}
    whole = remat.compile(made.step, **words, split="off", output=tmp_path / "whole.onnx", plan=tmp_path / "whole.json")
    assert whole.exit_code == 3
    report = remat.compile(made.step, **words, output=tmp_path / "out.onnx", plan=tmp_path / "plan.json")
    assert report.exit_code == 0
    assert report.verification.outputs_identical
    assert report.verification.measured_peak_bytes <= report.solution.budget_bytes < whole.solution.floor_bytes


@pytest.mark.slow
def test_a_step_fits_a_budget_below_what_one_of_its_ops_needs(tmp_path, cache):
    made = remat.train(TRANSFORMER, loss="mse", output=tmp_path / "step.onnx")
    words = {"budget": "35%", "time_limit": 120, "max_overhead": "400%"}
    whole = remat.compile(made.step, **words, split="off", output=tmp_path / "whole.onnx", plan=tmp_path / "whole.json")
    assert whole.exit_code == 3
    report = remat.compile(made.step, **words, output=tmp_path / "out.onnx", plan=tmp_path / "plan.json")
    assert report.exit_code == 0
    assert report.regions
    assert report.verification.outputs_identical
    budget_bytes = report.solution.budget_bytes
    assert report.verification.measured_peak_default_session_bytes <= budget_bytes < whole.solution.floor_bytes
