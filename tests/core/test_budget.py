from __future__ import annotations

import ast
import contextlib
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import remat_cli
from remat_cli.base.errors import ConfigError
from remat_cli.core.values.budget import (
    WHOLE,
    AskedBudget,
    Budget,
    describe_bytes,
    meant_share,
    parse_budget,
    parse_share,
    resolve,
)

PACKAGE = Path(remat_cli.__file__).parent
SIZES = {"": 1, "MiB": 2**20, "GB": 10**9, "K": 2**10, "kb": 10**3, "B": 1}


@pytest.mark.parametrize(
    ("text", "size"),
    [("512MiB", 2**29), ("2GB", 2 * 10**9), ("1.5G", 3 * 2**29), ("4096", 4096), ("1", 1), (" 7 B ", 7)],
)
def test_sizes(text, size):
    budget = parse_budget(text)
    assert (budget.kind, budget.bytes) == ("bytes", size)


@pytest.mark.parametrize(
    ("text", "share"),
    [
        ("80%", Fraction(4, 5)),
        ("0.8", Fraction(4, 5)),
        ("1.0", 1),
        ("100%", 1),
        ("33.3 %", Fraction(333, 1000)),
        (".5", Fraction(1, 2)),
    ],
)
def test_fractions_are_exact(text, share):
    budget = parse_budget(text)
    assert (budget.kind, budget.fraction) == ("fraction", share)


@pytest.mark.parametrize(
    "text",
    [
        "0",
        "-1",
        "120%",
        "abc",
        "0%",
        "0.0",
        "1.5",
        "",
        " ",
        "0MiB",
        "1e9",
        "5 parsecs",
        "80%%",
        "-80%",
        "nan",
        "inf",
        "%",
        ".",
    ],
)
def test_what_is_no_budget_is_refused_in_one_line(text):
    with pytest.raises(ConfigError) as caught:
        parse_budget(text)
    assert f"budget '{text.strip()}'" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_min():
    assert parse_budget("min").kind == parse_budget("MIN").kind == "min"


def test_per_device():
    budget = parse_budget("cpu=2GiB, cuda:0=512MiB")
    assert budget.kind == "per_device"
    assert budget.for_device("cpu").bytes == 2**31
    assert budget.for_device("cuda:0").bytes == 2**29
    with pytest.raises(ConfigError, match="names no device 'npu': add npu=SIZE"):
        budget.for_device("npu")


@pytest.mark.parametrize("text", ["cpu=", "=2GiB", "cpu=2GiB,", "cpu=1,cpu=2", "cpu=a=b", "cpu=0"])
def test_bad_per_device(text):
    with pytest.raises(ConfigError, match="budget"):
        parse_budget(text)


def test_a_plain_budget_is_every_devices():
    budget = parse_budget("80%")
    assert budget.for_device("anything") is budget


@pytest.mark.parametrize(
    ("text", "scope", "budget"),
    [
        ("80%", "live", Budget(100 + 721, "live", "share")),  # 0.8 x 901 = 720.8, rounded up
        ("80%", "activations", Budget(100 + 721, "live", "share")),
        ("100%", "live", Budget(1001, "live", "share")),
        ("500", "live", Budget(500, "live", "typed")),
        ("500", "activations", Budget(600, "live", "typed")),
        ("500", "process", Budget(500, "process", "typed")),
        ("1001", "live", Budget(1001, "live", "share")),
        ("1001", "process", Budget(1001, "process", "typed")),
        ("min", "live", Budget(1001, "live", "min")),
    ],
)
def test_resolve(text, scope, budget):
    assert resolve(parse_budget(text).bounding(scope), 100, 1001) == budget


@pytest.mark.parametrize(("scope", "bytes_"), [("process", 300), ("live", 300), ("activations", 400)])
def test_what_a_process_leaves_to_live_tensors_says_so(scope, bytes_):
    left = parse_budget("cpu=500").bounding(scope).leaving(300)
    assert left.text == "cpu=500"
    assert resolve(left.for_device("cpu"), 100, 1001) == Budget(bytes_, "live", "process")


def test_only_a_budget_on_the_process_bounds_one():
    assert parse_budget("cpu=500").bounding("process").process_bytes == 500
    assert parse_budget("500").process_bytes is None


def test_resolve_is_exact_where_floats_are_not():
    peak = 10**17 + 1
    assert resolve(parse_budget("10%"), 0, peak).bytes == 10**16 + 1
    assert resolve(parse_budget("70%"), 0, 10).bytes == 7  # 0.7 x 10 in floats is 7.000000000000001 on some routes


def test_a_budget_per_device_has_no_single_number():
    with pytest.raises(ConfigError):
        resolve(parse_budget("cpu=1"), 0, 10)


@given(st.integers(1, 10**15), st.sampled_from(sorted(SIZES)), st.sampled_from(["", " "]))
def test_sizes_round_trip(count, unit, blank):
    assert parse_budget(f"{count}{blank}{unit}").bytes == count * SIZES[unit]


@given(st.integers(1, 10_000), st.integers(0, 10**12), st.integers(0, 10**12))
def test_a_percentage_lies_between_fixed_and_baseline(hundredths, fixed, above):
    budget = parse_budget(f"{hundredths // 100}.{hundredths % 100:02d}%")
    total = resolve(budget, fixed, fixed + above).bytes
    assert fixed <= total <= fixed + above
    assert total - fixed == -(-hundredths * above // 10_000)


@given(st.text(max_size=12))
def test_any_text_is_a_budget_or_a_clear_error(text):
    with contextlib.suppress(ConfigError):
        assert isinstance(parse_budget(text), AskedBudget)


def test_budgets_are_parsed_at_the_edge_and_resolved_in_one_file():
    """Of the rooms that a compile goes through, only settings read texts; benches have files of their own."""
    users: dict[str, set[str]] = {"parse_budget": set(), "resolve": set()}
    for file in sorted(PACKAGE.rglob("*.py")):
        text = file.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(text)) if "remat_cli.core.values.budget" in text else ():
            if isinstance(node, ast.ImportFrom) and node.module == "remat_cli.core.values.budget":
                for name in users.keys() & {each.name for each in node.names}:
                    users[name].add(file.relative_to(PACKAGE).as_posix())
    assert users["resolve"] == {"compiling/ask.py"}
    assert {file.partition("/")[0] for file in users["parse_budget"]} == {"settings", "contest"}


def test_what_all_is_is_100_percent():
    assert parse_budget("100%") == WHOLE


def test_share():
    assert parse_share("20%", "x") == parse_share("0.2", "x") == Fraction(1, 5)
    with pytest.raises(ConfigError, match="gap 'much' is not a share"):
        parse_share("much", "gap")


def test_bytes_are_shown_exactly_and_readably():
    assert describe_bytes(41943040) == "41,943,040 bytes (40.00 MiB)"


@pytest.mark.parametrize(
    ("text", "meant"), [("80percent", "80%"), ("20 Megabytes", "20MB"), ("30MBi", "30MB"), ("3x", None), ("abc", None)]
)
def test_what_was_probably_meant_is_named(text, meant):
    with pytest.raises(ConfigError, match="is not a budget") as told:
        parse_budget(text)
    assert (f"did you mean {meant}?" in str(told.value)) is (meant is not None)


@pytest.mark.parametrize(
    ("text", "share"), [("80", "80%"), ("100", "100%"), ("101", None), ("80B", None), ("0.8", None)]
)
def test_few_bytes_without_a_unit_were_meant_as_a_share(text, share):
    assert meant_share(text) == share
