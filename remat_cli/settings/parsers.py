"""Parsers of flags and of YAML values, one per setting: the only place where these texts are read."""

import re
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal, get_args

from remat_cli.base.errors import ConfigError
from remat_cli.base.units import parse_bytes
from remat_cli.core.schedule.splits import SplitMode, parse_split_axis
from remat_cli.core.values.budget import AskedBudget, parse_budget, parse_share
from remat_cli.core.values.runs_on import RuntimeRange
from remat_cli.core.values.session import session_value
from remat_cli.core.values.sizes import SizeLimit, SizeRange, dim_told, products_told
from remat_cli.core.values.verification import VerifyMode
from remat_cli.settings.devices import parse_devices
from remat_cli.settings.spill import parse_spill
from remat_cli.settings.train import parse_pairs, parse_train

LEAST_PROCESS_BYTES = 2**29
LEAST_TENSOR_BYTES = 2**10

Target = Literal["here", "any", "x86-64-avx512", "x86-64-avx2", "x86-64", "arm64", "wasm"]


def parse_seconds(value: object) -> float:
    """Seconds from `30s`, `2m`, `500ms`, `1h` or a number of seconds.

    Raises:
        ConfigError: not a positive duration.
    """
    match = re.fullmatch(r"\s*([0-9]*\.?[0-9]+)\s*(ms|s|m|min|h|)\s*", str(value))
    if match is None or float(match[1]) <= 0:
        raise ConfigError(f"time limit '{value}' is not a duration: write 30s, 2m or 500ms")
    return float(match[1]) * {"ms": 0.001, "": 1.0, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}[match[2]]


def parse_limit(value: object) -> float | None:
    """The same, or None for `auto`.

    Raises:
        ConfigError: neither.
    """
    return None if value is None or str(value).strip() == "auto" else parse_seconds(value)


def parse_dims(value: object) -> dict[str, int | SizeRange | str]:
    """Dimensions from `batch=8`, `seq=1..8192`, `height=32..256:16`, `total=past+seq` texts, or the mapping of a file.

    Raises:
        ConfigError: not NAME=SIZE, NAME=LOW..HIGH, NAME=LOW..HIGH:STEP with sizes that rise, or a sum of others.
    """
    pairs = parse_pairs(value, "=", "dimension", "--dim batch=8")
    found: dict[str, int | SizeRange | str] = {}
    for name, size in pairs.items():
        total = dim_told(str(size).strip())
        if total is not None:
            found[name] = str(total)
            continue
        match = re.fullmatch(r"\s*([0-9]+)\s*(?:\.\.\s*([0-9]+)\s*(?::\s*([0-9]+)\s*)?)?", str(size))
        if match is None:
            how = (
                "such as --dim batch=8, a range such as --dim seq=1..8192 or, in steps, --dim height=32..256:16, "
                "or a sum of others such as --dim total=past+seq"
            )
            raise ConfigError(f"dimension {name}={size}: the size must be an integer, {how}")
        low, high, step = int(match[1]), int(match[2] or match[1]), int(match[3] or 1)
        if step < 1:
            raise ConfigError(f"dimension {name}={size}: steps must be of at least 1: write {name}={low}..{high}")
        if high < low:
            raise ConfigError(f"dimension {name}={size}: the range ends before it begins: write {name}={high}..{low}")
        if over := (high - low) % step:
            told = SizeRange(name, low, high - over, step)
            raise ConfigError(f"dimension {name}={size}: steps of {step} from {low} do not end at {high}: write {told}")
        found[name] = low if low == high else SizeRange(name, low, high, step)
    return found


