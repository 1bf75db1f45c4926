"""Orders without clocks: every device does what the schedule says, nothing waits in a circle, updates come in time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remat_cli.pipelines.plan.chain import PipelineChain
from remat_cli.pipelines.plan.orders import flushed_turns, late_turns
from remat_cli.pipelines.plan.schedule_file import (
    PipelineBounds,
    PipelineFile,
    PipelineRequest,
    SessionFile,
    StageFile,
    device_loads,
    link_loads,
)
from remat_cli.pipelines.solve.onef1b_star import candidate_periods, contiguous_schedule, items_of

SESSION = SessionFile("stage.onnx", (), ())


def plan(forward, backward, transfers, at=0):
    """Stages with updates, one per device, scheduled with 1F1B* at one of its periods."""
    n = len(forward)
    chain = PipelineChain(tuple(forward), tuple(backward), (1,) * n, (1,) * (n + 1), tuple(transfers))
    cuts = range(1, n + 1)
    periods = candidate_periods(items_of(chain, cuts))
    schedule = contiguous_schedule(chain, cuts, periods[min(at, len(periods) - 1)])
    run, loads = device_loads(chain, schedule)
    return PipelineFile(
        model="m.onnx",
        model_sha256="",
        is_training=True,
        request=PipelineRequest(n, 2**30, 1.0, 4, "1f1b-star"),
        method="1f1b-star",
        period_ns=float(run.normalized_period),
        bounds=PipelineBounds(0, 0),
        inputs=(),
        outputs=(),
        stages=tuple(
            StageFile(device=d, first_op="", last_op="", ops=1, forward=SESSION, update=SESSION) for d in range(n)
        ),
        devices=loads,
        links=link_loads(chain, schedule),
        chain=chain,
        schedule=schedule,
    )


TIMES = st.lists(st.integers(1, 9), min_size=1, max_size=5)


@st.composite
def plans(draw):
    forward = draw(TIMES)
    n = len(forward)
    rest = [draw(st.lists(st.integers(1, 9), min_size=size, max_size=size)) for size in (n, n - 1)]
    return plan(forward, *rest, draw(st.integers(0, 20)))


def finished(turns, stages):
    """Run turns as actors do: each device in the list's order, each turn after what it needs. Most alive per stage."""
    done, alive, most = set(), {}, {}
    for turn in turns:
        if turn.kind == "F":
            assert turn.stage == 1 or ("F", turn.stage - 1, turn.batch) in done
            alive[turn.stage] = alive.get(turn.stage, 0) + 1
            most[turn.stage] = max(most.get(turn.stage, 0), alive[turn.stage])
        elif turn.kind == "B":
            assert ("F", turn.stage, turn.batch) in done
            assert turn.stage == stages or ("B", turn.stage + 1, turn.batch) in done
            alive[turn.stage] -= 1
        done.add((turn.kind, turn.stage, turn.batch))
    assert not any(alive.values())
    return most


@given(plans(), st.integers(1, 6), st.integers(1, 3))
def test_a_flushed_pipeline_is_empty_before_each_update(found, batches, steps):
    turns = flushed_turns(found, batches, steps)
    most = finished(turns, len(found.stages))
    planned = {stage: count for device in found.devices for stage, count in device.alive.items()}
    assert all(count <= planned[stage] for stage, count in most.items())
    for block in range(steps):
        mine = [turn for turn in turns if turn.block == block]
        assert [turn.kind for turn in mine].count("U") == len(found.stages)
        assert {turn.kind for turn in mine[-len(found.stages) :]} == {"U"}
        assert sum(turn.kind == "B" for turn in mine) == batches * len(found.stages)


@given(plans(), st.integers(0, 3), st.integers(1, 3))
def test_late_updates_come_before_anybody_needs_them(found, more, steps):
    """Block j + 2 runs with what block j makes: no forward of it may come before that update, on any device."""
    batches = found.most_alive + more
    turns = late_turns(found, batches, steps)
    finished(turns, len(found.stages))
    updated = dict.fromkeys(range(1, len(found.stages) + 1), 0)
    for turn in turns:
        if turn.kind == "U":
            assert turn.block == updated[turn.stage]
            updated[turn.stage] += 1
        else:
            assert turn.block - updated[turn.stage] in (0, 1)
    assert set(updated.values()) == {steps}


def test_what_a_device_does_in_a_period_by_hand():
    """Two stages of (1, 2) and (2, 3), a link of 1: by 1F1B* at 5, stage 2 is group 1, so that stage 1 holds two."""
    found = plan((1, 2), (2, 3), (1,))
    assert found.period_ns == 5
    assert [device.alive for device in found.devices] == [{1: 2}, {2: 1}]
    assert [task.kind for task in found.devices[1].order] == ["F", "B"]
    assert found.links[0].devices == (0, 1)
    assert [move.duration_ns for move in found.links[0].order] == [1, 1]


@pytest.mark.parametrize("kind", ["F", "B"])
def test_each_period_has_each_task_once(kind):
    found = plan((3, 1, 2), (4, 2, 2), (1, 2))
    assert sorted(task.stage for device in found.devices for task in device.order if task.kind == kind) == [1, 2, 3]
