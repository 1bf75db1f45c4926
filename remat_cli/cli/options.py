"""Options that several commands share; each group is one decorator. Names of values are the keys of `Settings`."""

import difflib
import itertools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from remat_cli.cli.grouped import GroupedCommand

F = TypeVar("F", bound=Callable[..., Any])

FILE = click.Path(path_type=Path)


class InputFile(click.Path):
    """A file to read; of one that is not there it is said which is, of nearly that name."""

    def __init__(self) -> None:
        """Of any name."""
        super().__init__(exists=True, dir_okay=False, readable=True, path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        """Refuse what is not there."""
        path = Path(os.fsdecode(value))
        if not path.exists() and path.parent.is_dir():
            names = sorted(each.name for each in path.parent.iterdir() if each.is_file())
            near = [str(path.parent / name) for name in difflib.get_close_matches(path.name, names, 2)]
            if near:
                self.fail(f"File '{path}' does not exist. Did you mean {' or '.join(near)}?", param, ctx)
        return Path(os.fsdecode(super().convert(value, param, ctx)))


INPUT_FILE = InputFile()


class EndingFile(click.Path):
    """A file to write whose name says what is in it; other programs go by that."""

    def __init__(self, ending: str) -> None:
        """Of names with this ending, in capitals or not."""
        super().__init__(path_type=Path)
        self.ending = ending

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        """Refuse any other name."""
        path = Path(os.fsdecode(super().convert(value, param, ctx)))
        if path.suffix.lower() != self.ending:
            self.fail(
                f"'{path}' must end in {self.ending}, as what is written is; for example {path.stem}{self.ending}"
            )
        return path


SVG_FILE, MODEL_FILE = EndingFile(".svg"), EndingFile(".onnx")


def group(*options: Callable[[Any], Any]) -> Callable[[F], F]:
    """Several click options as one decorator, listed in help in this order."""

    def decorate(function: F) -> F:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


def _option(*names: str, **settings: Any) -> Callable[[Any], Any]:
    """An option that is None unless given, so that a configuration file can speak."""
    return click.option(*names, default=None, **settings)


def examples(*lines: str) -> str:
    """Commands that work, for the end of a command's help."""
    return "\b\n" + "\n".join(["Example:" if len(lines) == 1 else "Examples:", *(f"  {line}" for line in lines)])


budget_scope_option = _option(
    "--budget-scope",
    type=click.Choice(["process", "live", "activations", "total"]),
    help="What bytes bound: resident memory, what is live at once, or that without weights and inputs.",
)


def _one_budget(_ctx: click.Context, param: click.Parameter, given: tuple[str, ...] | None) -> str | None:
    """Join the budgets of single devices into one; of any other kind only one may be given.

    Raises:
        BadParameter: there are several.
    """
    texts = tuple(dict.fromkeys(given or ()))
    if len(texts) > 1 and not all("=" in text for text in texts):
        raise click.BadParameter(f"{' and '.join(texts)} are given: give one of them", param=param)
    return ",".join(texts) if texts else None


budget_options = group(
    _option(
        "--budget",
        "budget",
        multiple=True,
        callback=_one_budget,
        metavar="B",
        help="512MiB, 2GB, 80%, 0.8, min, or cpu=2GiB,cuda:0=512MiB.",
    ),  # repeated for several devices, else only to be refused: click would take the last one
    budget_scope_option,
)

writing_options = group(
    _option(
        "--external-data/--no-external-data",
        help="Put weights into OUT.onnx.data, which a process maps instead of copying. [from 32 MiB on]",
    ),
    _option(
        "--packed-weights/--no-packed-weights",
        help="Put weights as kernels pack them into OUT.onnx.data too: ONNX Runtime 1.21 or newer. [yes]",
    ),
    _option("--count-mapped/--no-count-mapped", help="Count mapped files against a budget on the process. [no]"),
    _option(
        "--runtime",
        "runtime",
        metavar="VERSIONS",
        help="Versions of ONNX Runtime the file is for: '>=1.24', 1.24..1.32 or ==1.28. [all that have its ops]",
    ),
    _option("--plain/--no-plain", help="Leave out the form in which later runs take no more than the first. [no]"),
    _option(
        "--session",
        multiple=True,
        metavar="NAME=VALUE",
        help="How sessions of the file will be opened, for which it is made and verified: arena=off, pattern=off, "
        "optimisation=basic, threads=2, mode=parallel, concurrency=2.",
    ),
)

run_limit_option = _option(
    "--run-limit", metavar="T", help="End a run of the model that shows no progress for so long. [1h]"
)
model_options = group(
    _option(
        "--dim",
        "dims",
        multiple=True,
        metavar="NAME=SIZE",
        help="Bind a symbolic dimension: --dim batch=8; or a range of sizes: --dim seq=1..8192; in steps: "
        "--dim height=32..256:16; or what is a sum of others: --dim total=past+seq.",
    ),
    _option(
        "--limit",
        "limits",
        multiple=True,
        metavar="SUM<=N",
        help="Of ranges of sizes, only those in which a product or a sum is so small: --limit 'batch*seq<=16384', "
        "--limit 'past+seq<=4096'.",
    ),
    _option(
        "--input-shape",
        "input_shapes",
        multiple=True,
        metavar="NAME:SIZES",
        help="Bind an input's whole shape: --input-shape x:1,3,224,224.",
    ),
    _option(
        "--inputs",
        multiple=True,
        type=FILE,
        metavar="FILE.npz",
        help="Real inputs to run with, instead of seeded random ones; their shapes bind dimensions. Repeated, files of "
        "different sizes propose ranges, those of the same are all compared.",
    ),
    _option(
        "--custom-ops",
        "custom_ops",
        multiple=True,
        type=FILE,
        metavar="LIB",
        help="Shared library with custom operators; may be repeated.",
    ),
    _option(
        "--target",
        multiple=True,
        metavar="T",
        help="CPUs a file is for: here, any, x86-64, x86-64-avx2, x86-64-avx512, arm64 or wasm. `compile` takes "
        "several, as here,arm64, and writes OUT.T.onnx for each. [here]",
    ),
    _option("--portable/--no-portable", help="The older name of --target any. [no]"),
    _option(
        "--intra-op-threads",
        type=int,
        metavar="N",
        help="Threads of the runtime; 0 is its own default. [0]",
    ),
    run_limit_option,
    _option("--memory-limit", metavar="B", help="Most private memory of each process that runs it. [what there is]"),
    _option("--work-dir", type=FILE, metavar="DIR", help="Keep intermediate files here."),
)

device_option = _option(
    "--device", "devices", multiple=True, metavar="NAME", help="Where the model will run. [cpu]"
)  # repeated only to be refused: click would take the last one
estimate_option = _option(
    "--estimate",
    is_flag=True,
    help="Estimate the costs of a device that is not here, from its FILE.yaml.",
)
spill_option = _option(
    "--spill",
    metavar="disk:DIR|host",
    help="Let values wait in a file in this folder, or behind a GPU in the host, while they are not needed; "
    "host:12GB/s says how fast that is. [no]",
)
devices_options = group(
    _option(
        "--device",
        "devices",
        multiple=True,
        metavar="NAME",
        help="Device to measure: cpu, cpu:2threads, cuda:0, webgpu, openvino or FILE.yaml; may be repeated. [cpu]",
    ),
    estimate_option,
    spill_option,
)
placement_options = group(
    _option(
        "--device",
        "devices",
        multiple=True,
        metavar="NAME",
        help="Where the model will run: cpu, cpu:2threads, cuda:0, webgpu, openvino or FILE.yaml; repeat it to choose "
        "a device for each op. [cpu]",
    ),
    estimate_option,
    _option("--overlap/--no-overlap", help="Copies between memories run beside ops. [no]"),
    spill_option,
)

order_option = _option(
    "--order", type=click.Choice(["free", "keep"]), help="May ops run in another order than now? [free]"
)
gap_option = _option("--gap", metavar="G", help="Stop when the plan is this near the proved bound. [0.1%]")


def _solver_options(seconds: str) -> Callable[[F], F]:
    """Those that say how to solve, where a search takes so long unless told."""
    return group(
        _option("--solver", metavar="NAME", help="One of `remat solvers`. [auto]"),
        _option("--option", "options", multiple=True, metavar="K=V", help="Option of the solver; may be repeated."),
        order_option,
        _option(
            "--time-limit",
            metavar="T",
            help=f"Stop searching after 30s, 2m or 500ms; runs of the model come on top. [{seconds}]",
        ),
        gap_option,
    )


solver_options = _solver_options("30s")
compile_solver_options = _solver_options(
    "10s, 30s where that gives only plans of more than +20 %, 30s more where it gives none; "
    "30s for `min`, ranges of sizes, training steps and several memories"
)

split_options = group(
    _option(
        "--max-tensor",
        metavar="BYTES",
        help="No tensor that an op makes may be larger, outputs excepted: --max-tensor 128MiB. [what devices can hold; "
        "of WebGPU 128MiB]",
    ),
    _option(
        "--split",
        type=click.Choice(["auto", "off", "max"]),
        help="Run large ops in tiles, one after the other: where the budget needs it, never, or wherever it saves "
        "memory. [auto]",
    ),
    _option("--max-tiles", type=int, metavar="N", help="Most tiles that ops are cut into; at least 2. [32]"),
    _option(
        "--split-axis",
        metavar="AXIS",
        help="Cut along this axis only: auto, a number (2 is height in NCHW), or batch, height, width, sequence, "
        "heads. [auto]",
    ),
    _option(
        "--allow-reassociation/--no-allow-reassociation",
        help="Also cut ops whose tiles then add up in another order: outputs may differ in their last bits, within a "
        "tolerance. No single sum is cut. [no]",
    ),
    _option(
        "--race",
        metavar="P",
        help="Once a split fits, measure rival ones in turn with it for so much of the time limit; 0% takes the first. "
        "[30%]",
    ),
)

max_overhead_option = _option(
    "--max-overhead",
    metavar="P",
    help="Most extra time that a plan may cost. [20% for `min`, 100% for one CPU session, else any]",
)


class VerifyCommand(GroupedCommand):
    """A command whose `--verify` may stand alone: a word after it that is no mode belongs to the command."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Give a `--verify` that stands alone its own value, before click takes the next word for it.

        Raises:
            UsageError: two different ones are asked for.
        """
        pairs = itertools.zip_longest(args, args[1:])
        said = [f"{word}=on" if word == "--verify" and after not in VERIFY_MODES else word for word, after in pairs]
        # Of `--verify fast --no-verify` click would take the last one.
        words = said[: said.index("--")] if "--" in said else said
        asked = {
            f"{word} {after}" if word == "--verify" else word.replace("--verify=", "--verify ")
            for word, after in itertools.zip_longest(words, words[1:], fillvalue="")
            if word.partition("=")[0] in ("--verify", "--no-verify")
        }
        if len(asked) > 1:
            raise click.UsageError(f"{' and '.join(sorted(asked))} are given: give one of them")
        return super().parse_args(ctx, said)


VERIFY_MODES = ("on", "off", "fast", "thorough")
verify_mode_option = _option(
    "--verify",
    type=click.Choice(VERIFY_MODES),
    metavar="[fast|thorough]",
    help="Run both models and compare; thorough: also find the smallest memory cap of each; fast: neither caps nor "
    "times. [yes]",
)
no_verify_option = click.option("--no-verify", "verify", flag_value="off", default=None, help="Run neither model.")
capped_run_option = _option(
    "--capped-run/--no-capped-run", help="Run both models under a hard memory cap that only the new one fits. [yes]"
)
verify_options = group(verify_mode_option, capped_run_option)
compile_verify_options = group(verify_mode_option, no_verify_option, capped_run_option)

loss_options = group(
    _option(
        "--loss",
        "loss",
        type=click.Choice(["cross-entropy", "mse", "l1", "dice"]),
        help="Compare an output with a new input `target`.",
    ),
    _option("--loss-output", metavar="NAME", help="The output that is the loss already."),
    _option("--output-name", "output_name", metavar="NAME", help="The output that --loss looks at. [the only one]"),
    _option("--class-axis", type=int, metavar="N", help="Where classes lie. [last of rank 3, else 1]"),
    _option("--batch", type=int, metavar="N", help="First dimension of every input."),
    _option(
        "--trainable", multiple=True, metavar="PATTERN", help="Train these weights only: --trainable 'layer4.*'. [all]"
    ),
    _option("--freeze", "frozen", multiple=True, metavar="PATTERN", help="Do not train these weights."),
    _option(
        "--batch-norm",
        type=click.Choice(["train", "frozen"]),
        help="Use the statistics of the batch, or those of the model. [train]",
    ),
    _option("--dropout/--no-dropout", help="Drop out as in training. [yes]"),
    _option(
        "--gradient-rule",
        "gradient_rules",
        multiple=True,
        metavar="OP=MODULE:NAME",
        help="Your own gradient of an op.",
    ),
)

train_options = group(
    loss_options,
    _option("--optimizer", type=click.Choice(["sgd", "momentum", "adam", "adamw"]), help="How weights move. [sgd]"),
    _option(
        "--optimizer-option",
        "optimizer_options",
        multiple=True,
        metavar="K=V",
        help="Option of the optimizer: --optimizer-option beta1=0.95; may be repeated.",
    ),
    _option("--gradients-only", is_flag=True, help="Give gradients instead of new weights."),
    _option("--keep-outputs", is_flag=True, help="Give the model's outputs too."),
)

force_option = _option("--force", is_flag=True, help="Overwrite existing outputs.")

common_options = group(
    _option("--format", type=click.Choice(["text", "json"]), help="What stdout gets: text or one JSON object. [text]"),
    _option("-q", "--quiet", is_flag=True, help="No progress on stderr."),
    _option("-v", "--verbose", is_flag=True, help="Print all that is known, and how long each stage took."),
    _option("--seed", type=int, metavar="N", help="Seed of everything random. [0]"),
    _option("--threads", type=int, metavar="N", help="Threads of the solver; 0 is all cores. [0]"),
    _option(
        "--config",
        "config_file",
        type=FILE,
        metavar="FILE.yaml",
        help="Settings from a file; flags win over it.",
    ),
    click.option("--debug", is_flag=True, expose_value=False, help="Show the traceback of an error."),
)