def parse_limits(value: object) -> tuple[SizeLimit, ...]:
    """Limits on sums of products of dimensions from `batch*seq<=16384` or `past+seq<=4096` texts, or a file's list.

    Raises:
        ConfigError: not such a sum with `<=` and a number behind it.
    """
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, Sequence):
        raise ConfigError(f"limit '{value}' must be a text such as batch*seq<=16384")
    found = []
    for text in texts:
        total, sign, most = str(text).partition("<=")
        products = products_told(total)
        if not sign or not all(map(all, products)) or not re.fullmatch(r"\s*[0-9]+\s*", most) or int(most) < 1:
            raise ConfigError(
                f"limit '{text}' is not a limit on a product or a sum of dimensions: write 'batch*seq<=16384' "
                "or 'past+seq<=4096'"
            )
        found.append(SizeLimit(products, int(most)))
    return tuple(found)


def parse_input_shapes(value: object) -> dict[str, tuple[int, ...]]:
    """Input shapes from `x:1,3,224,224` texts, or the mapping of a YAML file.

    Raises:
        ConfigError: not NAME:SIZES with sizes of at least 0.
    """
    shapes: dict[str, tuple[int, ...]] = {}
    for name, sizes in parse_pairs(value, ":", "input shape", "--input-shape x:1,3,224,224").items():
        texts = [str(size) for size in sizes] if isinstance(sizes, list | tuple) else str(sizes).split(",")
        texts = [] if texts == [""] else [text.strip() for text in texts]
        if not all(re.fullmatch(r"[0-9]+", text) for text in texts):
            raise ConfigError(f"input shape {name}:{sizes} must be integers, such as --input-shape x:1,3,224,224")
        shapes[name] = tuple(int(text) for text in texts)
    return shapes


def parse_session(value: object) -> dict[str, bool | int | str]:
    """Options of the session from `arena=off` texts, or the mapping of a YAML file.

    Raises:
        ConfigError: not NAME=VALUE, no such option, or no such value.
    """
    pairs = parse_pairs(value, "=", "session option", "--session arena=off")
    return {name: session_value(name, text) for name, text in pairs.items()}


def parse_options(value: object) -> dict[str, Any]:
    """Solver options from `name=value` texts, or the mapping of a YAML file.

    Raises:
        ConfigError: not NAME=VALUE.
    """
    return {key.replace("-", "_"): v for key, v in parse_pairs(value, "=", "option", "--option max_copies=2").items()}


def _parse_small_share(value: object, what: str, most: int) -> Fraction:
    """A share; without a percent sign a number above 1 is refused, since 20 would hardly mean 2000 %."""
    share = parse_share(str(value), what)
    if share > (most if "%" in str(value) else 1):
        raise ConfigError(f"{what} '{value}' is too large: write a percentage such as 20%, or a fraction such as 0.2")
    return share


def parse_any_budget(value: object) -> AskedBudget:
    """A budget from a text, or from the mapping of a YAML file, which gives each device its own.

    Raises:
        ConfigError: no budget.
    """
    if isinstance(value, dict):
        value = ",".join(f"{device}={amount}" for device, amount in value.items())
    return parse_budget(str(value))


def parse_targets(value: object) -> tuple[str, ...]:
    """The processors that files are for: the kind that they are made on, any, or those of a name; several of them.

    Raises:
        ConfigError: one is no target.
    """
    texts = value if isinstance(value, list | tuple) else (value,)
    words = [word.strip() for text in texts for word in str(text).split(",")]
    for word in words:
        if word not in get_args(Target):
            raise ConfigError(f"target '{word}' is not known: write one of {', '.join(get_args(Target))}")
    return tuple(dict.fromkeys(words))


