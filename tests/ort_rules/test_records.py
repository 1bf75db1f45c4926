"""Each rule of the record beside the runtime that is installed: what fails has the name of the rule in its own.

A new release of the runtime differs where a test here fails; it then gets a record with that rule. A number that a
record has and no case here measures needs more than a moment: `SLOWLY` says which test repeats it.
"""

from __future__ import annotations

import platform
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

from remat_cli.compiling.processor import block_here
from remat_cli.core.schedule.problem import make_problem
from remat_cli.core.schedule.program import Reader
from remat_cli.core.schedule.simulate import baseline
from remat_cli.core.values.profile import OpCost, Profile, Provenance
from remat_cli.onnx_io.read.default_order import default_order, priority_order
from remat_cli.onnx_io.read.to_graph import known_kind, to_graph
from remat_cli.ort_rules.arena import Arena
from remat_cli.ort_rules.arena_copies import arena_copy_bytes
from remat_cli.ort_rules.forecast import FileFacts, Forecast, Judged, predict, predict_sessions
from remat_cli.ort_rules.loading import LoadedFile, LoadedWeight, load_forecast
from remat_cli.ort_rules.records import RECORDS, RULES_1_31, Rules, rules_for, rules_of
from remat_cli.ort_rules.requests import Request
from remat_cli.ort_rules.runtime import WIDE_BLOCK, Runtime
from remat_cli.ort_rules.versions import COUNTERS_FROM, numbers_of
from remat_cli.runtime.observe.resident import ResidentJob, can_measure_resident, measure_resident
from remat_cli.runtime.sessions._ort import pack_all, run_fresh
from remat_cli.runtime.sessions.packing import PackingJob, save_packed
from remat_cli.runtime.sessions.session import Observation, SessionSettings, profiled_session, run_profiled, run_session
from tests.runtime.models import save_model, untyped, value, weight

MIB = 2**20
EXACT, DEFAULT = SessionSettings(intra_op_threads=1), SessionSettings(exact=False, intra_op_threads=1)
FLOAT, UINT8 = TensorProto.FLOAT, TensorProto.UINT8
NONE = Provenance("", "", "", "", "", 0, "", 0, 0)
CPU = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
HERE = Runtime(ort.__version__, platform.machine(), WIDE_BLOCK if "avx512f" in CPU else 8)
RULES = rules_for(HERE)
FED = {"x": np.zeros((512, 512), np.float32)}
SIDE = 2048
HAS_AVX2 = "avx2" in CPU

Case = Callable[[Path], tuple[object, object]]
"""What a rule says, and what the runtime does."""
Order = Callable[[list[ir.Node]], list[int]]


def seen(path: Path, nodes, shape, weights=(), kind: int = FLOAT, settings: SessionSettings = EXACT) -> Observation:
    """One run of a small model on zeros."""
    model = save_model(path / "m.onnx", nodes, [value("x", kind, shape)], untyped("y"), weights)
    array = np.zeros(shape, np.float32 if kind == FLOAT else np.uint8)
    return run_profiled(model, {"x": array}, settings)


def abs_of(path: Path, elements: int) -> Observation:
    return seen(path, [helper.make_node("Abs", ["x"], ["y"], name="a")], (elements,))


def a_unit(path: Path) -> tuple[object, object]:
    """One byte, and one more than a unit, by what is in use with the allocator's rounding."""
    elements = RULES.arena.unit_bytes // 4
    sizes = (1, elements, elements + 1)
    said = [RULES.arena.rounded_bytes(4 * size) for size in sizes]
    return said, [abs_of(path, size).in_use_peak_bytes for size in sizes]


def first_region(path: Path) -> tuple[object, object]:
    return RULES.arena.first_region_bytes, abs_of(path, 1).arena_held_bytes


