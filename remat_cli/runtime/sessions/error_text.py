"""Reads the texts of ONNX Runtime's errors, here and only here: there are no values behind them."""

import re
from typing import Final

from remat_cli.devices.provider_table import fault_in

LONGEST_MESSAGE = 300
OUT_OF_MEMORY: Final = ("Available memory of", "Failed to allocate memory", "bad_alloc", "bad allocation")
"""Parts of what the runtime says when an allocation fails."""
NO_MEMORY: Final = (*OUT_OF_MEMORY, "out of memory", "no memory left", "MemoryError", "killed by signal 9")
"""Parts of what is said where the machine has too little memory, by whom it may be: the system kills with 9."""
OF_THE_MACHINE: Final = (
    *NO_MEMORY,
    "no progress for",
    "No space left",
    "system error",
    "killed by",
    "device was lost",
)
"""Parts of what is said where the model is not to blame."""
AROUND: Final = re.compile(
    r"^(?:Non-zero status code returned while running \S+ node\. Name:'[^']*' Status Message: )+(?=Non-zero)"
)
"""What stands before the reason of an op that failed in the body of others: the names of these."""
ARENA: Final = re.compile(r"\S*/bfc_arena\.cc:\d+ .*?(?=Failed to allocate|Available memory)")
"""What stands before the reason where the arena got no memory: a place in the source, with a signature."""
RAISED_AT: Final = re.compile(r"(?<=Status Message: )\S*\bonnxruntime/\S+\.(?:cc|h):\d+ \S.*?\)(?:::<lambda\(\)>)? ")
"""The same in the middle of a message, between an op's name and the reason, which a long signature would cut off."""
WRAPPED: Final = re.compile(r"^(?:\[ONNXRuntimeError\] : \d+ : \w+ : |/\S+\.cc:\d+ \S.*?\)(?:::<lambda\(\)>)? )+")
"""What stands before a message: kinds of errors, and where each was raised, from the outermost on."""


def one_line(error: BaseException) -> str:
    """First line of an error's text without the runtime's prefix and source paths, cut to a readable length.

    A line that ends with a colon goes on: what it speaks of, such as a node, stands in the next. Where a device failed,
    that in plain words.
    """
    if (fault := fault_in(str(error))) is not None:
        return fault.words
    text = ""
    for line in map(str.strip, str(error).strip().splitlines()):
        text = f"{text} {line}" if text else line
        if not text.endswith(":"):
            break
    text = text or type(error).__name__
    text = re.sub(r"^.* Error creating execution provider: ", "", text)
    text = RAISED_AT.sub("", ARENA.sub("", WRAPPED.sub("", text)))
    text = re.sub(r"/\S*/(onnxruntime/)", r"\1", text)
    text = re.sub(r"^Load model from .*? failed:\s*", "", text)  # who calls names the user's file
    if len(text) > LONGEST_MESSAGE:
        text = AROUND.sub("", text)
    return text if len(text) <= LONGEST_MESSAGE else text[: LONGEST_MESSAGE - 3] + "..."


def is_of_the_machine(text: str) -> bool:
    """Whether a failure speaks of the machine, not of the model: no memory, no disk, no time, no device."""
    return any(sign in text for sign in OF_THE_MACHINE)


def is_out_of_memory(text: str) -> bool:
    """Whether an allocation failed, on whatever device."""
    return any(sign in text for sign in (*OUT_OF_MEMORY, "out of memory"))


def lacks_memory(error: BaseException) -> bool:
    """Whether a run failed for want of memory: an allocation in the runtime or in Python, or the system ended it."""
    told = (str(error), *(str(each) for each in (error.__cause__, error.__context__) if each is not None))
    return any(sign in text for text in told for sign in NO_MEMORY)


def asked(text: str) -> str:
    """Which op asked for how many bytes more, as far as the runtime says it."""
    op = re.search(r"Name:'([^']*)'", text)
    more = re.search(r"requested bytes of (\d+)", text)
    return (f" in op '{op[1]}'" if op else "") + (f": {int(more[1]):,} bytes more were needed" if more else "")
