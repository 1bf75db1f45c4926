"""What `partition` is asked for: how many devices, how much memory each, what links move; checked before any work."""

import re
from pathlib import Path

from remat_cli.base.errors import ConfigError
from remat_cli.base.units import UNITS, parse_bytes
from remat_cli.pipelines.plan.schedule_file import METHODS, SCHEDULE_FILE, PipelineRequest

MOST_DEVICES = 1024
MOST_BATCHES = 100_000
LEAST_BYTES, MOST_BYTES = 2**10, 2**50
LEAST_LINK, MOST_LINK = 1e3, 1e15
RATES = {**UNITS, "bit": 0.125, "kbit": 125.0, "mbit": 125e3, "gbit": 125e6, "tbit": 125e9}
"""Bytes per second of each unit."""


def partition_request(
    devices: object, memory: object, link: object, micro_batches: int, method: str
) -> PipelineRequest:
    """Turn the words of `partition` into a request.

    Raises:
        ConfigError: one cannot be used; devices that differ cannot.
    """
    if method not in METHODS:
        raise ConfigError(f"no method named '{method}'; there are: {', '.join(METHODS)}")
    if not 1 <= micro_batches <= MOST_BATCHES:
        raise ConfigError(f"micro-batches {micro_batches} must be 1 to {MOST_BATCHES}")
    if not re.fullmatch(r"[0-9]{1,9}", str(devices)):
        raise ConfigError(f"devices '{devices}' is not a number: devices of a pipeline are alike, so write --devices 4")
    count = int(str(devices))
    if not 1 <= count <= MOST_DEVICES:
        raise ConfigError(f"devices {devices} must be 1 to {MOST_DEVICES}")
    if re.search(r"[,=]", str(memory)):
        raise ConfigError(f"memory '{memory}' names several: devices of a pipeline are alike, so write --memory 2GiB")
    memory_bytes = parse_bytes(str(memory))
    if not LEAST_BYTES <= memory_bytes <= MOST_BYTES:
        raise ConfigError(f"memory '{memory}' is no device's: write between 1KiB and 1024TiB, such as --memory 2GiB")
    return PipelineRequest(count, memory_bytes, parse_link(link), micro_batches, method)


def parse_link(value: object) -> float:
    """Bytes per second from `12GB/s`, `10Gbit/s` or `1.5e9`.

    Raises:
        ConfigError: it is no such rate, or none that a link has.
    """
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?(?:e[0-9]{1,2})?)\s*([A-Za-z]*)\s*(?:/s)?\s*", str(value))
    if match is None or match[2].lower() not in RATES:
        raise ConfigError(f"link '{value}' is not a rate: write --link 12GB/s or --link 10Gbit/s")
    rate = float(match[1]) * RATES[match[2].lower()]
    if not LEAST_LINK <= rate <= MOST_LINK:
        raise ConfigError(f"link '{value}' is no link's rate: write between 1KB/s and 1000TB/s, such as --link 12GB/s")
    return rate


def stages_folder(model: Path, asked: Path | None, *, overwrite: bool) -> Path:
    """The folder that stages go into, checked before any work.

    Raises:
        ConfigError: it cannot be written, is there without --force, or holds what `partition` has not written.
    """
    folder = asked or model.with_name(f"{model.name.removesuffix('.onnx')}.stages")
    if folder.is_file():
        raise ConfigError(f"output {folder} is a file: give a folder for the stages")
    if not folder.parent.is_dir():
        raise ConfigError(f"directory {folder.parent} does not exist: create it, or choose another output folder")
    if folder.is_dir() and any(folder.iterdir()):
        if not overwrite:
            raise ConfigError(f"output {folder} exists: add --force to overwrite it, or choose another folder")
        if not (folder / SCHEDULE_FILE).is_file():
            raise ConfigError(f"output {folder} holds no {SCHEDULE_FILE}, so it is left alone: choose another folder")
    return folder
