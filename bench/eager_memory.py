"""How much a training step holds at its peak, beside what torch eager holds for the same network and batch.

`python -m bench.eager_memory [--networks resnet50,unet] [--explain]`. Weights, their fixed inputs and the images do not
count on either side; all gradients of weights do, and stay to the end: as `.grad` in torch, as outputs of the step.

* `saved`: what torch keeps for the backward pass when the forward pass is over: each storage that its saved-tensor
  hooks see, once, weights and inputs left out.
* `eager`: the most bytes of storages alive at the end of any operator of forward and backward. A dispatch mode sees
  every operator and keeps weak references to the storages it makes. So this is what is saved, gradients in flight and
  gradients that are done. Scratch memory inside operators is not seen, and not counted for the step either. Modules are
  written as torchvision writes them: a Relu overwrites its input wherever autograd allows it, and a tensor is
  dropped after its last reader.
* `step`: the peak of the training step of `remat train`, unplanned: every op once in the order of a default session,
  as the judge counts it, less what is fixed.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
import onnx
import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from bench.compiling import table_lines
from remat_cli.autodiff.step import TrainingStep
from remat_cli.base.progress import silent
from remat_cli.compiling.prepare import prepare
from remat_cli.compiling.step import make_step, write_step
from remat_cli.core.schedule.graph import Graph
from remat_cli.core.schedule.problem import make_problem, tensor_ids
from remat_cli.core.schedule.simulate import baseline
from remat_cli.core.values.profile import OpCost, Profile, Provenance
from remat_cli.core.values.training import TrainOptions
from remat_cli.settings.settings import Settings
from remat_cli.settings.train import step_paths
from sample_models.papers import paper_model
from tests.autodiff.torch_twin import Twin, cross_entropy

HEAD = """# A training step beside eager execution