def parse_runtimes(value: object) -> RuntimeRange:
    """Versions of the runtime from `>=1.24`, `1.24..1.32` or `==1.28`; what is behind the second number is left out.

    Raises:
        ConfigError: no such range, or it ends before it begins.
    """
    version = r"(\d+)\.(\d+)(?:\.\d+)*"
    match = re.fullmatch(rf"\s*(>=|==|)\s*{version}\s*(?:\.\.\s*{version})?\s*", str(value))
    if match is None or bool(match[1]) == bool(match[4]):
        raise ConfigError(f"runtime '{value}' is no range of versions: write '>=1.24', 1.24..1.32 or ==1.28")
    first = int(match[2]), int(match[3])
    last = (int(match[4]), int(match[5])) if match[4] else first if match[1] == "==" else None
    if last is not None and last < first:
        raise ConfigError(f"runtime '{value}': the range ends before it begins")
    oldest, newest = (None if each is None else f"{each[0]}.{each[1]}" for each in (first, last))
    return RuntimeRange(str(oldest), newest)


def parse_split(value: object) -> str:
    """When ops are split; YAML reads a bare `off` as false.

    Raises:
        ConfigError: no such mode.
    """
    word = "off" if value is False else "on" if value is True else str(value)
    if word not in get_args(SplitMode):
        raise ConfigError(f"split '{word}' is not a mode: write auto, off or max")
    return word


def parse_verify(value: object) -> str:
    """How a plan is verified; YAML and Python say true and false.

    Raises:
        ConfigError: no such mode.
    """
    word = {"True": "on", "False": "off", "true": "on", "false": "off"}.get(str(value), str(value))
    if word not in get_args(VerifyMode):
        raise ConfigError(f"verify '{word}' is not a mode: write true, false, fast or thorough")
    return word


def parse_solvers(value: object) -> object:
    """Options by solver, from the mapping of a YAML file.

    Raises:
        ConfigError: no mapping.
    """
    if not isinstance(value, dict):
        raise ConfigError("solvers must map solver names to their options, such as `moccasin: {max_copies: 2}`")
    return {str(name).replace("_", "-"): options or {} for name, options in value.items()}


def parse_max_tensor(value: object) -> int:
    """Bytes of the largest tensor that an op may make.

    Raises:
        ConfigError: no number of bytes, or too few to cut tensors to.
    """
    most = parse_bytes(str(value))
    if most < LEAST_TENSOR_BYTES:
        raise ConfigError(f"--max-tensor {value}: tensors of less than 1KiB are not cut: write one such as 128MiB")
    return most


def _parse_path(value: object) -> Path:
    return Path(str(value)).expanduser()


def _parse_paths(value: object) -> tuple[Path, ...]:
    return tuple(map(_parse_path, value if isinstance(value, list | tuple) else (value,)))


def parse_memory_limit(value: object) -> int:
    """Bytes of private memory that a process which runs the model may take.

    Raises:
        ConfigError: no number of bytes, or less than a process takes without a model.
    """
    limit = parse_bytes(str(value))
    if limit < LEAST_PROCESS_BYTES:
        raise ConfigError(f"memory limit '{value}' is less than a process needs without a model: write at least 512MiB")
    return limit


PARSERS: Mapping[str, Callable[[object], object]] = {
    "budget": parse_any_budget,
    "max_overhead": lambda value: None if value is None else _parse_small_share(value, "max overhead", 100),
    "gap": lambda value: _parse_small_share(value, "gap", 1),
    "race": lambda value: _parse_small_share(value, "race", 1),
    "split": parse_split,
    "target": parse_targets,
    "runtime": parse_runtimes,
    "split_axis": lambda value: parse_split_axis(str(value)),
    "max_tensor": parse_max_tensor,
    "verify": parse_verify,
    "time_limit": parse_limit,
    "run_limit": parse_seconds,
    "memory_limit": parse_memory_limit,
    "devices": parse_devices,
    "spill": parse_spill,
    "solvers": parse_solvers,
    "options": parse_options,
    "dims": parse_dims,
    "limits": parse_limits,
    "input_shapes": parse_input_shapes,
    "session": parse_session,
    "train": parse_train,
    "inputs": _parse_paths,
    "custom_ops": _parse_paths,
    "output": _parse_path,
    "plan": _parse_path,
    "svg": _parse_path,
    "work_dir": _parse_path,
    "cache_dir": _parse_path,
}
