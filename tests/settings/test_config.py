from __future__ import annotations

import os
from fractions import Fraction
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from remat_cli.base.errors import ConfigError
from remat_cli.base.processes import available_cores
from remat_cli.cli.printing import Printing, printing_of
from remat_cli.core.values.budget import parse_budget
from remat_cli.core.values.sizes import SizeRange
from remat_cli.devices.provider_table import named_spec
from remat_cli.settings.parsers import parse_dims, parse_input_shapes, parse_options, parse_seconds
from remat_cli.settings.settings import (
    Settings,
    load_settings,
    output_paths,
    require_budget,
)
from remat_cli.settings.yaml_file import read_yaml

CONFIGS = Path(__file__).resolve().parents[2] / "configs"


def yaml_file(tmp_path, text):
    file = tmp_path / "settings.yaml"
    file.write_text(text, encoding="utf-8")
    return file


@pytest.mark.parametrize(
    ("value", "mode"),
    [(True, "on"), (False, "off"), ("thorough", "thorough"), ("fast", "fast"), ("on", "on"), ("true", "on")],
)
def test_verification_is_a_mode_or_yes_or_no(tmp_path, value, mode):
    assert load_settings({"verify": value}).verify == mode
    assert load_settings({}, yaml_file(tmp_path, f"verify: {value}")).verify == mode


def test_verification_of_another_mode_is_refused():
    with pytest.raises(ConfigError, match="verify 'slow' is not a mode"):
        load_settings({"verify": "slow"})


def test_defaults():
    config = load_settings({})
    assert (config.solver, config.order, config.devices) == ("auto", "free", (named_spec("cpu"),))
    assert (config.time_limit_seconds, config.search_seconds, config.gap_share) == (None, 30.0, Fraction(1, 1000))
    assert (config.max_overhead_share, config.least_overhead_share) == (None, Fraction(1, 5))
    assert config.workers == available_cores() >= 1
    assert config.verify == "on"
    assert config.capped_run
    assert not config.force
    assert config.budget is None
    assert (config.split, config.max_tiles, config.split_axis.kind) == ("auto", 32, "auto")
    assert not config.allow_reassociation
    assert config.race_share == Fraction(3, 10)


@pytest.mark.parametrize(
    ("text", "mode"), [("split: off", "off"), ("split: 'off'", "off"), ("split: max", "max"), ("split: auto", "auto")]
)
def test_split_modes_of_a_file(tmp_path, text, mode):
    file = yaml_file(tmp_path, text)
    assert load_settings({}, file).split == mode
    assert load_settings({"split": "max"}, file).split == "max"


def test_split_settings_of_a_file(tmp_path):
    file = yaml_file(tmp_path, "max-tiles: 8\nsplit-axis: 2\nallow_reassociation: yes\n")
    config = load_settings({}, file)
    assert (config.max_tiles, config.split_axis.axes(4), config.allow_reassociation) == (8, (2,), True)
    assert load_settings({"split_axis": "auto"}, file).split_axis.kind == "auto"


def test_flags_of_every_kind():
    config = load_settings(
        {
            "budget": "80%",
            "devices": ("cpu", "cuda:0"),
            "options": ("max-copies=3", "mode=a=b"),
            "dims": ("batch=8",),
            "input_shapes": ("x:0:1,3", "s:"),
            "time_limit": "2m",
            "gap": "0.5%",
            "max_overhead": "150%",
            "threads": 2,
            "force": None,
        }
    )
    assert config.budget == parse_budget("80%")
    assert [spec.name for spec in config.devices] == ["cpu", "cuda:0"]
    assert config.options == {"max_copies": "3", "mode": "a=b"}
    assert config.dims == {"batch": 8}
    assert config.input_shapes == {"x:0": (1, 3), "s": ()}
    assert (config.time_limit_seconds, config.gap_share, config.max_overhead_share) == (120, Fraction(1, 200), 1.5)
    assert config.workers == 2


@pytest.mark.parametrize("name", ["default", "fast", "exact"])
def test_shipped_files_are_valid(name):
    assert load_settings({}, CONFIGS / f"{name}.yaml").solver in {"auto", "local-search"}


def test_default_yaml_is_what_happens_without_it():
    assert load_settings({}, CONFIGS / "default.yaml") == load_settings({})


def test_flags_win_over_the_file(tmp_path):
    file = yaml_file(
        tmp_path,
        "budget: 0.8\norder: keep\nseed: 5\ndims: {batch: 8, height: 4}\nsolvers: {local_search: {restarts: 2, a: 1}}\n"
        "time-limit: 5\nportable: yes\n",
    )
    flags = {"seed": 6, "dims": ("batch=1",), "solver": "local-search", "options": ("restarts=9",), "portable": None}
    config = load_settings(flags, file)
    assert config.budget == parse_budget("0.8")
    assert (config.order, config.seed, config.time_limit_seconds, config.portable) == ("keep", 6, 5.0, True)
    assert config.dims == {"batch": 1, "height": 4}
    assert config.solver_options == {"restarts": "9", "a": 1}


