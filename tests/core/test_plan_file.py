from __future__ import annotations

import json
import re

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from remat_cli.base.errors import ModelError
from remat_cli.core.files.plan_file import VERSION, PlanFile, check_belongs, is_plan, write_plan
from remat_cli.core.files.plan_reader import read_plan
from remat_cli.core.files.plan_schema import SCHEMA_PATH, plan_schema, schema_text
from remat_cli.core.schedule.graph import Tensor
from tests.report import samples


@pytest.fixture
def path(tmp_path):
    write_plan(tmp_path / "net.plan.json", samples.plan_file())
    return tmp_path / "net.plan.json"


def edit(path, **changes):
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_round_trip(path):
    assert read_plan(path) == samples.plan_file()


def test_a_plan_with_splits_round_trips_and_is_judged_in_the_split_graph(tmp_path):
    write_plan(tmp_path / "split.json", samples.split_plan_file())
    plan = read_plan(tmp_path / "split.json")
    assert plan == samples.split_plan_file()
    assert plan.plan().peak == plan.promise.peak_bytes < plan.promise.baseline_peak_bytes
    assert len(plan.promise.baseline_memory_bytes) == len(plan.splitting.whole_profile.ops)


def test_a_plan_from_before_there_were_splits_still_reads(path):
    values = json.loads(path.read_text())
    del values["splitting"], values["solved"]["floor_with_splitting_bytes"]
    for key in ("split", "max_tiles", "split_axis", "allow_reassociation"):
        del values["request"][key]
    path.write_text(json.dumps(values))
    plan = read_plan(path)
    assert plan.splitting is None
    assert plan.request.split == "off"
    assert plan == msgspec.structs.replace(samples.plan_file(), splitting=None)


def test_regions_that_contradict_themselves_are_damage(tmp_path):
    write_plan(tmp_path / "split.json", samples.split_plan_file())
    values = json.loads((tmp_path / "split.json").read_text())
    values["splitting"]["facts"] = []
    edit(tmp_path / "split.json", splitting=values["splitting"])
    with pytest.raises(ModelError, match="is damaged: 1 regions have the facts of 0"):
        read_plan(tmp_path / "split.json")


def test_the_plan_can_be_judged_again(path):
    plan = read_plan(path)
    assert plan.plan() == samples.plan()
    assert plan.problem() == samples.problem()


def test_instances_name_tensors_of_the_graph():
    plan = samples.plan_file()
    assert [plan.graph.tensors[i.tensor].name for i in plan.instances] == ["s", "g", "h", "s", "y"]


def test_changed_schedule_is_noticed(path):
    plan = read_plan(path)
    changed = msgspec.structs.replace(plan, instances=plan.instances[::-1])
    with pytest.raises(ModelError, match="do not follow from its schedule"):
        changed.plan()
    illegal = msgspec.structs.replace(plan, schedule=type(plan.schedule).of_ops((1, 0, 2, 3)))
    with pytest.raises(ModelError, match="schedule is not legal"):
        illegal.plan()


def test_same_plan_same_bytes(path, tmp_path):
    write_plan(tmp_path / "again", samples.plan_file())
    assert (tmp_path / "again").read_bytes() == path.read_bytes()


def test_missing(tmp_path):
    with pytest.raises(ModelError, match=r"plan .*no\.json does not exist"):
        read_plan(tmp_path / "no.json")


def test_directory(tmp_path):
    with pytest.raises(ModelError, match="cannot be read: Is a directory"):
        read_plan(tmp_path)


@settings(max_examples=40)
@given(st.floats(0, 0.999))
def test_truncated_anywhere(tmp_path_factory, share):
    whole = msgspec.json.encode(samples.plan_file())
    file = tmp_path_factory.mktemp("plan") / "cut.json"
    file.write_bytes(whole[: int(len(whole) * share)])
    with pytest.raises(ModelError, match=f"^plan {re.escape(str(file))} is truncated or not JSON"):
        read_plan(file)


