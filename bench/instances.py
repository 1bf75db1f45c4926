"""Make benchmark instances: seeded random layered graphs, training graphs, real networks, and extracted models.

`python -m bench.instances small networks extracted` makes those that stand in `bench/instances/`;
`python -m bench.instances layered training` makes the large ones in `bench/generated/`, which is not in the
repository (`make bench-instances`). All but the measured costs of `extracted` are the same on every machine.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import click
import onnx

from bench.draft import Draft
from bench.extract import extract
from bench.gpt import OPS_PER_LAYER, OTHER_OPS, gpt
from bench.layered import Shape, layered
from bench.networks import NETWORKS
from sample_models.zoo import load_zoo

ROOT = Path(__file__).resolve().parents[1]
SIZES = (1_000, 10_000, 50_000)
SEEDS = (1,)
LONGEST_LOCAL_SKIP = 30
# In the other models one op takes the whole peak, so that there is nothing to plan.
EXTRACTED_SAMPLES = ("attention_unet", "densenet", "detector", "inception", "transformer", "unet")
EXTRACTED_ZOO = ("densenet121",)


def make_layered() -> Iterator[Draft]:
    """Skips over all layers as in the published graphs, and graphs whose skips stay near, as in real networks."""
    for ops in SIZES:
        for seed in SEEDS:
            yield layered(f"layered_{ops}_s{seed}", Shape(ops), seed)
            yield layered(f"layered_local_{ops}_s{seed}", Shape(ops, LONGEST_LOCAL_SKIP), seed)


def make_training() -> Iterator[Draft]:
    """GPT-like training graphs of about these sizes."""
    for ops in SIZES:
        layers = round((ops - OTHER_OPS) / OPS_PER_LAYER)
        yield gpt(f"gpt_{layers}_layers_train", layers)


def make_small() -> Iterator[Draft]:
    """Of both random kinds one that is solved in a moment."""
    yield layered("layered_100_s1", Shape(100), 1)
    yield gpt("gpt_3_layers_train", 3)


def make_networks() -> Iterator[Draft]:
    """Networks whose shapes and costs are computed."""
    for make in NETWORKS.values():
        yield make()


def make_extracted() -> Iterator[Draft]:
    """Sample models and zoo graphs, measured here."""
    for name in EXTRACTED_SAMPLES:
        yield extract(f"sample_{name}", ROOT / "sample_models" / f"{name}.onnx")
    with tempfile.TemporaryDirectory() as folder:
        for name in EXTRACTED_ZOO:
            path = Path(folder) / f"{name}.onnx"
            onnx.save(load_zoo(name), path)
            yield extract(f"zoo_{name}", path)


KINDS: Mapping[str, tuple[str, Callable[[], Iterator[Draft]]]] = {
    "layered": ("generated", make_layered),
    "training": ("generated", make_training),
    "small": ("instances", make_small),
    "networks": ("instances", make_networks),
    "extracted": ("instances", make_extracted),
}


@click.command()
@click.argument("kinds", nargs=-1, required=True, type=click.Choice(list(KINDS)))
@click.option("--out", type=click.Path(path_type=Path), help="Folder for all; by default each kind has its own.")
def main(kinds: tuple[str, ...], out: Path | None) -> None:
    """Write the instances of these kinds."""
    for kind in kinds:
        folder, make = KINDS[kind]
        for draft in make():
            path = draft.write(out or ROOT / "bench" / folder)
            click.echo(f"{path}  {len(draft.nodes):,} ops, {len(draft.edges):,} edges", err=True)


if __name__ == "__main__":
    main()
