"""A training step, written from a model and what to train: what it takes and gives, and the ops between."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

import numpy as np
import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass

from remat_cli.autodiff.forward import Forward, Rebatch, modern, write_forward
from remat_cli.autodiff.learning import LOSS_RULES, LOSSES, class_axis_of, make_optimizer, shared_numbers
from remat_cli.autodiff.parameters import ParameterChoice, Weights, choose_weights
from remat_cli.autodiff.pieces import as_type, reshape, zeros
from remat_cli.autodiff.reverse import Arrived as Move
from remat_cli.autodiff.reverse import Recorder, write_gradients
from remat_cli.autodiff.rules import RULES, chosen_rules
from remat_cli.autodiff.tape import IR_VERSION, OPSET, Array, Rules, Tape, element_type, shape_of
from remat_cli.base.errors import ModelError
from remat_cli.base.present import present
from remat_cli.core.values.training import StepFacts, TrainOptions
from remat_cli.onnx_io.read.load import STATE_KEY
from remat_cli.onnx_io.read.normalise import lifted_constants
from remat_cli.onnx_io.read.phases import PHASE_KEY

LOSS = "loss"
TARGET = "target"
RATE = "learning_rate"
COUNT = "step_count"
NEXT = ".next"
GRADIENT = ".gradient"


@dataclass
class Ends:
    """Inputs and outputs in order; `state` maps outputs to the inputs they become, `first` holds their first values.

    `moved` are the weights that the step gives something for; `target` is the name of what outputs are compared with.
    """

    tape: Tape
    inputs: list[ir.Value]
    outputs: list[ir.Value] = field(default_factory=list)
    state: dict[str, str] = field(default_factory=dict)
    first: dict[str, Array] = field(default_factory=dict)
    moved: set[ir.Value] = field(default_factory=set)
    target: str | None = None

    def take(self, value: ir.Value, first: Array) -> None:
        """An input that the caller keeps from step to step."""
        self.inputs.append(value)
        self.first[value.name or ""] = first

    def give(self, value: ir.Value, name: str) -> ir.Value:
        """An output under a name; a copy where the value is an input, a constant or an output already."""
        if value.producer() is None or value in self.outputs:
            value = self.tape.op("Identity", value)
        value.name = self.tape.fresh(name)
        self.outputs.append(value)
        return value

    def give_next(self, old: ir.Value, new: ir.Value) -> None:
        """Give an input's value for the next step as an output."""
        self.moved.add(old)
        self.state[self.give(new, f"{old.name}{NEXT}").name or ""] = old.name or ""

    def give_gradient(self, weight: ir.Value, grad: ir.Value) -> None:
        """Give a gradient as an output."""
        self.moved.add(weight)
        self.give(grad, f"{weight.name}{GRADIENT}")

    def number(self, name: str) -> ir.Value:
        """A real input of rank 0 that the caller chooses anew each time."""
        value = self._input(name, ir.DataType.FLOAT, ())
        self.inputs.append(value)
        return value

    def counted(self) -> ir.Value:
        """How many steps there were, this one included."""
        before = self._input(COUNT, ir.DataType.FLOAT, ())
        self.take(before, np.zeros((), np.float32))
        with self.tape.within("update", "update"):
            after = self.tape.op("Add", before, self.tape.scalar(1.0, before))
        self.give_next(before, after)
        return after

    def memory(self, weight: ir.Value, suffix: str) -> ir.Value:
        """What an optimizer remembers of a weight; zeros at first."""
        kind = memory_type(weight)
        value = self._input(f"{weight.name}.{suffix}", kind, shape_of(weight))
        self.take(value, np.zeros(shape_of(weight), kind.numpy()))
        return value

    def add_target(self, kind: ir.DataType, shape: tuple[int, ...]) -> ir.Value:
        """Add the input that outputs are compared with."""
        value = self._input(TARGET, kind, shape)
        self.inputs.append(value)
        self.target = value.name
        return value

    def _input(self, name: str, kind: ir.DataType, shape: tuple[int, ...]) -> ir.Value:
        return ir.Value(name=self.tape.fresh(name), type=ir.TensorType(kind), shape=ir.Shape(shape))


def memory_type(weight: ir.Value) -> ir.DataType:
    """The element type in which an update is computed: 16 bits are too few for averages of small squares."""
    kind = element_type(weight)
    return ir.DataType.FLOAT if kind.itemsize < 4 else kind


