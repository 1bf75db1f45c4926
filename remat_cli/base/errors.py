"""Every error remat raises on purpose.

RematError
├── InputError            the user gave something remat cannot use (exit code 2)
│   ├── ConfigError       a flag, a YAML file or an option
│   └── ModelError        an ONNX model, also one that ONNX Runtime refuses, a plan, an instance or an inputs file
├── MissingDependency     a package, provider or device is not there (exit code 1)
├── RuntimeFailure        ONNX Runtime failed for want of memory, disk or time, or on what remat made (exit code 1)
│   └── DeviceLost        a device that was there is gone
├── InvalidSchedule       the judge found a schedule illegal
├── BrokenSolver          a solver returned an illegal or over-budget schedule: a bug in remat
└── AnswerError           an answer that is not what was asked for, where `report.raise_for_status()` makes it an error

"Infeasible" and "outputs differ" are answers, not errors, unless the caller wants them to be.
"""

from typing import ClassVar

EXIT_ERROR = 1
EXIT_INPUT = 2
EXIT_INTERRUPTED = 130  # Ctrl-C, whatever there was by then


class RematError(Exception):
    """Root of all errors raised on purpose; its text is one line for the user, `exit_code` that of a command."""

    exit_code: ClassVar[int] = EXIT_ERROR


class InputError(RematError):
    """The user's input cannot be used; the text names the thing, the value and the next step."""

    exit_code = EXIT_INPUT


class ConfigError(InputError):
    """A flag, a configuration file or a solver option is wrong."""


class ModelError(InputError):
    """A model, plan, instance or inputs file is wrong."""


class MissingDependency(RematError):
    """Something that must be installed or plugged in is not there."""


class RuntimeFailure(RematError):
    """ONNX Runtime refused to load or failed to run a model that remat gave it.

    Where the line names the model's `file`, that stands between `before` and `after`, so that who catches the error
    can say it of the file that the user knows.
    """

    def __init__(self, before: str, file: str = "", after: str = "") -> None:
        super().__init__(before, file, after)  # all of them: an error of another process is pickled by its arguments
        self.before, self.file, self.after = before, file, after

    def __str__(self) -> str:
        return f"{self.before}{self.file}{self.after}"


class DeviceLost(RuntimeFailure):
    """A device that was there is gone; nothing that runs on it in this process works any more."""


class InvalidSchedule(RematError):
    """A schedule breaks a rule of the judge; the text names the step."""


class BrokenSolver(RematError):
    """A solver's answer did not survive the judge: a bug in remat, never the user's fault."""


class AnswerError(RematError):
    """An impossible budget, a plan that was not found, or a promise that was not kept; `code` is its exit code."""

    def __init__(self, verdict: str, code: int = EXIT_ERROR) -> None:
        super().__init__(verdict, code)
        self.code = code

    def __str__(self) -> str:
        return str(self.args[0])
