"""Plans that were edited: what contradicts itself is damage, in one line; what passes can be judged and drawn."""

from __future__ import annotations

import copy
import json
from itertools import accumulate

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from remat_cli.base.errors import ModelError
from remat_cli.core.files.plan_check import check_graph, check_graph_of
from remat_cli.core.files.plan_file import FamilyPromise, PlanFile, write_plan
from remat_cli.core.files.plan_reader import read_plan
from remat_cli.core.paging.paged_plan import paged_plan
from remat_cli.core.paging.paged_sessions import SessionCosts, own_sizes, paged_sessions
from remat_cli.core.paging.paging import PagedSchedule
from remat_cli.core.values.profile import DeviceSpec, Placement
from remat_cli.core.values.sizes import Dim, SizeFamily, SizeRange, Term
from remat_cli.core.values.spill import SpillMemory
from remat_cli.core.values.verification import read_verification
from remat_cli.report.inspection import inspect_plan
from tests.report import samples

MIB = 2**20
BASELINE_PEAK = samples.plan_file().promise.baseline_peak_bytes


def sized_plan():
    """The plan of samples for batches of 1 to 8: the elements of tensor s are a multiple of the batch."""
    plan = samples.plan_file()
    dims = {"s": (Dim(offset=1), Dim((Term(("batch",), 2 * MIB // 8),)))}
    return msgspec.structs.replace(
        plan,
        request=msgspec.structs.replace(plan.request, family=SizeFamily((SizeRange("batch", 1, 8),))),
        promise=msgspec.structs.replace(
            plan.promise, family=FamilyPromise(dims, plan.promise.peak_bytes, {"batch": 8})
        ),
    )


def paged_plan_file():
    """The plan of samples as a session per op on one device that pages, and does so with nothing."""
    plan, costs = samples.plan_file(), samples.profile()
    place = Placement(
        devices=(DeviceSpec("cpu", "cpu"),), profiles=(costs,), budgets={"cpu": 40 * MIB}, peak_bytes={"cpu": 26 * MIB}
    )
    plan = msgspec.structs.replace(plan, placement=place)
    problem, firsts = plan.problem(), (0, 1, 2, 3, 4)
    memory = SpillMemory(folder="/x", write_bytes_per_second=1e9, read_bytes_per_second=1e9)
    costs = SessionCosts(own_sizes(plan.graph, problem))
    sessions = paged_sessions(problem, plan.plan(), firsts, memory.link, costs)
    starts = tuple(accumulate(sessions.problem.durations, initial=0))[:-1]
    paging = paged_plan(sessions, firsts, costs, memory, PagedSchedule(starts, ())).paging
    solved = msgspec.structs.replace(plan.solved, time_ns=paging.time_ns)
    return msgspec.structs.replace(plan, paging=paging, solved=solved)


PLANS = {
    "whole": samples.plan_file(),
    "split": samples.split_plan_file(),
    "sized": sized_plan(),
    "paged": paged_plan_file(),
}
VALUES = {name: msgspec.json.decode(msgspec.json.encode(plan)) for name, plan in PLANS.items()}


def refusal(tmp_path, values):
    path = tmp_path / "changed.plan.json"
    path.write_text(json.dumps(values))
    with pytest.raises(ModelError) as error:
        read_plan(path)
    assert "\n" not in str(error.value)
    assert str(error.value).startswith(f"plan {path} is damaged: ")
    assert str(error.value).count("compile again") == 1
    return str(error.value)


def changed(where, value, plan="whole"):
    """The plan with another value at a path of keys and numbers, such as `graph.ops.0.name`."""
    values = copy.deepcopy(VALUES[plan])
    *keys, last = (int(key) if key.isdecimal() else key for key in where.split("."))
    inner = values
    for key in keys:
        inner = inner[key]
    inner[last] = value
    return values


@pytest.mark.parametrize("plan", PLANS)
def test_plans_as_they_are_written_pass(tmp_path, plan):
    write_plan(tmp_path / "net.plan.json", PLANS[plan])
    assert read_plan(tmp_path / "net.plan.json") == PLANS[plan]


@pytest.mark.parametrize(
    ("where", "value", "reason"),
    [
        ("graph.ops.1.name", "make_skip", "2 of its ops are named 'make_skip'"),
        ("graph.ops.1.name", "other", "'grow' has a cost but is not in the graph"),
        ("graph.ops.1.in_place", [[1, 9]], "op 'grow' works in place on a tensor"),
        ("graph.ops.1.in_place", [[-2, 2]], "op 'grow' works in place on a tensor"),
        ("graph.ops.0.weights", [1], "op 'make_skip' reads a weight that does not exist"),
        ("graph.ops.0.weights", [-1], "op 'make_skip' reads a weight that does not exist"),
        ("graph.tensors.2.name", "s", "2 of its tensors are named 's'"),
        ("graph.tensors.2.view_of", 3, "tensor 'g' is a view of what its op does not read"),
        ("graph.tensors.2.view_of", -4, "tensor 'g' is a view of what its op does not read"),
        ("graph.tensors.0.producer", 9, "made later by op 9"),
        ("graph.tensors.0.producer", -1, "tensor 'x' is made by op -1, which does not exist"),
        ("graph.tensors.1.shape", [-1, 4], "graph.tensors.shape is -1, which cannot be negative"),
        ("graph.tensors.0.size_bytes", -1, "graph.tensors.size_bytes is -1"),
        ("graph.tensors.1.size_bytes", 1, "tensor 's' is 1 bytes, and float[1, 2097152] takes 8388608"),
        ("graph.tensors.0.size_bytes", 0, "tensor 'x' is 0 bytes"),
        ("graph.tensors.3.size_bytes", 0, "tensor 'h' is 0 bytes"),
        ("graph.tensors.4.size_bytes", 0, "tensor 'y' is 0 bytes"),
        ("graph.tensors.1.size_bytes", 0, "lives do not follow|promise.baseline_memory_bytes|leave it from"),
        ("graph.tensors.2.dtype", "floaty", "element type 'floaty' is not supported"),
        ("graph.tensors.1.producer", 2, "output tensor 1 names producer 2"),
        ("profile.ops.0.time_ns", -5, "profile.ops.time_ns is -5"),
        ("profile.ops.0.time_ns", 5, "solved.time_ns is"),
        ("profile.ops.0.workspace_bytes", -5, "profile.ops.workspace_bytes is -5"),
        ("profile.ops.0.name", "grow", "2 of its costs are named 'grow'"),
        ("profile.weight_bytes", -1, "profile.weight_bytes is -1"),
        ("schedule.steps.0.op", 9, "schedule is not legal: step 0: no op 9"),
        ("schedule.steps.0.op", -1, "schedule is not legal: step 0: no op -1"),
        ("schedule.steps", [], "schedule is not legal: op 0 never runs"),
        ("instances", [], "tensor lives do not follow from its schedule"),
        ("instances.0.death", 0, "tensor lives do not follow from its schedule"),
        ("promise.order", [], "promises to run 0 ops, and its schedule has 5"),
        ("promise.gates", ["nobody"], "a gate is not among the ops"),
        ("promise.memory_bytes", [1], "the number of promise.memory_bytes is 1"),
        ("promise.peak_bytes", 1, "it promises 1 bytes"),
        ("promise.peak_bytes", 2**50, f"it promises {2**50} bytes, which is more than its budget of {26 * MIB}"),
        ("promise.live_peak_bytes", 2**40, "promise.fixed_bytes is"),
        ("promise.fixed_bytes", 0, "promise.fixed_bytes is 0"),
        ("promise.fixed_bytes", 2**50, f"promise.fixed_bytes is {2**50}"),
        (
            "promise.order.3",
            "make_skip/remat_1x",
            "'make_skip/remat_1x' where its schedule has",
        ),
        ("request.budget_bytes", 1, "more than its budget of 1"),
        ("promise.baseline_peak_bytes", 1, f"the baseline's peak is 1 bytes, and {BASELINE_PEAK} during an op;"),
        (
            "promise.baseline_memory_bytes",
            [1],
            "promise.baseline_memory_bytes is a list of 1, and the judge says a list of 4;",
        ),
        ("solved.time_ns", 1, "solved.time_ns is 1, and the judge says"),
        ("solved.baseline_time_ns", 1, "solved.baseline_time_ns is 1, and the judge says"),
        ("request.budget_bytes", -1, "request.budget_bytes is -1"),
    ],
)
def test_what_contradicts_itself_is_named(tmp_path, where, value, reason):
    assert any(one in refusal(tmp_path, changed(where, value)) for one in reason.split("|"))


def test_steps_of_the_written_model_are_those_of_the_schedule(tmp_path):
    order = VALUES["whole"]["promise"]["order"]
    first, second = order[1], order[2]
    swapped = [{first: second, second: first}.get(name, name) for name in order]
    assert f"it promises to run '{second}' where its schedule has '{first}'" in refusal(
        tmp_path, changed("promise.order", swapped)
    )
    twice = [first if name == second else name for name in order]
    assert f"2 of its steps are named '{first}'" in refusal(tmp_path, changed("promise.order", twice))


def test_a_split_plan_has_a_baseline_of_whole_ops(tmp_path):
    baseline = VALUES["split"]["promise"]["baseline_memory_bytes"]
    values = changed("promise.baseline_memory_bytes", [*baseline, 1], "split")
    assert "damaged: the number of promise.baseline_memory_bytes is" in refusal(tmp_path, values)


def test_dimensions_for_all_sizes_are_those_of_the_graph_and_depend_on_sizes_that_were_asked_for(tmp_path):
    where = "promise.family.dims.s.1.terms.0"
    other = "the dimensions of tensor 's' for all sizes are not those in its graph"
    assert other in refusal(tmp_path, changed(f"{where}.factor", 3, "sized"))
    dims = VALUES["sized"]["promise"]["family"]["dims"]
    assert "tensor 'nobody' for all sizes" in refusal(
        tmp_path, changed("promise.family.dims", {"nobody": dims["s"]}, "sized")
    )
    strange = "its dimensions depend on seq, which it was not made for"
    assert strange in refusal(tmp_path, changed(f"{where}.names", ["batch", "seq"], "sized"))
    two = "its dimensions depend on heads, seq, which it was not made for"
    assert two in refusal(tmp_path, changed(f"{where}.names", ["seq", "heads"], "sized"))
    fixed = "its dimensions depend on sizes, which it was not made for"
    assert fixed in refusal(tmp_path, changed("request.family", None, "sized"))


def test_a_plan_that_pages_is_of_one_device_and_takes_what_its_rules_say(tmp_path):
    one = "it pages, and has not exactly one device"
    assert one in refusal(tmp_path, changed("placement", None, "paged"))
    devices = VALUES["paged"]["placement"]["devices"]
    twice = changed("placement.devices", devices * 2, "paged")
    twice["placement"]["profiles"] *= 2
    assert one in refusal(tmp_path, twice)
    told = VALUES["paged"]["solved"]["time_ns"]
    assert f"solved.time_ns is 1, and the judge of paging says {told}" in refusal(
        tmp_path, changed("solved.time_ns", 1, "paged")
    )
    assert "paging.time_ns is 1" in refusal(tmp_path, changed("paging.time_ns", 1, "paged"))


def test_a_budget_may_be_used_up(tmp_path):
    most = VALUES["whole"]["promise"]["peak_bytes"]
    plan = msgspec.convert(changed("request.budget_bytes", most), PlanFile, dec_hook=read_verification)
    write_plan(tmp_path / "net.plan.json", plan)
    assert read_plan(tmp_path / "net.plan.json").request.budget_bytes == most
    assert "which is more than its budget" in refusal(tmp_path, changed("request.budget_bytes", most - 1))


def test_a_result_may_be_a_view_of_what_its_op_reads_and_of_nothing_else(tmp_path):
    graph = samples.graph()
    views = tuple(
        msgspec.structs.replace(tensor, view_of=1 if tensor.name == "g" else tensor.view_of) for tensor in graph.tensors
    )
    check_graph(msgspec.structs.replace(graph, tensors=views))
    reason = "tensor 'g' is a view of what its op does not read"
    assert reason in refusal(tmp_path, changed("graph.tensors.2.view_of", 0))


def test_gates_are_different_ops_that_it_promises_to_run(tmp_path):
    assert "2 of its gates are named 'gate'" in refusal(tmp_path, changed("promise.gates", ["gate", "gate"]))
    reason = "damaged: a gate is not among the ops that it promises to run;"
    assert reason in refusal(tmp_path, changed("promise.gates", ["gate"]))


@pytest.mark.parametrize("field", ["op_type", "domain", "name"])
def test_a_plan_of_another_model_is_told_by_its_ops(field):
    plan = samples.plan_file()
    check_graph_of(plan, samples.graph())
    graph = samples.graph()
    ops = (msgspec.structs.replace(graph.ops[0], **{field: "Other"}), *graph.ops[1:])
    with pytest.raises(ModelError, match=r"^the plan's ops are not those of the model: compile again$"):
        check_graph_of(plan, msgspec.structs.replace(graph, ops=ops))


def test_a_plan_of_another_model_is_told_by_its_tensors():
    graph = samples.graph()
    tensors = (*graph.tensors[:-1], msgspec.structs.replace(graph.tensors[-1], shape=(1, 2)))
    with pytest.raises(ModelError, match=r"^the plan's tensors are not those of the model: compile again$"):
        check_graph_of(samples.plan_file(), msgspec.structs.replace(graph, tensors=tensors))


def places(value, path=()):
    """Every place inside a JSON value."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield (*path, key)
        yield from places(inner, (*path, key))


PLACES = {name: list(places(values)) for name, values in VALUES.items()}
NOTHING = object()
ODD = st.sampled_from([NOTHING, None, -1, 0, 1, 2**31, 10**18, 2**70, -0.5, 1e308, "", "zzz", [], {}, True])


@settings(max_examples=1500)
@given(st.data())
def test_a_changed_plan_is_read_and_drawn_or_refused_in_one_line(tmp_path_factory, data):
    name = data.draw(st.sampled_from(sorted(PLANS)))
    values = copy.deepcopy(VALUES[name])
    for _ in range(data.draw(st.integers(1, 2))):
        *keys, last = data.draw(st.sampled_from(PLACES[name]))
        inner = values
        try:
            for key in keys:
                inner = inner[key]
            odd = data.draw(ODD)
            if odd is NOTHING:
                del inner[last]
            else:
                inner[last] = odd
        except (KeyError, IndexError, TypeError):  # the first change took the place of the second
            continue
    path = tmp_path_factory.getbasetemp() / "mutant.plan.json"
    path.write_text(json.dumps(values))
    try:
        plan = read_plan(path)
    except ModelError as error:
        lines = str(error).splitlines()
    else:
        report = inspect_plan(path, plan, ())
        assert plan.plan().schedule == plan.schedule
        lines = [report.path]
    assert len(lines) == 1


@pytest.mark.parametrize("changes", [{"low": 9}, {"step": 2}, {"step": 0}])
def test_sizes_end_where_they_say(tmp_path, changes):
    values = msgspec.json.decode(msgspec.json.encode(PLANS["sized"]))
    values["request"]["family"]["ranges"][0].update(changes)
    said = refusal(tmp_path, values)
    assert "batch=" in said or ">= 1" in said