@dataclass(frozen=True)
class TrainingStep:
    """A training step; `state` are the first values of the inputs that later steps take from its outputs."""

    model: ir.Model
    state: Mapping[str, Array]
    facts: StepFacts


def build_step(
    model: ir.Model,
    options: TrainOptions,
    rules: Rules = RULES,
    seed: int = 0,
    batch: Rebatch | None = None,
) -> TrainingStep:
    """Write the training step of a model with bound dimensions.

    `rules` are by op type; `batch` says that the model was exported with another batch than its inputs have now.

    Raises:
        ModelError: an op has no gradient rule, a shape is not known, or loss, output or weights cannot be used.
        ConfigError: an option of the optimizer cannot be used.
    """
    source = modern(model)
    rules = {**chosen_rules(rules, options), **LOSS_RULES}
    constants = lifted_constants(model.graph) | lifted_constants(source.graph)
    weights = choose_weights(source.graph, rules, ParameterChoice(options.trainable, options.frozen, constants))
    if options.batch_norm == "frozen":
        weights = weights.without_statistics()
    outputs = {value.name or "": value for value in model.graph.outputs}
    end, notes = _end(outputs, options)
    kept = list(outputs) if options.keep_outputs else []
    values = [*source.graph.inputs, *source.graph.outputs, *(value for node in source.graph for value in node.outputs)]
    named = [*values, *source.graph]
    tape = Tape([*source.graph.initializers, *(each.name for each in named if each.name)])
    recorder = Recorder(tape, rules, seed=seed)
    forward = write_forward(source, recorder, weights, [end, *kept], batch)
    ends = Ends(tape, list(forward.data))
    _check_rules(recorder, forward.values[end])  # first, as a loss asks for a type, which an unknown op may not have
    loss = _loss(recorder, forward.values[end], options, ends)
    _check_rules(recorder, loss)
    ends.give(loss, LOSS)
    ends.outputs += [forward.values[name] for name in kept]
    for name, value in forward.trained.items():
        ends.take(value, _first_value(source.graph, name))
    _write_statistics(recorder, forward, source.graph, ends)
    _write_backward(recorder, loss, forward, _mover(tape, options, ends), ends)
    return _finish(weights, forward, ends, notes)


def _end(outputs: Mapping[str, ir.Value], options: TrainOptions) -> tuple[str, tuple[str, ...]]:
    """Name of the value that the loss is made from, and what the user should know of the choice.

    `outputs` are those of the model as it came: raising the opset may hide a Softmax among other ops.
    """
    wanted = options.loss_output or options.output
    if wanted is None and len(outputs) > 1:
        raise ModelError(
            f"the model has {len(outputs)} outputs: name the one to train with --output-name: {', '.join(outputs)}"
        )
    if wanted is not None and wanted not in outputs:
        raise ModelError(f"the model has no output '{wanted}'; its outputs are: {', '.join(outputs)}")
    name = wanted or next(iter(outputs))
    value = outputs[name]
    node = value.producer()
    if (
        options.loss == "cross-entropy"
        and node is not None
        and node.op_type == "Softmax"
        and node.inputs[0] is not None
    ):
        note = f"output '{name}' is a Softmax: the loss is computed from what goes into it"
        return node.inputs[0].name or "", (note,)
    return name, ()


def _loss(recorder: Recorder, end: ir.Value, options: TrainOptions, ends: Ends) -> ir.Value:
    if prod(shape_of(end)) == 0:
        raise ModelError(
            f"output '{end.name}' has shape {list(shape_of(end))}, no element, so there is nothing to learn from: "
            "name another one with --output-name, or bind larger dimensions"
        )
    if options.loss is None:
        if prod(shape_of(end)) != 1:
            raise ModelError(
                f"output '{end.name}' has shape {list(shape_of(end))}: a loss is one number; to compute one from it "
                "write --output-name and --loss"
            )
        return end
    loss = LOSSES[options.loss]
    axis = class_axis_of(end, options.class_axis) if options.loss == "cross-entropy" else 0
    kind, shape = loss.target(end, axis)
    target = ends.add_target(kind, shape)
    with recorder.tape.within("forward", LOSS):
        return loss.write(recorder, end, target, axis)


