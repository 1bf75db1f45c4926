"""Writing ops one after the other, each with its types known at once, and one call of an op as its rule sees it."""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir
from onnx import helper

from remat_cli.base.errors import ModelError
from remat_cli.base.present import present
from remat_cli.core.schedule.graph import Phase
from remat_cli.onnx_io.read.interface import dims_of
from remat_cli.onnx_io.read.normalise import fresh_name
from remat_cli.onnx_io.read.phases import PHASE_KEY
from remat_cli.onnx_io.read.source_names import SCOPES_KEY

OPSET = 21  # of every training step: the first in which all ops that rules write have their present form
IR_VERSION = 10
BROADCASTING = frozenset({"Add", "Sub", "Mul", "Div"})  # what reads the source of an Expand as well as its result
VISIBLE_ELEMENTS = 1024  # constants up to this size are shown to shape inference (shapes, axes, bounds)

Array = npt.NDArray[Any]


class Tape:
    """A growing list of nodes in execution order, and the constants that they read.

    `nodes` is in the order of writing, `constants` are initialisers, by name. Every value has a name, and a type and
    shape wherever shape inference knows them. New nodes belong to a phase and are named after the op they serve:
    see `within`.
    """

    def __init__(self, taken: Sequence[str] = ()) -> None:
        """Start empty; no new name will be one of `taken`."""
        self.nodes: list[ir.Node] = []
        self.constants: dict[str, ir.Value] = {}
        self._shared: dict[tuple[str, tuple[int, ...], bytes], ir.Value] = {}
        self._names = set(taken)
        self._phase: Phase = "forward"
        self._prefix = "train"
        self._scopes: tuple[str, ...] = ()

    @contextlib.contextmanager
    def within(self, phase: Phase, prefix: str, scopes: tuple[str, ...] = ()) -> Iterator[None]:
        """What is written inside belongs to a phase and to modules (`scopes`), and its names begin with `prefix`."""
        before = self._phase, self._prefix, self._scopes
        self._phase, self._prefix, self._scopes = phase, prefix, scopes
        try:
            yield
        finally:
            self._phase, self._prefix, self._scopes = before

    @contextlib.contextmanager
    def of_modules(self, scopes: tuple[str, ...]) -> Iterator[None]:
        """What is written inside belongs to modules of a network, the outermost first."""
        with self.within(self._phase, self._prefix, scopes):
            yield

    def op(self, op_type: str, *inputs: ir.Value | None, **attributes: Any) -> ir.Value:
        """Write an op with one result, and return it; one that broadcasts reads what is not spread out yet.

        So gradients of sums and means are not spread out in memory to be multiplied; an Expand that nobody reads is
        dropped when the step is done.
        """
        for place, value in enumerate(inputs) if op_type in BROADCASTING else ():
            maker = None if value is None else value.producer()
            if maker is not None and (maker.domain, maker.op_type) == ("", "Expand"):
                narrow = (*inputs[:place], maker.inputs[0], *inputs[place + 1 :])
                wide = _broadcast_shape(inputs)
                inputs = narrow if wide is not None and _broadcast_shape(narrow) == wide else inputs
        return self.ops(op_type, inputs, 1, attributes)[0]

    def ops(
        self,
        op_type: str,
        inputs: Sequence[ir.Value | None],
        outputs: int,
        attributes: dict[str, Any] | None = None,
        domain: str = "",
    ) -> tuple[ir.Value, ...]:
        """Write an op with several results."""
        given = ir.convenience.convert_attributes({k: v for k, v in (attributes or {}).items() if v is not None})
        node = ir.Node(domain, op_type, inputs, given, num_outputs=outputs)
        return self.write(node, f"{self._prefix}/{op_type}")

    def write(self, node: ir.Node, name: str) -> tuple[ir.Value, ...]:
        """Append a node whose inputs are values of this tape; nodes and results without a name get one after `name`."""
        node.name = fresh_name(node.name or name, self._names)
        node.metadata_props[PHASE_KEY] = self._phase
        if self._scopes:
            node.metadata_props[SCOPES_KEY] = str([*self._scopes, node.name])
        for position, value in enumerate(node.outputs):
            if value.name is None:
                value.name = fresh_name(node.name if position == 0 else f"{node.name}/{position}", self._names)
        _infer(node)
        self.nodes.append(node)
        return tuple(node.outputs)

    def constant(self, array: Array) -> ir.Value:
        """An initialiser; equal ones are shared."""
        key = (str(array.dtype), array.shape, array.tobytes())
        if key not in self._shared:
            name = fresh_name("train/constant", self._names)
            self._shared[key] = self.keep(ir.tensor(array, name=name), name)
        return self._shared[key]

    def keep(self, tensor: ir.TensorProtocol, name: str) -> ir.Value:
        """An initialiser under a name of its own."""
        value = ir.Value(
            name=name, type=ir.TensorType(tensor.dtype), shape=ir.Shape(dims_of(tensor)), const_value=tensor
        )
        self.constants[name] = value
        return value

    def ints(self, *numbers: int) -> ir.Value:
        """A vector of int64: axes, bounds, a shape."""
        return self.constant(np.array(numbers, np.int64))

    def scalar(self, number: float, like: ir.Value) -> ir.Value:
        """A number of rank 0, of the element type of another value."""
        return self.constant(np.array(number, element_type(like).numpy()))

    def fresh(self, name: str) -> str:
        """A name that nothing has yet."""
        return fresh_name(name, self._names)


