"""Exit codes, stdout and stderr apart, and what reaches the pipeline."""

from __future__ import annotations

import importlib.util
import json
from fractions import Fraction
from pathlib import Path

import pytest

from remat_cli.base.errors import BrokenSolver, ConfigError, MissingDependency, ModelError, RuntimeFailure
from remat_cli.base.progress import OPTIMISING, PROFILING, SOLVING
from remat_cli.cli import COMMANDS, make_group
from remat_cli.cli.ending import Terminated
from tests.report import samples

COMPILE = ("compile", "net.onnx", "--budget", "80%")
TRAIN = ("train", "net.onnx", "--loss", "mse")
MAX_BATCH = ("max-batch", "net.onnx", "--loss", "mse", "--budget", "2MiB")
WORDS = {
    "train": TRAIN,
    "max-batch": MAX_BATCH,
    "compile": COMPILE,
    "profile": ("profile", "net.onnx"),
    "inspect": ("inspect", "net.onnx"),
    "verify": ("verify", "old.plan.json"),
    "solve": ("solve", "graph.json", "--budget", "0.9"),
}


@pytest.mark.parametrize("command", WORDS)
def test_text_goes_to_stdout_alone(remat, command):
    outcome = remat(*WORDS[command])
    assert outcome.code == 0
    assert outcome.out
    assert outcome.err == ""


@pytest.mark.parametrize("command", WORDS)
def test_json_is_the_only_thing_on_stdout(remat, pipeline, command):
    pipeline.during = lambda progress: (progress.stage(SOLVING), progress.note("careful"))
    outcome = remat(*WORDS[command], "--format", "json")
    assert outcome.code == 0
    assert isinstance(json.loads(outcome.out), dict)
    assert outcome.err == "solving\nnote: careful\n"


@pytest.mark.parametrize("command", WORDS)
def test_quiet_leaves_stderr_empty(remat, pipeline, command):
    pipeline.during = lambda progress: (progress.stage(SOLVING), progress.incumbent(1.0, None), progress.note("x"))
    outcome = remat(*WORDS[command], "--quiet")
    assert (outcome.code, outcome.err) == (0, "")


@pytest.mark.parametrize(
    ("report", "code"),
    [(samples.impossible_report(), 3), (samples.compile_report(samples.verification(outputs_identical=False)), 5)],
)
def test_compile_answers_with_its_exit_code(remat, pipeline, report, code):
    pipeline.reports["compile_model"] = report
    outcome = remat(*COMPILE)
    assert outcome.code == code
    assert outcome.out
    assert outcome.err == ""


@pytest.mark.parametrize(("status", "code"), [("infeasible", 3), ("not_found", 4), ("feasible", 0)])
def test_solve_answers_with_its_exit_code(remat, pipeline, status, code):
    pipeline.reports["solve_instance"] = samples.solve_report(status)
    assert remat(*WORDS["solve"]).code == code
    assert remat(*WORDS["solve"], "--format", "json").code == code


def test_verify_takes_a_file_beside_its_original(remat, pipeline, folder):
    for name in ("net.remat.onnx", "net.onnx"):
        Path(name).write_bytes(b"no plan")
    pipeline.reports["verify_beside"] = samples.file_report(25 * 2**20)
    assert remat("verify", "net.remat.onnx", "--original", "net.onnx").code == 4
    assert pipeline.calls[-1][:2] == ("verify_beside", Path("net.remat.onnx"))


def test_verify_answers_with_its_exit_code(remat, pipeline):
    pipeline.reports["verify_plan"] = samples.verify_report(samples.verification(outputs_identical=False))
    assert remat(*WORDS["verify"]).code == 5


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ModelError("model net.onnx is truncated"), 2),
        (ConfigError("no solver named 'x'"), 2),
        (MissingDependency("no GPU"), 1),
        (RuntimeFailure("the runtime refused"), 1),
        (BrokenSolver("auto: illegal schedule"), 1),
    ],
)
@pytest.mark.parametrize("form", ["text", "json"])
def test_errors_are_one_line_on_stderr(remat, pipeline, error, code, form):
    pipeline.error = error
    outcome = remat(*COMPILE, "--format", form)
    assert (outcome.code, outcome.out, outcome.err) == (code, "", f"error: {error}\n")


def test_a_bug_is_one_line_unless_debugging(remat, pipeline):
    pipeline.error = ZeroDivisionError("division\nby zero")
    outcome = remat(*COMPILE)
    assert outcome.code == 1
    assert outcome.err == (
        "error: unexpected ZeroDivisionError: division by zero; run again with --debug for the traceback\n"
    )
    outcome = remat(*COMPILE, "--debug")
    assert outcome.code == 1
    assert outcome.err.startswith("Traceback (most recent call last):")
    assert outcome.err.endswith("error: unexpected ZeroDivisionError: division by zero\n")


