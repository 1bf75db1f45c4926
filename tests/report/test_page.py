"""Pages for a browser: all that they show is in the file, nothing comes from elsewhere, and a browser draws it."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser

import msgspec
import pytest

from remat_cli.base.errors import MissingDependency
from remat_cli.core.files.plan_file import FileRef
from remat_cli.core.schedule.simulate import baseline
from remat_cli.core.values.curve import CurvePoint, LadderStep
from remat_cli.core.values.told_names import ToldNames
from remat_cli.report.page import html
from remat_cli.report.page.charts import memory_chart
from remat_cli.report.page.pages import model_page, plan_page
from remat_cli.report.page.values import Course, Page, PageTable, PageTensor, Point, commands_of, course_of
from tests.report import device_samples, samples

BROWSER = shutil.which("chromium") or shutil.which("google-chrome")
MOST_BYTES = 5 * 2**20
STEPS = 5000


class Read(HTMLParser):
    """What a page holds: tags with attributes, data by name, and its text."""

    VOID = ("meta", "link", "input", "br")

    def __init__(self, data: bytes) -> None:
        super().__init__()
        self.tags, self.open, self.data, self.text = [], [], {}, ""
        self.feed(data.decode())
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop()[0] == tag

    def handle_data(self, data):
        tag, attributes = self.open[-1] if self.open else ("", {})
        if tag == "script" and attributes.get("type") == "application/json":
            self.data[attributes["id"]] = json.loads(data)
        elif tag not in ("script", "style"):
            self.text += data


@pytest.fixture
def without_bundle(monkeypatch):
    """As if what draws the charts were installed; nothing is drawn."""

    class Charts:
        def javascript_bundle(self):
            return "window.vegaEmbed = () => Promise.resolve({});"

    monkeypatch.setattr(html, "_charts_module", Charts)


def plan_of(report=None):
    return plan_page(report or samples.inspect_report(), samples.plan_file())


def large_page() -> Page:
    """A run of many steps, each of which makes a tensor that the next one reads."""
    tensors = tuple(
        PageTensor(
            name=f"t{n}",
            size_bytes=2**20 + n,
            shape=(n, 4),
            maker=f"op{n}",
            readers=(f"op{n + 1}",),
            lives=((n, n + 1),),
        )
        for n in range(STEPS)
    )
    held = tuple(2**20 * (1 + n % 97) for n in range(STEPS))
    ops = tuple(f"layer.{n}.module (Conv)" for n in range(STEPS))
    course = Course(title="large", ops=ops, memory_bytes=held, tensors=tensors, budget_bytes=2**26)
    curve = (Point(2**25, 12.0, "plan"), Point(2**26, 0.0, "plan"))
    return Page(title="large", verdict="fits", summary="many steps", courses=(course, course), curve=curve)


@pytest.mark.usefixtures("without_bundle")
def test_a_page_needs_nothing_from_elsewhere():
    read = Read(html.page_html(plan_of()))
    for tag, attributes in read.tags:
        assert not any(name in attributes for name in ("src", "onload", "onclick")), tag
        assert all(link.startswith(("#", "data:")) for name, link in attributes.items() if name == "href")
    policy = next(each["content"] for tag, each in read.tags if each.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none'")


@pytest.mark.usefixtures("without_bundle")
def test_the_page_of_a_plan_has_both_courses_promises_and_commands():
    plan = samples.plan_file()
    read = Read(html.page_html(plan_of()))
    course = read.data["course-0"]
    assert tuple(course["bytes"]) == plan.promise.memory_bytes
    assert len(course["ops"]) == len(plan.promise.order)
    assert read.data["course-1"]["bytes"] == list(plan.promise.baseline_memory_bytes)
    rules = [layer for layer in read.data["memory-0"]["layer"] if layer["mark"]["type"] == "rule"]
    assert [one["encoding"]["y"]["datum"] for one in rules] == [plan.request.budget_bytes / 2**20]
    heights = {read.data[f"memory-{n}"]["layer"][0]["encoding"]["y"]["scale"]["domain"][1] for n in (0, 1)}
    assert len(heights) == 1 or max(heights) == plan.request.budget_bytes / 2**20  # both to the same height
    again = {one["name"]: one["lives"] for one in course["tensors"]}
    assert any(len(lives) > 1 for lives in again.values())  # what is made again lives twice
    for words in ("made again at step", "Promised and measured", f"remat compile {plan.source.path} --budget 80%"):
        assert words in read.text


@pytest.mark.usefixtures("without_bundle")
def test_the_page_of_a_plan_draws_it_between_the_original_and_other_plans_that_were_known():
    plan = samples.plan_file()
    cost, least = plan.solved.overhead_percent, plan.promise.peak_bytes
    known = (
        CurvePoint("mine", least, least, least, 1 + cost / 100),
        CurvePoint("less", least - 1, least - 1, least, 2 + cost / 100),
    )
    report = samples.inspect_report()
    assert not plan_page(report, plan).curve
    page = plan_page(report, msgspec.structs.replace(plan, curve=known))
    assert [(one.bytes, one.label) for one in page.curve] == [
        (least - 1, "known plan"),
        (least, "this plan"),
        (plan.promise.baseline_peak_bytes, "the original"),
    ]


@pytest.mark.usefixtures("without_bundle")
def test_a_long_table_shows_its_first_rows_and_folds_the_rest():
    table = PageTable(title="ops", heads=("op",), rows=tuple((f"op_{n}",) for n in range(90)))
    data = html.page_html(Page(title="t", verdict="", summary="", courses=(), tables=(table,))).decode()
    before, _, folded = data.partition("<summary>78 more</summary>")
    assert "<td>op_11</td>" in before
    assert "<td>op_12</td>" not in before
    assert "<td>op_89</td>" in folded


def test_commands_name_files_that_have_names_of_their_own():
    plan = samples.plan_file()
    renamed = msgspec.structs.replace(
        plan, source=FileRef("a b/net.onnx", ""), output=FileRef("a b/small.onnx", ""), verification=None
    )
    first, *others = commands_of(renamed, "a b/small.plan.json")
    assert first.startswith("remat compile 'a b/net.onnx' --budget 80% ")
    assert first.endswith(" -o 'a b/small.onnx'")
    assert others[0] == "remat verify 'a b/small.plan.json'"
    assert commands_of(renamed, "p.json")[0].endswith(" -o 'a b/small.onnx' --plan p.json")
    usual = msgspec.structs.replace(renamed, output=FileRef("a b/net.remat.onnx", ""))
    assert " -o " not in commands_of(usual, "a b/net.plan.json")[0]


def test_who_is_alive_adds_up_to_what_the_judge_says():
    problem, graph = samples.problem(), samples.graph()
    plan = baseline(problem)
    course = course_of("x", graph, problem, plan, ToldNames())
    for step in range(len(course.ops)):
        alive = sum(one.size_bytes for one in course.tensors for first, last in one.lives if first <= step <= last)
        assert alive + problem.memories[0].fixed_bytes == plan.live_bytes[0][step]


@pytest.mark.usefixtures("without_bundle")
def test_the_page_of_a_model_has_what_less_memory_costs():
    ladder = (LadderStep(20 * 2**20, 5.0), LadderStep(10 * 2**20, 80.0, True))
    report = msgspec.structs.replace(
        samples.proposal_report(), ladder=ladder, names=ToldNames({"grow": "dec.0 (Resize)"})
    )
    read = Read(html.page_html(model_page(report, samples.graph(), samples.problem())))
    assert [one["time, %"] for one in read.data["curve"]["data"]["values"]] == [80.0, 5.0]
    assert "dec.0 (Resize)" in read.data["course-0"]["ops"]
    assert "Ops that run in tiles" in read.text


@pytest.mark.usefixtures("without_bundle")
def test_what_is_wrong_is_said_first():
    report = msgspec.structs.replace(samples.inspect_report(), budget_bytes=1000)
    read = Read(html.page_html(plan_of(report)))
    assert ("p", {"class": "verdict bad"}) in read.tags
    assert read.text.index("does not fit") < read.text.index("Memory over time")


@pytest.mark.usefixtures("without_bundle")
def test_markup_in_names_stays_text():
    evil = "</script><script>alert(1)</script>"
    course = Course(
        title=evil,
        ops=(evil,),
        memory_bytes=(1,),
        tensors=(
            PageTensor(name=evil, size_bytes=1, shape=(), maker=evil, readers=(evil,), lives=((0, 0),), why=evil),
        ),
    )
    table = PageTable(title=evil, heads=(evil,), rows=((evil,),), about=evil)
    page = Page(title=evil, verdict=evil, summary=evil, courses=(course,), tables=(table,), commands=(evil,))
    data = html.page_html(page)
    assert b"<script>alert" not in data
    assert Read(data).data["course-0"]["ops"] == [evil]


@pytest.mark.usefixtures("without_bundle")
def test_a_plan_on_several_devices_has_a_course_for_each_memory():
    report = device_samples.inspect_report(device_samples.several())
    page = plan_page(report, msgspec.structs.replace(samples.plan_file(), placement=device_samples.several().placement))
    assert [course.memory_bytes for course in page.courses] == [one.memory_bytes for one in report.memories]


def test_without_what_draws_charts_it_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    with pytest.raises(MissingDependency, match=re.escape('pip install "remat_cli[html]"')):
        html.require_charts()


def test_charts_are_specifications_that_vega_lite_takes():
    charts = pytest.importorskip("vl_convert")
    course = large_page().courses[0]
    drawn = charts.vegalite_to_svg(json.dumps({**memory_chart(course, max(course.memory_bytes)), "width": 600}))
    assert "<svg" in drawn
    assert "memory, MiB" in drawn


@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="no browser is installed")
@pytest.mark.parametrize("size", ["1200,900", "390,844"], ids=["desktop", "phone"])
def test_a_browser_draws_many_steps_at_once_and_says_nothing(tmp_path, size):
    pytest.importorskip("vl_convert")
    file = tmp_path / "page.html"
    data = html.page_html(large_page())
    assert len(data) < MOST_BYTES
    file.write_bytes(data)
    options = ["--headless=new", "--no-sandbox", "--disable-gpu", f"--window-size={size}", "--virtual-time-budget=8000"]
    done = subprocess.run(
        [
            BROWSER,
            *options,
            "--enable-logging=stderr",
            f"--user-data-dir={tmp_path / 'user'}",
            "--dump-dom",
            file.as_uri(),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert 'data-drawn="3"' in done.stdout
    assert "step 96 of 5000: layer.96.module (Conv), 97.00 MiB; alive: " in re.sub(r"<[^>]*>", "", done.stdout)
    assert "CONSOLE" not in done.stderr, done.stderr
