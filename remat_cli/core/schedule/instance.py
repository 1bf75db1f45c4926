"""Abstract benchmark instances: a computation graph as JSON, without ONNX, to a Problem."""

from pathlib import Path

import msgspec

from remat_cli.base.errors import ModelError
from remat_cli.core.schedule.problem import Device, Memory, OpSpec, Problem, TensorSpec


class Node(msgspec.Struct, frozen=True):
    """One op with one output: `cost` is its time in any integer unit, `memory` the bytes of its output."""

    id: int
    cost: int
    memory: int
    name: str = ""
    backward: bool = False


class AbstractInstance(msgspec.Struct, frozen=True):
    """A graph whose node ids are its input order; `edges` are (producer, reader) pairs."""

    nodes: tuple[Node, ...]
    edges: tuple[tuple[int, int], ...]
    name: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the nodes; empty where they have none."""
        return tuple(node.name for node in self.nodes)


def load_instance(path: Path) -> AbstractInstance:
    """Read an instance file.

    Raises:
        ModelError: the file is missing, is not JSON, or does not describe an ordered graph.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=AbstractInstance)
    except FileNotFoundError:
        raise ModelError(f"instance {path} does not exist") from None
    except OSError as error:
        raise ModelError(f"instance {path} cannot be read: {error.strerror}") from None
    except msgspec.MsgspecError as error:
        way = "; an ONNX model is planned by `remat compile`" if path.suffix == ".onnx" else ""
        raise ModelError(f"instance {path} is not a benchmark instance: {error}{way}") from None


def instance_problem(instance: AbstractInstance) -> Problem:
    """One device named `cpu`, nothing fixed, nothing kept, no budget (use `with_budget`). Times are in cost units.

    Raises:
        ModelError: ids are not 0..n-1 in order, or an edge runs backwards.
    """
    count = len(instance.nodes)
    if [node.id for node in instance.nodes] != list(range(count)) or count == 0:
        raise ModelError(f"instance {instance.name}: node ids must be 0..n-1 in order, and at least one")
    inputs: list[list[int]] = [[] for _ in range(count)]
    for source, target in instance.edges:
        if not 0 <= source < target < count:
            raise ModelError(f"instance {instance.name}: edge [{source}, {target}] does not run forwards")
        inputs[target].append(source)
    return Problem(
        ops=tuple(
            OpSpec(
                inputs=tuple(dict.fromkeys(reads)),
                outputs=(node.id,),
                time_ns=(node.cost,),
                workspace_bytes=(0,),
                phase="backward" if node.backward else "none",
            )
            for node, reads in zip(instance.nodes, inputs, strict=True)
        ),
        tensors=tuple(TensorSpec(node.memory, node.id) for node in instance.nodes),
        memories=(Memory("cpu", 2**62),),
        devices=(Device("cpu", 0),),
    )