@pytest.mark.parametrize(
    ("stop", "code", "word"), [(KeyboardInterrupt, 130, "interrupted"), (Terminated, 143, "terminated")]
)
def test_a_signal_that_a_module_made_an_error_of_is_still_one(remat, pipeline, stop, code, word):
    pipeline.error = ImportError("initialization failed")
    pipeline.error.__cause__ = stop()
    outcome = remat(*COMPILE)
    assert (outcome.code, outcome.out, outcome.err) == (code, "", f"error: {word}\n")


def test_interrupt_outside_solving_is_130(remat, pipeline):
    pipeline.error = KeyboardInterrupt()
    outcome = remat(*COMPILE)
    assert (outcome.code, outcome.out, outcome.err) == (130, "", "error: interrupted\n")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("compile", "no.onnx", "--budget", "80%"), "File 'no.onnx' does not exist"),
        (("compile", ".", "--budget", "80%"), "is a directory"),
        (("compile", "net.onnx"), "no budget: add --budget"),
        (("compile",), "Missing argument 'MODEL'"),
        (("compile", "net.onnx", "--budget"), "requires an argument"),
        (("compile", "net.onnx", "--budget", "0"), "budget '0'"),
        (("compile", "net.onnx", "--budget", "-1"), "budget '-1'"),
        (("compile", "net.onnx", "--budget=-1"), "budget '-1'"),
        (("compile", "net.onnx", "--budget", "120%"), "budget '120%'"),
        (("compile", "net.onnx", "--budget", "abc"), "budget 'abc'"),
        (("compile", "net.onnx", "--budget", ""), "budget ''"),
        ((*COMPILE, "-o", "net.onnx"), "would overwrite net.onnx"),
        ((*COMPILE, "-o", "graph.json"), "'graph.json' must end in .onnx"),
        ((*COMPILE, "-o", "no/out.onnx"), "directory no does not exist"),
        ((*COMPILE, "--plan", "graph.json"), "graph.json exists: add --force"),
        ((*COMPILE, "--dim", "batch"), "dimension 'batch' is not understood"),
        ((*COMPILE, "--dim", "batch=x"), "dimension batch=x"),
        ((*COMPILE, "--input-shape", "x"), "input shape 'x'"),
        ((*COMPILE, "--option", "x"), "option 'x'"),
        ((*COMPILE, "--inputs", "no.npz"), "inputs file no.npz does not exist"),
        ((*COMPILE, "--time-limit", "soon"), "time limit 'soon'"),
        ((*COMPILE, "--gap", "big"), "gap 'big'"),
        (("compile", "net.onnx", "--budget", "9MiB", "--budget", "80%"), "9MiB and 80% are given: give one of them"),
        (("inspect", "net.onnx", "--budget", "cpu=9MiB", "--budget", "80%"), "give one of them"),
        ((*COMPILE, "--verify", "fast", "--no-verify"), "--no-verify and --verify fast are given"),
        ((*COMPILE, "--no-verify", "--verify"), "--no-verify and --verify on are given"),
        ((*COMPILE, "--verify=fast", "--verify", "thorough"), "--verify fast and --verify thorough are given"),
        ((*COMPILE, "--order", "sideways"), "'sideways' is not one of 'free', 'keep'"),
        ((*COMPILE, "--split", "sideways"), "'sideways' is not one of 'auto', 'off', 'max'"),
        ((*COMPILE, "--max-tiles", "1"), "max_tiles = 1 must be at least 2"),
        ((*COMPILE, "--max-tiles", "many"), "'many' is not a valid integer"),
        ((*COMPILE, "--split-axis", "up"), "split axis 'up' is not an axis"),
        (("inspect", "net.onnx", "--split-axis", "99"), "split axis '99' is not an axis"),
        ((*COMPILE, "--format", "xml"), "'xml' is not one of"),
        ((*COMPILE, "--seed", "x"), "'x' is not a valid integer"),
        ((*COMPILE, "--threads", "-1"), "threads = -1 must not be negative"),
        ((*COMPILE, "--frobnicate"), "No such option"),
        ((*COMPILE, "--config", "no.yaml"), "configuration no.yaml does not exist"),
        ((*COMPILE, "surplus"), "unexpected extra argument"),
        (("solve", "graph.json"), "no budget"),
        (("profile",), "Missing argument 'MODEL'"),
        (("profile", "net.onnx", "-o", "net.onnx"), "would overwrite net.onnx"),
        (("profile", "net.onnx", "-o", "graph.json"), "exists: add --force"),
        (("inspect", "net.onnx", "--svg", "picture.pdf"), "'picture.pdf' must end in .svg"),
        ((*COMPILE, "-o", "net.txt"), "'net.txt' must end in .onnx"),
        (("inspect", "net.onnx", "--budget", "0%"), "budget '0%'"),
        (("verify", "no.json"), "does not exist"),
        (("train", "net.onnx"), "no loss: add --loss"),
        ((*TRAIN, "--loss-output", "y"), "the loss can be only one"),
        ((*TRAIN, "--loss", "huber"), "'huber' is not one of"),
        ((*TRAIN, "--optimizer", "lion"), "'lion' is not one of"),
        ((*TRAIN, "--batch", "0"), "--batch 0"),
        ((*TRAIN, "--batch", "many"), "'many' is not a valid integer"),
        ((*TRAIN, "--optimizer-option", "beta1"), "write beta1=0.9"),
        ((*TRAIN, "--gradients-only", "--optimizer-option", "beta1=0.9"), "--optimizer-option needs --optimizer"),
        ((*TRAIN, "-o", "net.onnx"), "would overwrite net.onnx"),
        ((*TRAIN, "-o", "graph.json"), "graph.json exists: add --force"),
        ((*TRAIN, "-o", "no/step.onnx"), "directory no does not exist"),
        ((*TRAIN, "--budget", "0"), "budget '0'"),
        (("max-batch", "net.onnx", "--loss", "mse"), "no budget"),
        (("max-batch", "net.onnx", "--budget", "2MiB"), "no loss"),
        (("frobnicate",), "No such command 'frobnicate'"),
    ],
)
def test_bad_usage_is_one_line_and_nothing_is_done(remat, pipeline, folder, arguments, words):
    before = {path: path.read_bytes() for path in folder.iterdir()}
    outcome = remat(*arguments)
    assert outcome.code == 2
    assert outcome.out == ""
    assert len(outcome.err.splitlines()) == 1
    assert outcome.err.startswith("error: ")
    assert words in outcome.err
    assert pipeline.calls == []
    assert {path: path.read_bytes() for path in folder.iterdir()} == before