Made by `make bench-eager`. MiB at the peak, weights and images left out; all gradients of weights are held to the end.
*Saved* is what torch keeps for the backward pass, *eager* the most that it holds at once, *step* the most that the
training step of `remat train` holds, unplanned: every op once, in the order of a default session.
"""

MIB = 2**20
SHOWN = 12
NETWORKS: Mapping[str, dict[str, Any]] = {
    "resnet50": {"batch": 8, "resolution": 224},
    "vgg16": {"batch": 8, "resolution": 224, "width": 0.25},
    "unet": {"batch": 4, "resolution": (208, 304), "width": 0.25},
    "mobilenet": {"batch": 8, "resolution": 224},
    "bert": {"batch": 8, "length": 128, "context": 128, "vocabulary": 1000, "layers": 4, "heads": 4},
    "gpt2": {"batch": 8, "length": 128, "context": 128, "vocabulary": 1000, "layers": 4, "heads": 4},
}


@dataclass(frozen=True)
class Held:
    """A tensor alive at the peak, and who made it."""

    size_bytes: int
    maker: str


@dataclass(frozen=True)
class Peak:
    """The most bytes alive at once, what they were, and the operator that ran."""

    size_bytes: int
    during: str
    held: tuple[Held, ...]


@dataclass
class LiveStorages(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Follows every storage that operators make, apart from `fixed` ones, until it is freed."""

    fixed: frozenset[int]
    live: dict[int, tuple[StorageWeakRef, Held]] = field(default_factory=dict)
    peak: Peak = Peak(0, "", ())

    def __post_init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operator and look at what is alive behind it."""
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, torch.Tensor):
                self._note(tensor.untyped_storage(), f"{func} {list(tensor.shape)}")
        self.live = {key: entry for key, entry in self.live.items() if not _is_freed(entry[0])}
        total = sum(held.size_bytes for _, held in self.live.values())
        if total > self.peak.size_bytes:
            self.peak = Peak(total, str(func), tuple(held for _, held in self.live.values()))
        return result

    def _note(self, storage: torch.UntypedStorage, maker: str) -> None:
        key = storage._cdata
        if key not in self.fixed and key not in self.live:
            self.live[key] = _reference(storage), Held(storage.nbytes(), maker)


def _reference(storage: torch.UntypedStorage) -> StorageWeakRef:
    return StorageWeakRef(storage)  # type: ignore[no-untyped-call]


def _is_freed(reference: StorageWeakRef) -> bool:
    return bool(reference.expired())  # type: ignore[no-untyped-call]


@dataclass(frozen=True)
class Row:
    """Bytes of one network."""

    name: str
    saved_bytes: int
    eager: Peak
    step: Peak

    @property
    def ratio(self) -> float:
        """Step over eager."""
        return self.step.size_bytes / self.eager.size_bytes


def compare(name: str, sizes: dict[str, Any]) -> Row:
    """Both sides of one network."""
    model = paper_model(name, **sizes)
    step, held = step_peak(model)
    eager = Eager(model, step, class_axis=2 if name == "gpt2" else 1)
    return Row(name, eager.saved_bytes(), eager.peak(), held)


class Eager:
    """A network in torch with its data."""

    def __init__(self, model: onnx.ModelProto, step: TrainingStep, class_axis: int) -> None:
        """Take the inputs' shapes from the step, its classes from the network's last tensor."""
        self.twin = Twin(model, step.facts.trained)
        self.loss = cross_entropy(class_axis)
        self.feeds = {v.name or "": _data(tuple(v.shape.numpy()), v.dtype.name == "INT64") for v in _inputs(step)}
        self.target = self.feeds.pop(step.facts.target or "")
        tensors = [*self.twin.weights.values(), *self.feeds.values(), self.target]
        self.fixed = frozenset(tensor.untyped_storage()._cdata for tensor in tensors)

    def forward(self) -> torch.Tensor:
        """The loss."""
        output = self.twin.forward(self.feeds, "logits", in_place=True)
        return self.loss(output, self.target)

    def saved_bytes(self) -> int:
        """Bytes of storages that the forward pass keeps for the backward pass."""
        sizes: dict[int, int] = {}

        def pack(tensor: torch.Tensor) -> torch.Tensor:
            storage = tensor.untyped_storage()
            if storage._cdata not in self.fixed:
                sizes[storage._cdata] = storage.nbytes()
            return tensor.detach()

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            loss = self.forward()
        del loss
        return sum(sizes.values())

    def peak(self) -> Peak:
        """The most that forward and backward hold."""
        with LiveStorages(self.fixed) as watch:
            self.forward().backward()  # type: ignore[no-untyped-call]
        peak: Peak = watch.peak
        return peak


def _inputs(step: TrainingStep) -> list[Any]:
    names = {*step.facts.inputs, step.facts.target}
    return [value for value in step.model.graph.inputs if value.name in names]


def _data(shape: tuple[int, ...], is_whole: bool) -> torch.Tensor:
    """Ones for whole numbers: a token and a class that every network has."""
    return torch.ones(shape, dtype=torch.int64) if is_whole else torch.randn(shape)


def step_peak(model: onnx.ModelProto) -> tuple[TrainingStep, Peak]:
    """The training step that leaves gradients, and what it holds at its peak."""
    options = TrainOptions(loss="cross-entropy", optimizer=None)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        path = folder / "model.onnx"
        onnx.save(model, path)
        config = Settings(train=options, cache_dir=folder / "cache")
        step = make_step(path, config.train, config.conditions, silent())
        paths = step_paths(path, config.output, config.force)
        write_step(step, paths)
        graph = prepare(paths.step, config.conditions, folder, silent()).graph
    return step, _peak_of(graph)


def _peak_of(graph: Graph) -> Peak:
    nowhere = Provenance("", "", "", "", "", 0, "", 0, 0, measured=False)
    profile = Profile("any", "", nowhere, tuple(OpCost(op.name, 0) for op in graph.ops), 0, 0)
    plan, ids = baseline(make_problem(graph, profile)), tensor_ids(graph)
    curve = plan.live_bytes[0]
    top = max(range(len(curve)), key=curve.__getitem__)
    storages: dict[int, Held] = {}
    for instance in plan.instances:
        tensor = graph.tensors[ids[instance.tensor]]
        if instance.birth <= top <= instance.death and instance.storage not in storages:
            maker = graph.ops[tensor.producer or 0]
            storages[instance.storage] = Held(tensor.size_bytes, f"{maker.op_type} {maker.name} {list(tensor.shape)}")
    return Peak(curve[top], graph.ops[top].name, tuple(storages.values()))


def _explained(title: str, peak: Peak) -> list[str]:
    """The largest tensors at a peak."""
    largest = sorted(peak.held, key=lambda held: -held.size_bytes)[:SHOWN]
    return [
        f"{title}: {peak.size_bytes / MIB:.1f} MiB during {peak.during}, {len(peak.held)} tensors",
        *(f"  {held.size_bytes / MIB:8.2f}  {held.maker}" for held in largest),
    ]


def _cells(row: Row) -> list[str]:
    sizes = row.saved_bytes, row.eager.size_bytes, row.step.size_bytes
    return [row.name, *(f"{size / MIB:.1f}" for size in sizes), f"{row.ratio:.3f}"]


@click.command(help=__doc__.splitlines()[0] if __doc__ else "")
@click.option("--networks", default=",".join(NETWORKS), show_default=True)
@click.option("--explain", is_flag=True, help="List the largest tensors at each peak.")
def main(networks: str, explain: bool) -> None:
    """Print the table."""
    rows = []
    for name in networks.split(","):
        row = compare(name, NETWORKS[name])
        rows.append(row)
        if explain:
            click.echo("\n".join([*_explained(f"{name} eager", row.eager), *_explained(f"{name} step", row.step)]))
    cells = [_cells(row) for row in rows]
    click.echo(HEAD)
    click.echo("\n".join(table_lines(["network", "saved MiB", "eager MiB", "step MiB", "step / eager"], cells)))


if __name__ == "__main__":
    main()