def element_type(value: ir.Value) -> ir.DataType:
    """Element type of a value.

    Raises:
        ModelError: it is not known.
    """
    if value.dtype is None:
        raise ModelError(f"the element type of tensor '{value.name}' is not known: gradients cannot be written")
    return value.dtype


def shape_of(value: ir.Value) -> tuple[int, ...]:
    """Shape of a value, in elements.

    Raises:
        ModelError: it is not known, or not in all dimensions.
    """
    dims = None if value.shape is None else tuple(value.shape)
    if dims is None or not all(isinstance(dim, int) for dim in dims):
        raise ModelError(
            f"the shape of tensor '{value.name}' depends on data or is not known: gradients need it "
            "(bind dimensions with --dim, or export the model with fixed shapes)"
        )
    return tuple(int(str(dim)) for dim in dims)


def may_be_float(value: ir.Value) -> bool:
    """Whether a value may have real elements, and so a gradient: also where its type is not known."""
    return value.dtype is None or value.dtype.is_floating_point()


def known(value: ir.Value | None) -> Array | None:
    """The elements of a constant; None for what is left out or computed."""
    if value is None or value.const_value is None:
        return None
    return np.asarray(value.const_value.numpy())


def _broadcast_shape(values: Sequence[ir.Value | None]) -> tuple[int, ...] | None:
    """The shape that values have together; None if that is not known."""
    shapes = [None if value is None else value.shape for value in values]
    if any(shape is None or not shape.is_static() for shape in shapes):
        return None
    return np.broadcast_shapes(*(tuple(int(str(dim)) for dim in shape) for shape in shapes if shape is not None))


def _infer(node: ir.Node) -> None:
    """Types and shapes of a node's results, as far as ONNX shape inference knows them. In place."""
    domain = "" if node.domain == "ai.onnx" else node.domain
    if not onnx.defs.has(node.op_type, OPSET, domain):
        return
    schema = onnx.defs.get_schema(node.op_type, OPSET, domain)
    read = {value.name or "": value for value in node.inputs if value is not None}
    types = {}
    for name, value in read.items():
        dims = None if value.shape is None else [dim if isinstance(dim, int) else dim.value for dim in value.shape]
        # inference takes an empty type for unknown; an element type of 0 it refuses
        is_known = value.dtype is not None
        types[name] = helper.make_tensor_type_proto(int(element_type(value)), dims) if is_known else onnx.TypeProto()
    small = {name: value.const_value for name, value in read.items() if value.const_value is not None}
    data = {name: ir.to_proto(tensor) for name, tensor in small.items() if tensor.size <= VISIBLE_ELEMENTS}
    imports = [helper.make_opsetid("", OPSET)]
    try:
        inferred = onnx.shape_inference.infer_node_outputs(
            schema, ir.to_proto(node), types, data, opset_imports=imports, ir_version=IR_VERSION
        )
    except (onnx.shape_inference.InferenceError, RuntimeError, ValueError) as error:
        if any(value.dtype is None for value in read.values()):
            return  # nothing is known of what it reads, so nothing of what it makes
        line = str(error).strip().splitlines()[0]
        raise ModelError(f"op '{node.name}' ({node.op_type}): its shapes do not fit: {line}") from None
    for value in node.outputs:
        kind = inferred.get(value.name or "")
        if kind is not None and kind.tensor_type.elem_type:
            tensor = kind.tensor_type
            dims = [dim.dim_value if dim.HasField("dim_value") else None for dim in tensor.shape.dim]
            value.type = ir.TensorType(ir.DataType(tensor.elem_type))
            value.shape = ir.Shape(dims) if tensor.HasField("shape") else None