def test_flags_reach_the_pipeline(remat, pipeline):
    remat(
        *COMPILE, "--solver", "moccasin", "--option", "max_copies=2", "--order", "keep", "--time-limit", "2m",
        "--gap", "0", "--seed", "3", "--threads", "2", "--intra-op-threads", "1", "--portable", "--no-verify",
        "--no-capped-run", "--dim", "batch=8", "--dim", "len=4", "--input-shape", "x:1,3", "--max-overhead", "10%",
        "--budget-scope", "activations", "--device", "cpu", "--plan", "p.json", "-o", "o.onnx", "--verbose",
    )  # fmt: skip
    name, path, config = pipeline.calls[0]
    assert (name, path) == ("compile_model", Path("net.onnx"))
    assert (config.solver, config.solver_options, config.order) == ("moccasin", {"max_copies": "2"}, "keep")
    assert (config.time_limit_seconds, config.gap_share, config.max_overhead_share) == (120, 0, Fraction(1, 10))
    assert (config.seed, config.threads, config.intra_op_threads) == (3, 2, 1)
    assert (config.portable, config.verify, config.capped_run, config.budget_scope) == (
        True,
        "off",
        False,
        "activations",
    )
    assert (config.dims, config.input_shapes) == ({"batch": 8, "len": 4}, {"x": (1, 3)})
    assert (config.output, config.plan) == (Path("o.onnx"), Path("p.json"))


@pytest.mark.parametrize(
    ("words", "mode"),
    [
        ((), "on"),
        (("--verify",), "on"),
        (("--verify", "thorough"), "thorough"),
        (("--verify=fast",), "fast"),
        (("--no-verify",), "off"),
    ],
)
def test_verify_may_have_a_value_or_stand_alone(remat, pipeline, words, mode):
    for arguments in ((*COMPILE, *words), (COMPILE[0], *words, *COMPILE[1:])):
        remat(*arguments)
        assert pipeline.calls[-1][1:2] == (Path("net.onnx"),)
        assert pipeline.calls[-1][2].verify == mode


@pytest.mark.parametrize(("words", "mode"), [((), "on"), (("--verify", "thorough"), "thorough")])
def test_verify_has_the_same_word(remat, pipeline, words, mode):
    remat(*WORDS["verify"], *words)
    assert pipeline.calls[-1][2].verify == mode


