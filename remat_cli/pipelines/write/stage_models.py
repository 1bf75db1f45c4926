"""Stages of a model as ONNX files: what crosses a cut is input and output, weights are in one file per stage."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import onnx
import onnx_ir as ir

from remat_cli.base.present import present
from remat_cli.core.schedule.graph import Graph
from remat_cli.onnx_io.read.interface import DATA_TYPES, dims_of, runtime_name
from remat_cli.onnx_io.write.save import ALIGNMENT, SMALL_BYTES
from remat_cli.pipelines.plan.reruns import Reruns
from remat_cli.pipelines.plan.schedule_file import SessionFile
from remat_cli.pipelines.plan.stage_parts import StageParts

AGAIN = "/remat_again"
"""Behind the names of ops that run again and of what they make."""
UNMOVED = frozenset({"string", "complex64", "complex128", "int4", "uint4"})
"""Element types whose weights stay in the model files."""


def write_stages(
    model: ir.Model, graph: Graph, stages: Sequence[StageParts], folder: Path
) -> tuple[tuple[SessionFile, SessionFile | None], ...]:
    """Write the forward and, where it has one, the backward of each stage; `graph` must be that of `model`.

    Inputs are in the order in which the stage names them; weights of both ways lie in one file beside them.
    """
    writer = _Writer(model, graph, folder)
    return tuple(writer.write(stage, number) for number, stage in enumerate(stages, 1))


class _Writer:
    """Writes stages of one model."""

    def __init__(self, model: ir.Model, graph: Graph, folder: Path) -> None:
        self._graph, self._folder = graph, folder
        self._nodes = {node.name: node for node in model.graph}
        self._weights = {name: value.const_value for name, value in model.graph.initializers.items()}
        self._frame = onnx.ModelProto(ir_version=model.ir_version, producer_name="remat")
        for domain, version in model.graph.opset_imports.items():
            self._frame.opset_import.add(domain=domain, version=version)
        self._frame.functions.extend(ir.to_proto(function) for function in model.functions.values())

    def write(self, stage: StageParts, number: int) -> tuple[SessionFile, SessionFile | None]:
        """Write both ways of a stage."""
        ops = (*stage.forward, *stage.backward)
        used = dict.fromkeys(weight for op in ops for weight in self._graph.ops[op].weights)
        data = f"stage_{number}.weights"
        tensors: dict[str, onnx.TensorProto] = {}
        with (self._folder / data).open("wb") as file:
            for weight in used:
                name = self._graph.weights[weight].name
                # A weight in the data file, or a small one as it is.
                tensor = present(self._weights[name], f"weight '{name}'")
                dtype = runtime_name(tensor.dtype)
                if dtype in UNMOVED:
                    proto: onnx.TensorProto = ir.to_proto(tensor)
                    tensors[name] = proto
                else:
                    proto = onnx.TensorProto(name=name, data_type=tensor.dtype.value, dims=dims_of(tensor))
                    if tensor.nbytes < SMALL_BYTES:
                        proto.raw_data = tensor.tobytes()
                        tensors[name] = proto
                    else:
                        proto.data_location = onnx.TensorProto.EXTERNAL
                        for key, value in (("location", data), ("offset", file.tell()), ("length", tensor.nbytes)):
                            proto.external_data.add(key=key, value=str(value))
                        file.write(tensor.tobytes())
                        file.write(bytes(-tensor.nbytes % ALIGNMENT))
                        tensors[name] = proto
            is_needed = file.tell() > 0
        if not is_needed:
            (self._folder / data).unlink()
        given = {t for op in ops for t in self._graph.ops[op].outputs if self._graph.tensors[t].kept}
        wanted = {*stage.leaves, *stage.kept} | given
        forward = self._session(f"stage_{number}.forward.onnx", _Session(stage.forward, wanted), tensors)
        if not stage.backward:
            return forward, None
        backward = _Session(stage.backward, {*stage.goes_back, *stage.gradients} | given, stage.reruns)
        return forward, self._session(f"stage_{number}.backward.onnx", backward, tensors)

    def _session(self, file: str, session: "_Session", tensors: dict[str, onnx.TensorProto]) -> SessionFile:
        graph, ops = self._graph, session.ops
        made = {tensor for op in ops if not session.is_again(op) for tensor in graph.ops[op].outputs}
        again = {tensor for op in ops if session.is_again(op) for tensor in graph.ops[op].outputs}
        read = {tensor for op in ops for tensor in graph.ops[op].inputs if not session.comes_again(op, tensor)}
        reads, makes = sorted(read - made), sorted(made & session.wanted)
        model = onnx.ModelProto()
        model.CopyFrom(self._frame)
        model.graph.name = file.removesuffix(".onnx")
        for op in ops:
            node: onnx.NodeProto = ir.to_proto(self._nodes[graph.ops[op].name])
            new = {graph.tensors[t].name for t in graph.ops[op].inputs if session.comes_again(op, t)}
            for at, name in enumerate(node.input):
                if name in new:
                    node.input[at] = name + AGAIN
            if session.is_again(op):  # what is made again has names of its own
                node.output[:] = [name and name + AGAIN for name in node.output]
                node.name += AGAIN
            model.graph.node.append(node)
        model.graph.input.extend(self._infos(reads))
        model.graph.output.extend(self._infos(makes))
        model.graph.value_info.extend(self._infos(sorted(made - set(makes))))
        model.graph.value_info.extend(self._infos(sorted(again), AGAIN))
        used = dict.fromkeys(graph.weights[weight].name for op in ops for weight in graph.ops[op].weights)
        model.graph.initializer.extend(tensors[name] for name in used)
        (self._folder / file).write_bytes(model.SerializeToString(deterministic=True))
        return SessionFile(file, self._names(reads), self._names(makes))

    def _names(self, tensors: Iterable[int]) -> tuple[str, ...]:
        return tuple(self._graph.tensors[tensor].name for tensor in tensors)

    def _infos(self, tensors: Iterable[int], suffix: str = "") -> list[onnx.ValueInfoProto]:
        found = [self._graph.tensors[tensor] for tensor in tensors]
        return [onnx.helper.make_tensor_value_info(t.name + suffix, DATA_TYPES[t.dtype].value, t.shape) for t in found]


@dataclass(frozen=True)
class _Session:
    """Ops in order, what they are wanted for, and which parts run again; none does in a forward."""

    ops: tuple[int, ...]
    wanted: set[int]
    reruns: Reruns | None = None

    def is_again(self, op: int) -> bool:
        """Whether an op runs in the backward that is one of the forward."""
        return self.reruns is not None and op not in self.reruns.line.backward_ops

    def comes_again(self, op: int, tensor: int) -> bool:
        """Whether an op reads a tensor as it is made anew."""
        return self.reruns is not None and self.reruns.comes_again(op, tensor)