def _check_rules(recorder: Recorder, loss: ir.Value) -> None:
    missing = recorder.without_rule([loss])
    if missing:
        kinds = ", ".join(f"{kind} ({count})" for kind, count in sorted(missing.items()))
        raise ModelError(
            f"no gradient rule for: {kinds}; write one as a Python function and name it in the configuration "
            "(train: gradient_rules: {OpType: module:function}), or freeze the weights before it"
        )
    if not recorder.leading_to([loss]):
        raise ModelError("the loss depends on no trained weight: name other weights with --trainable PATTERN")


def _write_statistics(recorder: Recorder, forward: Forward, graph: ir.Graph, ends: Ends) -> None:
    """Running statistics come in, and go out with the batch's own worked in."""
    new = dict(recorder.updates)
    for name, value in forward.statistics.items():
        ends.take(value, _first_value(graph, name))
        if value in new:
            ends.give_next(value, new[value])


def _write_backward(recorder: Recorder, loss: ir.Value, forward: Forward, move: Move, ends: Ends) -> None:
    """Gradients back to every trained weight; each is used up as soon as it is complete."""
    tape = recorder.tape
    seed = tape.constant(np.ones(shape_of(loss), element_type(loss).numpy()))
    arrived = dict.fromkeys(forward.trained.values(), move)
    write_gradients(tape, recorder.leading_to([loss]), recorder.rules, {loss: seed}, arrived)
    for value in forward.trained.values():
        if value not in ends.moved:  # the loss does not react to it
            shape = shape_of(value)
            with tape.within("backward", f"{value.name}/grad"):
                nothing = reshape(tape, zeros(tape, shape or (1,), value), shape)
            move(value, nothing)


def _mover(tape: Tape, options: TrainOptions, ends: Ends) -> Move:
    """Choose what happens to a complete gradient: it becomes an output, or moves its weight."""
    if options.optimizer is None:
        return ends.give_gradient
    optimizer = make_optimizer(options.optimizer, options.optimizer_options)
    rate = ends.number(RATE)
    shared = shared_numbers(tape, optimizer, rate, ends.counted)

    def move(weight: ir.Value, grad: ir.Value) -> None:
        states = [ends.memory(weight, suffix) for suffix in optimizer.states]
        with tape.within("update", f"{weight.name}/update"):
            wide = as_type(tape, weight, memory_type(weight))
            moved, *kept = optimizer.update(tape, wide, as_type(tape, grad, memory_type(weight)), states, shared)
            new = (as_type(tape, moved, element_type(weight)), *kept)
        for value, after in zip((weight, *states), new, strict=True):
            ends.give_next(value, after)

    return move


def _first_value(graph: ir.Graph, name: str) -> Array:
    return np.asarray(present(graph.initializers[name].const_value, f"weight '{name}'").numpy())


def _finish(weights: Weights, forward: Forward, ends: Ends, notes: tuple[str, ...]) -> TrainingStep:
    """The step, in an order of nodes that a default session runs as it was written, and what it says of itself."""
    tape = ends.tape
    graph = ir.Graph(
        ends.inputs,
        ends.outputs,
        nodes=arranged(tape.nodes),
        initializers=list(tape.constants.values()),
        opset_imports={"": OPSET},
        name="training_step",
    )
    model = ir.Model(graph, ir_version=IR_VERSION, producer_name="remat")
    RemoveUnusedNodesPass()(model)
    model.metadata_props[STATE_KEY] = json.dumps(ends.state)
    phases = Counter(node.metadata_props.get(PHASE_KEY) for node in model.graph)
    facts = StepFacts(
        forward_ops=phases["forward"],
        backward_ops=phases["backward"],
        update_ops=phases["update"],
        parameters=sum(prod(shape_of(value)) for value in forward.trained.values()),
        trained=tuple(forward.trained),
        frozen=tuple(sorted(weights.frozen)),
        state=dict(ends.state),
        inputs=tuple(value.name or "" for value in forward.data),
        loss=ends.outputs[0].name or "",
        target=ends.target,
        notes=notes,
    )
    return TrainingStep(model, ends.first, facts)


def arranged(nodes: Sequence[ir.Node]) -> list[ir.Node]:
    """Ops that nobody reads go to the end, the first one last.

    A default session searches depth first, from the last op that nobody reads. In written order that would be the
    update of the first layer, which needs the whole backward pass, and all other gradients would wait for it.
    """
    ends = [node for node in nodes if not any(value.uses() for value in node.outputs)]
    rest = [node for node in nodes if any(value.uses() for value in node.outputs)]
    return [*rest, *reversed(ends)]