@pytest.mark.parametrize("command", [TRAIN, MAX_BATCH])
def test_train_flags_reach_the_pipeline(remat, pipeline, command):
    outcome = remat(
        *command, "--output-name", "y", "--class-axis", "2", "--optimizer", "adamw", "--optimizer-option", "beta1=0.8",
        "--trainable", "a*", "--trainable", "b", "--freeze", "*.bias", "--batch-norm", "frozen", "--no-dropout",
        "--keep-outputs", "--gradient-rule", "My=rules:my", "--gradient-rule", "com.x:Op=rules:x", "--seed", "4",
    )  # fmt: skip
    assert (outcome.code, outcome.err) == (0, "")
    name, path, config = pipeline.calls[0]
    assert (name, path) == ({"train": "train_model", "max-batch": "find_max_batch"}[command[0]], Path("net.onnx"))
    train = config.train
    assert (train.loss, train.loss_output, train.output, train.class_axis) == ("mse", None, "y", 2)
    assert (train.optimizer, train.optimizer_options) == ("adamw", {"beta1": "0.8"})
    assert (train.trainable, train.frozen) == (("a*", "b"), ("*.bias",))
    assert (train.batch_norm, train.dropout, train.keep_outputs) == ("frozen", False, True)
    assert train.gradient_rules == {"My": "rules:my", "com.x:Op": "rules:x"}
    assert config.seed == 4


def test_what_a_step_gives_is_chosen_by_flags(remat, pipeline):
    remat(*TRAIN)
    train = pipeline.config.train
    assert (train.optimizer, train.batch_norm, train.dropout, train.batch) == ("sgd", "train", True, None)
    assert pipeline.config.budget is None
    remat(*TRAIN, "--gradients-only", "--batch", "8", "--budget", "50%", "-o", "step.onnx")
    config = pipeline.config
    assert (config.train.optimizer, config.train.batch, config.output) == (None, 8, Path("step.onnx"))
    assert config.budget.fraction == Fraction(1, 2)


def test_train_and_max_batch_answer_with_their_exit_codes(remat, pipeline):
    pipeline.reports["train_model"] = samples.train_report(samples.impossible_report())
    assert remat(*TRAIN, "--budget", "1%").code == 3
    pipeline.reports["find_max_batch"] = samples.no_batch_report()
    outcome = remat(*MAX_BATCH)
    assert (outcome.code, outcome.err) == (4, "")
    assert "not even one sample fits" in outcome.out


def test_the_same_word_twice_says_it_once_and_budgets_of_devices_are_joined(remat, pipeline):
    assert remat("compile", "net.onnx", "--budget", "80%", "--budget", "80%", "--no-verify", "--no-verify").code == 0
    assert (pipeline.config.budget.text, pipeline.config.verify) == ("80%", "off")
    devices = ("--device", "cpu", "--device", "cuda:0", "--budget", "cpu=2GiB", "--budget", "cuda:0=512MiB")
    assert remat("compile", "net.onnx", *devices).code == 0
    assert pipeline.config.budget.text == "cpu=2GiB,cuda:0=512MiB"


@pytest.mark.parametrize("command", [COMPILE, ("inspect", "net.onnx", "--budget", "min")])
def test_split_flags_reach_the_pipeline(remat, pipeline, command):
    remat(*command)
    config = pipeline.config
    assert (config.split, config.max_tiles, config.split_axis.kind) == ("auto", 32, "auto")
    assert not config.allow_reassociation
    outcome = remat(
        *command, "--split", "max", "--max-tiles", "16", "--split-axis", "-2", "--allow-reassociation",
        "--max-overhead", "10%", "--race", "60%",
    )  # fmt: skip
    assert (outcome.code, outcome.err) == (0, "")
    config = pipeline.config
    assert (config.split, config.max_tiles, config.split_axis.axes(4)) == ("max", 16, (2,))
    assert config.allow_reassociation
    assert config.race_share == Fraction(3, 5)
    assert config.max_overhead_share == Fraction(1, 10)


def test_a_file_speaks_where_flags_are_silent(remat, pipeline):
    Path("c.yaml").write_text("budget: 70%\nverify: false\nportable: true\nquiet: true\nseed: 4\nforce: true\n")
    remat("compile", "net.onnx", "--config", "c.yaml", "--seed", "5", "--no-portable")
    config = pipeline.config
    assert config.budget.fraction == Fraction(7, 10)
    assert (config.verify, config.portable, config.seed, config.force) == ("off", False, 5, True)