Grads = Sequence[ir.Value | None]  # by output; None where none flows back


def only(grads: Grads) -> ir.Value:
    """The gradient of an op's one result."""
    return present(grads[0], "a gradient")


@dataclass(frozen=True)
class Call:
    """One op of the forward pass.

    `inputs` and `outputs` are by position, None where an optional one is left out; `outputs` is empty until the op is
    written. `saved` is what its training form keeps for the gradient. `wanted` are the positions of inputs whose
    gradients are asked for. `seed` differs from call to call, for random ops. `scopes` are the modules that it is in.
    """

    name: str
    op_type: str
    inputs: tuple[ir.Value | None, ...]
    attributes: Mapping[str, ir.Attr]
    outputs: tuple[ir.Value | None, ...] = ()
    saved: tuple[ir.Value, ...] = ()
    wanted: frozenset[int] = frozenset()
    domain: str = ""
    seed: int = 0
    scopes: tuple[str, ...] = ()

    def input(self, position: int) -> ir.Value:
        """An input that the op cannot do without."""
        return present(self.inputs[position], f"input {position} of {self.op_type}")

    def output(self, position: int = 0) -> ir.Value:
        """A result that exists."""
        return present(self.outputs[position], f"result {position} of {self.op_type}")

    def has(self, position: int) -> bool:
        """Whether an optional input is there."""
        return position < len(self.inputs) and self.inputs[position] is not None

    def shape(self, position: int = 0) -> tuple[int, ...]:
        """Shape of an input."""
        return shape_of(self.input(position))

    def constant(self, position: int) -> Array | None:
        """Elements of an input that is a constant; None if it is left out or computed."""
        return known(self.inputs[position]) if self.has(position) else None

    def integer(self, name: str, default: int = 0) -> int:
        """An integer attribute."""
        return self.attributes[name].as_int() if name in self.attributes else default

    def real(self, name: str, default: float = 0.0) -> float:
        """A real attribute."""
        return self.attributes[name].as_float() if name in self.attributes else default

    def text(self, name: str, default: str = "") -> str:
        """A text attribute."""
        return self.attributes[name].as_string() if name in self.attributes else default

    def integers(self, name: str, default: Sequence[int] = ()) -> tuple[int, ...]:
        """An attribute that lists integers."""
        return tuple(self.attributes[name].as_ints()) if name in self.attributes else tuple(default)


@dataclass(frozen=True)
class WrittenForm:
    """An op as it was written into the training step.

    `outputs` are by position those of the op; `saved` is what its gradient needs besides inputs and outputs;
    `updates` are pairs of a state that came in (running statistics) and its new value.
    """

    outputs: tuple[ir.Value | None, ...]
    saved: tuple[ir.Value, ...] = ()
    updates: tuple[tuple[ir.Value, ir.Value], ...] = ()


Found = Mapping[int, ir.Value]  # gradients of inputs, by position
Gradient = Callable[[Tape, Call, Grads], Found]
TrainingForm = Callable[[Tape, Call], WrittenForm | None]  # None: as it stands


@dataclass(frozen=True)
class Rule:
    """How gradients flow back through an op.

    `gradient(tape, call, grads)` writes ops and returns the gradients of inputs by position, those of `call.wanted`
    (more are ignored); weights first, since what they read may then die. `form` writes the op where a training step
    needs it in another form than the model has it. `needs` are the positions of inputs that a gradient flows to;
    None means all real ones.
    """

    gradient: Gradient
    form: TrainingForm | None = None
    needs: frozenset[int] | None = None


Rules = Mapping[str, Rule]  # by op type, after its domain where that is not ONNX's own
FIRST = frozenset({0})  # for `needs`: gradients flow to the first input only


def constant_of(call: Call, position: int, what: str) -> Array:
    """Elements of an input that must be a constant.

    Raises:
        ModelError: it is computed.
    """
    array = call.constant(position)
    if array is None:
        raise ModelError(
            f"op '{call.name}' ({call.op_type}): its {what} are computed, and its gradient needs constants "
            "(simplify the model first, or export it with fixed shapes)"
        )
    return array