def growth(path: Path) -> tuple[object, object]:
    """Results that all stay, since the last op reads them: each is larger than what is left of the regions before."""
    sizes = [MIB // 8, 5 * MIB // 4, 3 * MIB // 2, MIB, 3 * MIB]
    weights = [weight(f"n{number}", np.array([size // 4], np.int64)) for number, size in enumerate(sizes)]
    made = [f"t{number}" for number in range(len(sizes))]
    nodes = [
        helper.make_node("Expand", ["x", each.name], [name], name=name)
        for each, name in zip(weights, made, strict=True)
    ]
    nodes.append(helper.make_node("Concat", made, ["y"], name="y", axis=0))
    arena = Arena(RULES.arena)
    arena.run(Request(number, size, True) for number, size in enumerate([*sizes, sum(sizes)]))
    found = seen(path, nodes, (1,), weights)
    return arena.reserved_bytes, found.arena_held_bytes - found.baseline_bytes


def largest_first_region(_: Path) -> tuple[object, object]:
    def is_taken(size: int) -> bool:
        try:
            ort.OrtArenaCfg({"initial_chunk_size_bytes": size})
        except RuntimeError:
            return False
        return True

    most = RULES.largest_first_region_bytes
    return (True, False), (is_taken(most), is_taken(most + 1))


def layout_block(path: Path) -> tuple[object, object]:
    return HERE.layout_block, block_here(path)


def small_weights_in_the_arena(path: Path) -> tuple[object, object]:
    limit, node = RULES.packing.arena_limit_bytes, helper.make_node("Max", ["x", "w"], ["y"], name="a")
    held = [
        seen(path, [node], (1,), [weight("w", np.zeros(size, np.uint8))], UINT8).baseline_bytes
        for size in (limit, limit + 1)
    ]
    return [limit, 0], held


PRODUCT = [helper.make_node("MatMul", ["x", "w"], ["y"], name="a")]


def product(path: Path, rows: int, columns: int) -> Observation:
    return seen(path, PRODUCT, (2, rows), [weight("w", np.ones((rows, columns), np.float32))])


def what_kernels_pack(path: Path) -> tuple[object, object]:
    """A product packs its right factor; the table's other rows are in tests/runtime/test_weights.py."""
    said = RULES.packing.packs_weight(Reader("", "MatMul", 1), "float", (64, 64))
    return said, product(path, 64, 64).baseline_bytes >= 64 * 64 * 4


def packed_columns(path: Path) -> tuple[object, object]:
    columns = 17 + -17 % RULES.packing.columns["MatMul"]
    return 64 * columns * 4, product(path, 64, 17).baseline_bytes


def copies_in_the_arena(path: Path) -> tuple[object, object]:
    """By channels of a quantised convolution, whether its copy is a request to the arena: then regions hold it."""
    rules, shapes = RULES.packing.in_arena, [(24, 64), (8, 64), (20, 64), (16, 66), (16, 68)]
    said = [arena_copy_bytes(1, (*shape, 1, 1), rules) for shape in shapes]
    return said, [_arena_copy(path, *shape) for shape in shapes]


def _arena_copy(path: Path, outputs: int, inputs: int) -> int:
    """What of a convolution's packed copy lies in regions of the arena: all of it or nothing."""
    weights = [
        weight("s", np.float32(0.02)),
        weight("z", np.uint8(0)),
        weight("zw", np.int8(0)),
        weight("w", np.ones((outputs, inputs, 1, 1), np.int8)),
    ]
    node = helper.make_node("QLinearConv", ["x", "s", "z", "w", "s", "zw", "s", "z"], ["y"], name="a")
    found = seen(path, [node], (1, inputs, 4, 4), weights, UINT8)
    small = 4 + 1 + 1
    is_outside = found.arena_held_bytes % MIB >= outputs * inputs
    return 0 if is_outside else found.baseline_bytes - small


def waiting_model(path: Path) -> Path:
    """A large tensor dies, and long after it one of its shape is made; two branches that may run in either order."""
    node = helper.make_node
    nodes = [
        node("CumSum", ["x", "axis"], ["a"], name="a"),
        node("ReduceMax", ["a"], ["r"], name="r"),
        node("Expand", ["r", "small"], ["m"], name="m"),
        node("ReduceMax", ["m"], ["q"], name="q"),
        node("Expand", ["q", "large"], ["b"], name="b"),
        node("ReduceMin", ["b"], ["y"], name="y"),
    ]
    weights = [weight(n, np.array(v, np.int64)) for n, v in (("axis", 0), ("small", [64, 64]), ("large", [512, 512]))]
    return save_model(path / "waiting.onnx", nodes, [value("x", FLOAT, (512, 512))], untyped("y"), weights)


def two_dead_model(path: Path) -> Path:
    """Two large tensors of one shape die, one after the other, before the next of it: the older is freed at once."""
    node = helper.make_node
    nodes = [
        node("CumSum", ["x", "axis"], ["a"], name="a"),
        node("CumSum", ["a", "axis"], ["b"], name="b"),
        node("ReduceMax", ["b"], ["r"], name="r"),
        node("Expand", ["r", "large"], ["c"], name="c"),
        node("ReduceMin", ["c"], ["y"], name="y"),
    ]
    weights = [weight(n, np.array(v, np.int64)) for n, v in (("axis", 0), ("large", [512, 512]))]
    return save_model(path / "two.onnx", nodes, [value("x", FLOAT, (512, 512))], untyped("y"), weights)


def judged(model: Path, found: Observation) -> Judged:
    """The model as the judge sees it."""
    graph = to_graph(ir.load(model), found.types)
    costs = tuple(OpCost(op.name, 1) for op in graph.ops)
    plan = baseline(make_problem(graph, Profile("cpu", "", NONE, costs, 0, 0)))
    shapes = graph.shapes
    return Judged(graph, plan, 0, tuple(known_kind(tensor, shapes) for tensor in graph.tensors))


def in_sessions(model: Path, settings: SessionSettings) -> tuple[object, object]:
    """Live bytes of a model, step by step, by prediction and by counters."""
    found = run_profiled(model, FED, settings)
    said = predict_sessions(judged(model, found), HERE)
    return (said.exact if settings.exact else said.default_session).live_bytes, found.live_bytes


def dead_buffers_are_kept(path: Path) -> tuple[object, object]:
    model = waiting_model(path)
    said, done = in_sessions(model, DEFAULT)
    assert said != in_sessions(model, EXACT)[0]
    return said, done


def the_last_that_died_is_kept(path: Path) -> tuple[object, object]:
    return in_sessions(two_dead_model(path), DEFAULT)


def every_buffer_is_freed(path: Path) -> tuple[object, object]:
    return in_sessions(waiting_model(path), EXACT)


def later_runs_take_a_block(path: Path) -> tuple[object, object]:
    """What the arena has taken of the system when it has run twice."""
    model = waiting_model(path)
    said = predict_sessions(judged(model, run_profiled(model, FED, EXACT)), HERE).runs
    assert said.block_bytes
    with profiled_session(model, DEFAULT) as (session, runs):
        for _ in range(2):
            run_session(session, FED)
    outside = sum(weight.const_value.nbytes for weight in ir.load(model).graph.initializers.values())
    return said.reserved_bytes, runs[1].events[-1].held_bytes - outside


def in_order(
    path: Path, settings: SessionSettings, order: Callable[[list[ir.Node]], list[int]]
) -> tuple[object, object]:
    """Ops of a model that sessions of either kind run in another order."""
    pairs = (("Sqrt", "x", "a"), ("Neg", "x", "b"), ("Shape", "x", "s"), ("Abs", "b", "c"))
    nodes = [helper.make_node(kind, [read], [made], name=made) for kind, read, made in pairs]
    nodes += [helper.make_node("Add", ["a", "c"], ["d"], name="d"), helper.make_node("Size", ["s"], ["e"], name="e")]
    nodes.append(helper.make_node("Concat", ["s", "s"], ["f"], name="f", axis=0))
    model = save_model(path / "order.onnx", nodes, [value("x", FLOAT, ("n",))], untyped("d", "e", "f"))
    read = list(ir.load(model).graph)
    assert default_order(read) != priority_order(read)
    found = run_profiled(model, {"x": np.zeros(4, np.float32)}, settings)
    return tuple(read[index].name for index in order(read)), found.executed


def order_of_default_sessions(path: Path) -> tuple[object, object]:
    return in_order(path, msgspec.structs.replace(DEFAULT, level="basic"), default_order)


def order_of_exact_sessions(path: Path) -> tuple[object, object]:
    return in_order(path, EXACT, priority_order)


def results_of_bodies(path: Path) -> tuple[object, object]:
    """Ops after whose body more is in use than when its last kernel ended: by the most that there ever was.

    Of the Loop that is its result, which is a copy of what the last round made.
    """
    kinds = ("If", "Loop", "Scan")
    return set(RULES.bodies.copies_results), {kind for kind in kinds if _copies_results(path, kind)}


def _copies_results(path: Path, kind: str) -> bool:
    go, state = value("go", TensorProto.BOOL, ()), value("s", FLOAT, (512, 512))
    made = value("m", FLOAT, (512, 512))
    nodes = [helper.make_node("Neg", ["x" if kind == "If" else "s"], ["m"], name="m")]
    if kind == "Loop":
        body = helper.make_graph(
            [*nodes, helper.make_node("Identity", ["go"], ["on"], name="on")],
            "body",
            [value("i", TensorProto.INT64, ()), go, state],
            [value("on", TensorProto.BOOL, ()), made],
        )
        node = helper.make_node(kind, ["n", "", "x"], ["y"], name="body", body=body)
    elif kind == "Scan":
        body = helper.make_graph(nodes, "body", [state, value("e", FLOAT, (1,))], [made])
        node = helper.make_node(kind, ["x", "each"], ["y"], name="body", body=body, num_scan_inputs=1)
    else:
        branches = {f"{name}_branch": helper.make_graph(nodes, name, [], [made]) for name in ("then", "else")}
        node = helper.make_node(kind, ["yes"], ["y"], name="body", **branches)
    weights = [weight("n", np.array(3, np.int64)), weight("each", np.ones((3, 1), np.float32)), weight("yes", np.True_)]
    model = save_model(path / f"{kind}.onnx", [node], [value("x", FLOAT, (512, 512))], untyped("y"), weights)
    with profiled_session(model, EXACT) as (session, runs):
        run_session(session, FED)
    (event,) = runs[0].events
    return event.peak_bytes >= event.nested_bytes + MIB


def parts_of_sequences(path: Path) -> tuple[object, object]:
    """A loop that puts its results in a sequence holds copies of them all, and takes no more when it ends."""
    kind, rounds, size = helper.make_tensor_sequence_value_info, 5, 4 * 512 * 512
    body = helper.make_graph(
        [
            helper.make_node("Neg", ["x"], ["m"], name="m"),
            helper.make_node("SequenceInsert", ["s", "m"], ["t"], name="t"),
            helper.make_node("Identity", ["go"], ["on"], name="on"),
        ],
        "body",
        [value("i", TensorProto.INT64, ()), value("go", TensorProto.BOOL, ()), kind("s", FLOAT, None)],
        [value("on", TensorProto.BOOL, ()), kind("t", FLOAT, None)],
    )
    nodes = [
        helper.make_node("SequenceEmpty", [], ["none"], name="none"),
        helper.make_node("Loop", ["n", "", "none"], ["list"], name="loop", body=body),
        helper.make_node("ConcatFromSequence", ["list"], ["y"], name="joined", axis=0),
    ]
    weights = [weight("n", np.array(rounds, np.int64))]
    model = save_model(path / "lists.onnx", nodes, [value("x", FLOAT, (512, 512))], untyped("y"), weights)
    with profiled_session(model, EXACT) as (session, runs):
        run_session(session, FED)
    _, loop, joined = runs[0].events
    held = [kernel.end_bytes - kernel.begin_bytes for kernel in loop.kernels if kernel.lists]
    is_so = held == [size] * rounds and loop.growth_bytes == rounds * size and joined.growth_bytes == rounds * size
    is_so = is_so and loop.peak_bytes < loop.in_use_bytes + 2 * size
    return set(RULES.bodies.lists), {"SequenceInsert"} if is_so else set()


def loaded(path: Path, file: LoadedWeight, product: Path, *, is_peak: bool) -> tuple[object, object]:
    """What a fresh process holds that loads one product, to the MiB, by forecast and measured."""
    forecast = load_forecast([file], LoadedFile(1), RULES.loading)
    said = forecast.load_peak_bytes if is_peak else forecast.loaded_bytes - forecast.mapped_bytes + forecast.read_bytes
    job = ResidentJob(str(product), pack_all({"x": np.zeros((2, SIDE), np.float32)}), DEFAULT, 2)
    figures = run_fresh(measure_resident, job)
    done = (figures.load_peak_bytes if is_peak else figures.loaded_bytes).total_bytes
    return said, (said if abs(done - said) <= 4 * MIB else done)


def saved_product(path: Path, *, external: bool) -> Path:
    weights = [weight("w", np.random.default_rng(0).standard_normal((SIDE, SIDE)).astype(np.float32))]
    model = save_model(path / "product.onnx", PRODUCT, [value("x", FLOAT, (2, SIDE))], untyped("y"), weights)
    if not external:
        return model
    beside = path / "beside.onnx"
    onnx.save(onnx.load(model), beside, save_as_external_data=True, location="weights", size_threshold=0)
    save_packed(PackingJob(str(beside), str(path / "saved.onnx"), 1024))
    return path / "saved.onnx"


def loading_a_weight_of_the_model_file(path: Path) -> tuple[object, object]:
    size = 4 * SIDE * SIDE
    return loaded(path, LoadedWeight(size, size), saved_product(path, external=False), is_peak=True)


def loading_saved_copies(path: Path) -> tuple[object, object]:
    size = 4 * SIDE * SIDE
    file = LoadedWeight(size, size, is_mapped=True, is_saved=True)
    return loaded(path, file, saved_product(path, external=True), is_peak=False)


def loading_a_weight_of_a_branch(path: Path) -> tuple[object, object]:
    """A product in a branch that has the weight: packed, as it was read, and in the message the branch is made of."""
    weights = [weight("w", np.random.default_rng(0).standard_normal((SIDE, SIDE)).astype(np.float32))]
    branches = {
        f"{name}_branch": helper.make_graph(PRODUCT, name, [], [value("y", FLOAT, (2, SIDE))], own)
        for name, own in (("then", weights), ("else", weights[:0]))
    }
    del branches["else_branch"].node[:]
    branches["else_branch"].node.append(helper.make_node("Abs", ["x"], ["y"], name="b"))
    node = helper.make_node("If", ["yes"], ["z"], name="if", **branches)
    ports = [value("x", FLOAT, (2, SIDE)), value("yes", TensorProto.BOOL, ())]
    model = save_model(path / "branch.onnx", [node], ports, untyped("z"))
    feeds = pack_all({"x": np.zeros((2, SIDE), np.float32), "yes": np.array(True)})
    size = 4 * SIDE * SIDE
    said = load_forecast([LoadedWeight(size, size, is_of_branch=True)], LoadedFile(3), RULES.loading).loaded_bytes
    done = run_fresh(measure_resident, ResidentJob(str(model), feeds, DEFAULT, 2)).loaded_bytes.total_bytes
    return said, (said if abs(done - said) <= 4 * MIB else done)


CASES: dict[str, Case] = {
    "arena.unit_bytes": a_unit,
    "arena.first_region_bytes": first_region,
    "arena: growth": growth,
    "largest_first_region_bytes": largest_first_region,
    "packing.arena_limit_bytes": small_weights_in_the_arena,
    "packing.kernels": what_kernels_pack,
    "packing.columns": packed_columns,
    "processor: the layout's block": layout_block,
    "packing.in_arena": copies_in_the_arena,
    "exact": every_buffer_is_freed,
    "reuse: dead buffers": dead_buffers_are_kept,
    "reuse: the last that died": the_last_that_died_is_kept,
    "arena: the block of later runs": later_runs_take_a_block,
    "order: default": order_of_default_sessions,
    "order: priority-based": order_of_exact_sessions,
    "bodies.copies_results": results_of_bodies,
    "bodies.lists": parts_of_sequences,
    "loading": loading_a_weight_of_the_model_file,
    "loading.reads_saved": loading_saved_copies,
    "loading.branch_copies": loading_a_weight_of_a_branch,
}
WITHOUT_COUNTERS = ("largest_first_region_bytes", "processor", "loading")
"""What is measured by other means than the runtime's counters of memory."""
SLOWLY = {
    "arena.largest_growth_bytes": "tests/runtime/test_arena.py",  # regions of more than a GiB
    "arena.most_dead_bytes": "tests/runtime/test_runs.py",
    "arena.table_share": "tests/runtime/test_arena_copies.py",
    "malloc": "tests/runtime/test_no_arena.py",  # traces small blocks beside tensors
    "workspaces": "tests/runtime/test_arena.py",  # traces every request of samples
    "default": "tests/runtime/test_runs.py",
    "packing.in_arena_wide": "packing.in_arena",  # on processors with AVX-512, as the other one on those without
}


@pytest.mark.parametrize("rule", CASES)
def test_the_runtime_does_what_its_record_says(rule, tmp_path):
    if rule in ("packing.in_arena", "processor: the layout's block") and not HAS_AVX2:
        pytest.skip("a processor without AVX2 has no such kernel, and may have no blocks")
    if rule.startswith("loading") and not (can_measure_resident() and platform.libc_ver()[0] == "glibc"):
        pytest.skip("needs /proc and glibc")
    if numbers_of(ort.__version__) < numbers_of(COUNTERS_FROM) and not rule.startswith(WITHOUT_COUNTERS):
        pytest.skip(f"ONNX Runtime {ort.__version__} counts no memory, by which this rule is measured")
    said, done = CASES[rule](tmp_path)
    assert said == done, f"ONNX Runtime {ort.__version__}: rule '{rule}' says {said}, the runtime does {done}"


def test_every_rule_of_a_record_has_a_case():
    named = {name.partition(":")[0].strip() for name in (*CASES, *SLOWLY)}
    for part in msgspec.structs.fields(Rules):
        inside = getattr(RULES, part.name)
        names = {f"{part.name}.{field}" for field in getattr(inside, "__struct_fields__", ())}
        assert part.name in named or names <= named, part.name


def test_rules_of_a_version():
    found = [rules_of(version).loading.reads_saved for version in ("1.24.4", "1.31.1", "1.32.0", "1.40", "2.0.1")]
    assert found == [False, False, True, True, True]
    assert rules_of("1.24.4") is RULES_1_31
    assert rules_of("a build of my own") is [*RECORDS.values()][-1]
    assert list(RECORDS) == sorted(RECORDS)


def test_a_record_that_is_wrong_fails_with_its_rule(monkeypatch, tmp_path):
    wrong = msgspec.structs.replace(RULES, arena=msgspec.structs.replace(RULES.arena, unit_bytes=512))
    monkeypatch.setattr("tests.ort_rules.test_records.RULES", wrong)
    with pytest.raises(AssertionError, match=r"arena.unit_bytes"):
        test_the_runtime_does_what_its_record_says("arena.unit_bytes", tmp_path)


@pytest.mark.parametrize("unit_bytes", [64, 4096])
def test_what_is_for_several_versions_is_judged_by_all_of_them(unit_bytes, monkeypatch, tmp_path):
    """Whatever a newer record differs in, and in which direction: no version holds more than is promised."""
    if numbers_of(ort.__version__) < numbers_of(COUNTERS_FROM):
        pytest.skip(f"ONNX Runtime {ort.__version__} does not say what lived in a run")
    other = msgspec.structs.replace(
        RULES_1_31,
        arena=msgspec.structs.replace(RULES_1_31.arena, unit_bytes=unit_bytes),
        loading=msgspec.structs.replace(RULES_1_31.loading, op_bytes=RULES_1_31.loading.op_bytes - unit_bytes),
    )
    monkeypatch.setattr("remat_cli.ort_rules.records.RECORDS", {(1, 20): RULES_1_31, (1, 40): other})
    model = waiting_model(tmp_path)
    plan = judged(model, run_profiled(model, FED, EXACT))
    weights = tuple(LoadedWeight(each.size_bytes) for each in plan.graph.weights)

    def figures(*judged_as: str) -> dict[str, int]:
        runtime = msgspec.structs.replace(HERE, judged_as=judged_as)
        found = predict(plan, FileFacts(weights, is_mapped=False, is_primed=False), runtime)
        return {name: value for part in _parts(found) for name, value in part.items()}

    older, newer, both = figures("1.31"), figures("1.40"), figures("1.31", "1.40")
    assert any(older[name] > newer[name] for name in both)
    assert any(older[name] < newer[name] for name in both) == (unit_bytes > RULES_1_31.arena.unit_bytes)
    assert all(both[name] >= max(older[name], newer[name]) for name in both)
    assert both["block_bytes"] == max(older["block_bytes"], newer["block_bytes"])


def _parts(found: Forecast) -> tuple[dict[str, int], ...]:
    runs = {name: getattr(found.runs, name) for name in ("first_run_bytes", "later_runs_bytes", "block_bytes")}
    process, most = msgspec.structs.asdict(found.process), msgspec.structs.asdict(found.process_at_most)
    return runs, *({f"{at}: {name}": value for name, value in each.items()} for at, each in enumerate((process, most)))