def test_profile_devices_and_file(remat, pipeline):
    outcome = remat("profile", "net.onnx", "--device", "cpu", "--device", "cuda:0", "-o", "p.json", "--format", "json")
    assert [spec.name for spec in pipeline.config.devices] == ["cpu", "cuda:0"]
    assert json.loads(Path("p.json").read_text()) == json.loads(outcome.out)


def test_profile_clears_the_cache(remat, pipeline, folder, monkeypatch):
    monkeypatch.setenv("REMAT_CACHE_DIR", "cache")
    outcome = remat("profile", "--clear-cache")
    assert (outcome.code, outcome.out) == (0, "removed 3 cached measurements from cache\n")
    assert json.loads(remat("profile", "--clear-cache", "--format", "json").out) == {"cache_dir": "cache", "removed": 3}
    remat("profile", "net.onnx", "--clear-cache")
    assert [call[0] for call in pipeline.calls[-2:]] == ["clear_profile_cache", "profile_ops"]


def test_inspect_writes_a_picture(remat, folder):
    pytest.importorskip("matplotlib")
    assert remat("inspect", "net.onnx", "--svg", "memory.svg").code == 0
    first = Path("memory.svg").read_bytes()
    assert b"<svg" in first
    assert remat("inspect", "net.onnx", "--svg", "memory.svg").code == 2
    assert remat("inspect", "net.onnx", "--svg", "memory.svg", "--force").code == 0
    assert Path("memory.svg").read_bytes() == first


def test_plain_progress_is_a_line_per_stage_and_improvement(remat, pipeline):
    def during(progress):
        progress.stage(OPTIMISING)
        progress.stage(PROFILING)
        progress.advance(1, 2)
        progress.stage(SOLVING)
        progress.incumbent(None, 1.0)
        progress.incumbent(4.0, 1.0)
        progress.incumbent(4.0, 1.0)
        progress.incumbent(2.756, 1.9)

    pipeline.during = during
    assert remat(*COMPILE).err.splitlines() == [
        "optimising",
        "profiling",
        "solving",
        "incumbent none  bound +1.00%  0 s",
        "incumbent +4.00%  bound +1.00%  gap 3.00%  0 s",
        "incumbent +2.76%  bound +1.90%  gap 0.86%  0 s",
    ]


def test_verbose_says_how_long_stages_took(remat, pipeline):
    pipeline.during = lambda progress: (progress.stage(PROFILING), progress.stage(SOLVING))
    lines = remat(*COMPILE, "--verbose").err.splitlines()
    assert [line.split(":")[0] for line in lines] == ["profiling", "profiling", "solving", "solving"]
    assert lines[1].endswith(" s")


@pytest.mark.parametrize("command", COMMANDS)
def test_help_shows_a_working_example(remat, command):
    outcome = remat(command, "--help")
    assert outcome.code == 0
    assert f"\n    remat {command}" in outcome.out.partition("Example")[2]
    assert outcome.err == ""


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_speaks_the_common_options_and_parses_its_examples(command):
    found = make_group().commands[command]
    assert {"format", "quiet", "verbose", "seed", "threads", "config_file"} <= {one.name for one in found.params}
    examples = [line.split() for line in (found.epilog or "").splitlines() if line.startswith("  remat ")]
    assert examples
    for words in examples:
        for word in words[2:]:
            if Path(word).suffix:
                Path(word).parent.mkdir(parents=True, exist_ok=True)
                Path(word).touch()
        assert found.make_context(command, words[2:]).info_name == words[1]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_and_its_story_have_its_name(command):
    name = command.replace("-", "_")
    house = COMMANDS[command].partition(".cli.")[0]  # or a wing of it
    assert COMMANDS[command] == f"{house}.cli.{name}:{name}_command"
    assert importlib.util.find_spec(f"{house}.commands.{name}") is not None


def test_examples_run(remat, pipeline, folder):
    for name in ("unet.onnx", "bert.onnx", "resnet.onnx", "model.onnx", "unet.plan.json"):
        Path(name).write_bytes(b"{}")
    Path("unet.remat.onnx").write_bytes(b"no plan")
    for command in WORDS:
        examples = remat(command, "--help").out.partition("Example")[2].splitlines()[1:]
        for example in examples:
            if example.strip():
                words = example.split()
                assert words[0] == "remat"
                outcome = remat(*words[1:], *(["--force"] if command == "compile" else []))
                told = [line for line in outcome.err.splitlines() if not line.startswith("note: wrote ")]
                assert (outcome.code, told) == (0, []), example


def test_bare_remat_is_help(remat):
    assert remat().out == remat("--help").out
    assert "compile" in remat().out


def test_version(remat):
    outcome = remat("--version")
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out.startswith("remat ")