@pytest.mark.parametrize("data", [b"\xff\xfe\x00", b"[" * 100_000, b"\x08\x07onnx"])
def test_not_json(tmp_path, data):
    (tmp_path / "x").write_bytes(data)
    with pytest.raises(ModelError) as caught:
        read_plan(tmp_path / "x")
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize("data", ["[]", "{}", '{"format": 3}', '{"format": "other", "version": 1}', "null"])
def test_json_but_no_plan(tmp_path, data):
    (tmp_path / "x").write_text(data)
    with pytest.raises(ModelError, match="is not a remat plan"):
        read_plan(tmp_path / "x")


def test_newer_version_even_with_another_shape(tmp_path):
    (tmp_path / "x").write_text('{"format": "remat-plan", "version": 7, "anything": []}')
    with pytest.raises(ModelError, match=r"newer remat \(plan version 7, this one reads up to 1\): upgrade"):
        read_plan(tmp_path / "x")


def test_damaged(path):
    edit(path, graph={"ops": 1})
    with pytest.raises(ModelError, match="is damaged: Expected `array`"):
        read_plan(path)


def test_ids_that_make_no_graph(path):
    values = json.loads(path.read_text())
    values["graph"]["ops"][0]["inputs"] = [99]
    edit(path, graph=values["graph"])
    with pytest.raises(ModelError, match="is damaged: op 0: tensor id 99 does not exist"):
        read_plan(path)


def test_other_model(path):
    plan = read_plan(path)
    check_belongs(plan, "a" * 64)
    with pytest.raises(ModelError, match="belongs to another model"):
        check_belongs(plan, "f" * 64)


def test_is_plan(path, tmp_path):
    (tmp_path / "model.onnx").write_bytes(b"\x08\x08\x12\x07pytorch")
    assert is_plan(path)
    assert not is_plan(tmp_path / "model.onnx")
    assert not is_plan(tmp_path / "no")


def test_odd_names_survive(path):
    plan = read_plan(path)
    tensor = Tensor('ünicode "quoted" \n', "float", (), 4)
    changed = msgspec.structs.replace(
        plan, graph=msgspec.structs.replace(plan.graph, tensors=(tensor, *plan.graph.tensors[1:]))
    )
    write_plan(path, changed)
    assert read_plan(path) == changed


def test_published_schema_is_up_to_date():
    assert SCHEMA_PATH.read_text(encoding="utf-8") == schema_text(plan_schema()), (
        "run python -m remat_cli.core.files.plan_schema"
    )


def test_schema_speaks_of_every_field_and_fixes_the_version():
    schema = plan_schema()
    assert schema["$schema"].startswith("https://json-schema.org/")
    plan = schema["$defs"]["PlanFile"]
    assert set(plan["properties"]) == set(PlanFile.__struct_fields__)
    assert {"format", "version", "graph", "schedule"} <= set(plan["required"])
    assert plan["properties"]["version"] == {"const": VERSION}


@pytest.mark.parametrize("plan", [samples.plan_file(), samples.split_plan_file()], ids=["whole", "split"])
def test_every_written_key_is_in_the_schema(tmp_path, plan):
    write_plan(tmp_path / "plan.json", plan)
    schema = plan_schema()
    check(json.loads((tmp_path / "plan.json").read_text()), {"$ref": schema["$ref"]}, schema["$defs"])


def check(value, schema, definitions):
    """A schema checker for what our schema uses: references, unions, constants, objects, arrays, plain types."""
    if "$ref" in schema:
        schema = definitions[schema["$ref"].rpartition("/")[2]]
    if "anyOf" in schema:
        return check_any(value, schema["anyOf"], definitions)
    assert value == schema.get("const", value)
    assert value in schema.get("enum", [value])
    types = {"object": dict, "array": list, "string": str, "integer": int, "number": (int, float), "boolean": bool}
    assert isinstance(value, types[schema["type"]] if schema.get("type") in types else object)
    if isinstance(value, dict):
        assert set(schema.get("required", ())) <= set(value)
        for key, item in value.items():
            part = schema.get("properties", {}).get(key, schema.get("additionalProperties", True))
            check(item, part if isinstance(part, dict) else {}, definitions)
    if isinstance(value, list) and isinstance(schema.get("items"), dict):
        for item in value:
            check(item, schema["items"], definitions)
    return None


def check_any(value, choices, definitions):
    for choice in choices:
        try:
            return check(value, choice, definitions)
        except AssertionError:
            continue
    raise AssertionError(f"{value!r} fits no choice of {choices}")