def test_per_device_budget_as_a_mapping(tmp_path):
    config = load_settings({}, yaml_file(tmp_path, "budget: {cpu: 2GiB, 'cuda:0': 512MiB}\n"))
    assert config.budget is not None
    assert config.budget.for_device("cuda:0").bytes == 2**29


def test_options_of_other_solvers_stay_out():
    config = load_settings({"solver": "auto"})
    assert config.solver_options == {}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("sovler: auto", "unknown key 'sovler'; did you mean 'solver'?"),
        ("time_limits: 3s", "did you mean 'time_limit'?"),
        ("zzz: 3", "known keys: budget"),
        ("order: sideways", "order = 'sideways' cannot be used"),
        ("seed: many", "seed = 'many' cannot be used"),
        ("seed: -1", "seed = -1 must not be negative"),
        ("threads: -2", "threads = -2 must not be negative"),
        ("budget: 120%", "settings.yaml: budget '120%'"),
        ("time_limit: soon", "time limit 'soon' is not a duration"),
        ("time_limit: 0s", "time limit '0s'"),
        ("gap: 20", "gap '20' is too large"),
        ("gap: -1%", "gap '-1%' is not a share"),
        ("max_overhead: 20", "write a percentage such as 20%"),
        ("dims: {batch: many}", "dimension batch=many"),
        ("dims: 8", "dimension '8' is not understood"),
        ("input_shapes: {x: [1, a]}", "must be integers"),
        ("solvers: [auto]", "solvers must map"),
        ("solvers: {auto: 3}", "solvers = "),
        ("devices: [cpu, cpu]", "one is named twice"),
        ("inputs: no/such.npz", "inputs file no/such.npz does not exist"),
        ("work_dir: no/such", "work directory no/such does not exist"),
        ("- a\n- b", "must hold `key: value` lines"),
        ("a: [", "is not YAML"),
        ("a: 1\n\tb: 2", "is not YAML"),
        ("format: xml", "format = 'xml'"),
        ("split: on", "split 'on' is not a mode: write auto, off or max"),
        ("split: 3", "split '3' is not a mode"),
        ("max_tiles: 1", "max_tiles = 1 must be at least 2"),
        ("max_tiles: few", "max_tiles = 'few' cannot be used"),
        ("split_axis: up", "split axis 'up' is not an axis"),
        ("split_axis: [2, 3]", "split axis '[2, 3]' is not an axis"),
        ("allow_reassociation: 3", "allow_reassociation = 3 cannot be used"),
    ],
)
def test_bad_files_get_one_clear_line(tmp_path, text, words):
    file = yaml_file(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        printing_of({}, file) if text.startswith("format") else load_settings({}, file)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_missing_and_unreadable_files(tmp_path):
    with pytest.raises(ConfigError, match="does not exist"):
        load_settings({}, tmp_path / "no.yaml")
    with pytest.raises(ConfigError, match="cannot be read"):
        load_settings({}, tmp_path)
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="cannot be read"):
        read_yaml(tmp_path / "binary")


def test_empty_file_changes_nothing(tmp_path):
    assert load_settings({}, yaml_file(tmp_path, "# nothing\n")) == load_settings({})


@pytest.mark.parametrize(
    ("text", "seconds"), [("30s", 30), ("2m", 120), ("2min", 120), ("500ms", 0.5), ("1h", 3600), ("1.5", 1.5), (4, 4)]
)
def test_durations(text, seconds):
    assert parse_seconds(text) == seconds


@pytest.mark.parametrize("text", ["", "0", "-3s", "3 weeks", "ms", "nan", "1e3", "inf"])
def test_bad_durations(text):
    with pytest.raises(ConfigError, match="time limit"):
        parse_seconds(text)


@pytest.mark.parametrize("given", [("height=32..256:16", "batch=8..8:4"), {"height": "32..256:16", "batch": 8}])
def test_dims_in_steps(given):
    assert parse_dims(given) == {"height": SizeRange("height", 32, 256, 16), "batch": 8}


def test_steps_are_read_from_yaml(tmp_path):
    path = tmp_path / "sizes.yaml"
    path.write_text("dims: {height: 32..256:16}\n")
    assert parse_dims(yaml.safe_load(path.read_text())["dims"]) == {"height": SizeRange("height", 32, 256, 16)}


@pytest.mark.parametrize("text", ["batch", "=8", "batch=", "batch=+-", "batch=-1", "batch=1.5", "x=1.."])
def test_bad_dims(text):
    with pytest.raises(ConfigError, match="--dim batch=8"):
        parse_dims((text,))


