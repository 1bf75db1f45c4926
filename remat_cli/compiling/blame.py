"""Who is told of what the runtime refuses: the user, of their own file, whichever of remat's files it was."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from remat_cli.base.errors import ModelError, RuntimeFailure
from remat_cli.core.values.conditions import Conditions
from remat_cli.core.values.sizes import SizeFamily, SizeRange
from remat_cli.runtime.sessions.error_text import is_of_the_machine, lacks_memory, one_line

SAME = ("normalised", "optimised", "reference", "converted", "observed")
FORMS = {
    **dict.fromkeys(SAME, "the optimised form of"),
    "raised": "a newer opset's form of",
    **dict.fromkeys(("rewritten", "written", "loaded"), "the rewritten form of"),
    **dict.fromkeys(("whole_exposed", "split_exposed", "probe"), "the tiles of"),
    "in_order": "the model in order,",
    "op": "one op of",
}
"""What remat calls its files -> what is said of them."""
RANDOM_INPUTS = "; the inputs were made up: give ones that it takes with --inputs FILE.npz"
ONE_SIZE = "; a model that was exported for one size runs at no other"
LIKELY_STEP = 16  # of images that are halved four times


@contextlib.contextmanager
def refusals_of(path: Path, doing: str, next_step: str = "") -> Iterator[None]:
    """Let what the runtime refuses inside the block be said of the user's file, which is then bad input.

    Raises:
        ModelError: with what was being done, the file, the runtime's reason, and what to do next.
        RuntimeFailure: the same, where the machine is to blame: no memory, no disk, no time.
    """
    try:
        yield
    except RuntimeFailure as error:
        before, file, after = _reason(error)
        begun = f"{doing} {path}: "
        if before == f"{doing} ":  # the same, said of a file of ours
            before, file, after = "", "", after.removeprefix(": ")
        if is_of_the_machine(f"{before}{file}{after}"):
            advice = "" if lacks_memory(error) else next_step  # other inputs need no less
            raise RuntimeFailure(f"{begun}{before}", file, f"{after}{advice}") from error
        raise ModelError(f"{begun}{before}{file}{after}{next_step}") from error


@contextlib.contextmanager
def blamed_on(path: Path, doing: str) -> Iterator[None]:
    """Let what the runtime refuses inside the block name the user's file, although it is a file of ours that failed.

    Raises:
        RuntimeFailure: with what was being done, the file and the runtime's reason.
    """
    try:
        yield
    except RuntimeFailure as error:
        before, file, after = _reason(error)
        raise RuntimeFailure(f"{doing} {path}: {before}", file, after) from error


@contextlib.contextmanager
def files_named_after(model: Path) -> Iterator[None]:
    """Let failures inside the block name the user's model where they name a file that remat made of it.

    Raises:
        ModelError: the runtime refuses the model in a form in which it says the same.
        RuntimeFailure: it refuses another form, or the machine is to blame.
    """
    try:
        yield
    except RuntimeFailure as error:
        # Which of remat's own files this is; some have a number, such as `op_12.onnx`.
        name = error.file.removesuffix(".onnx")
        whole, _, number = name.rpartition("_")
        name = whole if number.isdigit() else name
        form = name if error.file.endswith(".onnx") and name in FORMS else None
        if form is None:
            raise
        text = f"{error.before}{FORMS[form]} {model}{error.after}"
        if form in SAME and not is_of_the_machine(str(error)):
            raise ModelError(text) from error
        raise RuntimeFailure(text) from error


def _reason(error: RuntimeFailure) -> tuple[str, str, str]:
    """What the runtime said, or else what we say of it: before a file's name, that, and after it."""
    if error.__cause__ is None:
        return error.before, error.file, error.after
    return one_line(error.__cause__), "", ""


def next_step(conditions: Conditions) -> str:
    """What to do where the runtime refuses what it is fed, or a branch that is not there for it."""
    is_sized = bool(conditions.dims or conditions.input_shapes or conditions.family)
    made_up = "" if conditions.inputs else RANDOM_INPUTS
    return f"{made_up}{ONE_SIZE if is_sized else ''}{in_steps(conditions.family)}"


def in_steps(family: SizeFamily | None) -> str:
    """What to do where a model that is compiled for many sizes may run at multiples only: ask for fewer of them."""
    longest = None if family is None else max(family.ranges, key=lambda each: each.high)
    if longest is None:
        return ""
    step = LIKELY_STEP if longest.step == 1 else 2 * longest.step
    low, high = -(-longest.low // step) * step, longest.high // step * step
    if high <= low:
        return ""
    told = SizeRange(longest.name, low, high, step)
    return f"; where the model only runs at multiples give a step, such as --dim {told}"