@pytest.mark.parametrize("text", ["x", ":1", "x:a", "x:1,", "x:-1", "x:1x2"])
def test_bad_input_shapes(text):
    with pytest.raises(ConfigError, match="--input-shape x:1,3,224,224"):
        parse_input_shapes((text,))


def test_bad_options():
    with pytest.raises(ConfigError, match="--option max_copies=2"):
        parse_options(("novalue",))


@given(
    st.dictionaries(st.from_regex(r"[A-Za-z_:/.]{1,12}", fullmatch=True), st.lists(st.integers(0, 10**6), max_size=5))
)
def test_input_shapes_round_trip(shapes):
    texts = tuple(f"{name}:{','.join(str(size) for size in sizes)}" for name, sizes in shapes.items())
    assert parse_input_shapes(texts) == {name: tuple(sizes) for name, sizes in shapes.items()}


def test_the_cache_directory_is_the_one_that_was_chosen(monkeypatch):
    monkeypatch.setenv("REMAT_CACHE_DIR", "/c")
    assert load_settings({}).cache_dir == Path("/c")
    assert not load_settings({}).conditions.forgets_costs


def test_no_color(monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert printing_of({}, None).color
    monkeypatch.setenv("NO_COLOR", "1")
    assert not printing_of({}, None).color


def test_how_a_command_speaks_is_no_setting(tmp_path):
    file = tmp_path / "c.yaml"
    file.write_text("quiet: true\nformat: json\nseed: 4\n")
    assert load_settings({"verbose": True}, file).seed == 4
    assert printing_of({"verbose": True, "format": None}, file) == Printing("json", quiet=True, verbose=True)
    file.write_text("quiet: perhaps\n")
    with pytest.raises(ConfigError, match="quiet = 'perhaps' cannot be used"):
        printing_of({}, file)


def test_a_budget_can_be_required():
    with pytest.raises(ConfigError, match="no budget: add --budget"):
        require_budget(Settings())
    assert require_budget(load_settings({"budget": "min"})).kind == "min"


def test_default_outputs_stand_beside_the_model(tmp_path):
    outputs = output_paths(tmp_path / "net.onnx", load_settings({}))
    assert outputs.model == tmp_path / "net.remat.onnx"
    assert outputs.plan == tmp_path / "net.plan.json"
    assert outputs.failed == tmp_path / "net.remat.failed.onnx"


def test_the_plan_follows_the_output(tmp_path):
    outputs = output_paths(tmp_path / "net.onnx", load_settings({"output": str(tmp_path / "small.onnx")}))
    assert outputs.plan == tmp_path / "small.plan.json"
    assert outputs.failed == tmp_path / "small.failed.onnx"


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"output": "net.onnx"}, "output net.onnx would overwrite net.onnx"),
        ({"output": "./net.onnx", "force": True}, "would overwrite net.onnx"),
        ({"output": "there.onnx"}, "there.onnx exists: add --force"),
        ({"output": "no/such/out.onnx"}, "directory no/such does not exist"),
        ({"output": "folder"}, "folder is a directory"),
        ({"plan": "net.onnx", "force": True}, "would overwrite net.onnx"),
        ({"plan": "out.onnx", "output": "out.onnx"}, "output out.onnx would overwrite out.onnx"),
        ({"plan": "folder"}, "is a directory"),
        ({"plan": "no/such.json"}, "directory no does not exist"),
    ],
)
def test_bad_outputs(tmp_path, monkeypatch, flags, words):
    monkeypatch.chdir(tmp_path)
    for name in ("net.onnx", "there.onnx"):
        Path(name).write_bytes(b"")
    os.mkdir("folder")
    with pytest.raises(ConfigError) as caught:
        output_paths(Path("net.onnx"), load_settings(flags))
    assert words in str(caught.value)


def test_force_overwrites(tmp_path):
    (tmp_path / "net.remat.onnx").write_bytes(b"")
    (tmp_path / "net.plan.json").write_bytes(b"")
    with pytest.raises(ConfigError, match="--force"):
        output_paths(tmp_path / "net.onnx", load_settings({}))
    output_paths(tmp_path / "net.onnx", load_settings({"force": True}))


@pytest.mark.parametrize(("text", "rate"), [("host:12GB/s", 12e9), ("host:1GiB/s", 2.0**30), ("host:0.5GB/s", 5e8)])
def test_the_host_behind_a_link_of_known_speed(text, rate):
    spill = load_settings({"spill": text}).spill
    assert spill is not None
    assert (spill.memory, spill.folder) == ("host", "")
    assert (spill.write_bytes_per_second, spill.read_bytes_per_second) == (rate, rate)


@pytest.mark.parametrize("text", ["host:", "host:12GB", "host:12GB/h", "host:fast/s", "host:0/s"])
def test_speeds_that_are_none(text):
    with pytest.raises(ConfigError, match=r"spill 'host:|is not a size"):
        load_settings({"spill": text})
