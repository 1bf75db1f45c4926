"""Reads a model file, checks and repairs it, and binds its dimensions; also reads what the optimiser has saved."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import TypeAlias

import msgspec
import onnx
import onnx_ir as ir
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from remat_cli.base.errors import ModelError
from remat_cli.base.files import sha256
from remat_cli.core.files.plan_file import is_plan
from remat_cli.core.schedule.program import InputSpec
from remat_cli.core.values.sizes import Dim
from remat_cli.onnx_io.read.canonical import canonicalise, name_made_weights, outputs_by_place
from remat_cli.onnx_io.read.checking import all_nodes, checkable
from remat_cli.onnx_io.read.interface import Interface, Port, fed_inputs, inputs_of, interface_of, outputs_of, port_of
from remat_cli.onnx_io.read.mapped import model_of, parsed
from remat_cli.onnx_io.read.normalise import (
    drop_trailing_blanks,
    drop_unread_states,
    drop_unused_weights,
    idle_casts_pass_on,
    lift_body_weights,
    lift_constants,
    name_nodes,
    names_of_bodies,
    weights_leave_inputs,
)
from remat_cli.onnx_io.read.old_forms import as_loaded, check_opset, is_too_old, with_known_opset
from remat_cli.onnx_io.read.told_inputs import counted_masks
from remat_cli.onnx_io.read.untrusted import all_tensors, check_texts, check_types, external_files
from remat_cli.onnx_io.sizes.fed_sizes import fed_sizes, with_fed
from remat_cli.onnx_io.sizes.nameless import name_dimensions
from remat_cli.onnx_io.sizes.summed import sums_of, with_sums
from remat_cli.onnx_io.sizes.value_lengths import hide_lengths
from remat_cli.onnx_io.write.as_written import forget_signature
from remat_cli.onnx_io.write.packed import forget_packed
from remat_cli.onnx_io.write.primers import without_primers
from remat_cli.onnx_io.write.save import save, save_hashed, save_work
from remat_cli.onnx_io.write.steady import form_of, lost_metadata, seen_through
from remat_cli.ort_rules.steady import SteadyForm

__all__ = [
    "DimBindings",
    "SourceModel",
    "inputs_of",
    "load",
    "outputs_of",
    "prepare_optimized",
    "save",
    "save_hashed",
    "save_work",
]

OLDEST_IR_VERSION = 8  # the first that the rewritten model's metadata and names are safe in
KNOWN_DOMAINS = frozenset(
    {"", "ai.onnx", "ai.onnx.ml", "ai.onnx.training", "ai.onnx.preview.training"}
    | {"com.microsoft", "com.microsoft.nchwc", "com.microsoft.experimental", "com.ms.internal.nhwc"}
)


LOST_METADATA = (
    "was written by `remat compile`, and another tool took its remat metadata out: use the model that it was made "
    "from, its PLAN.json, or compile again and let no tool rewrite the file"
)

Model: TypeAlias = ir.Model


@dataclass(frozen=True)
class SourceModel:
    """A model as the user gave it, repaired and with bound dimensions.

    `sha256` is the hash of the file and of its external data. `interface` is what the file declares, symbolic
    dimensions included; `named` is the same with a name for each input dimension that has none there. `data_files`
    hold what of its weights lies outside, `form` is the steady form that the file has; here it is seen through, and
    primers are taken out. `converted` says what was converted. `summed` are the named dimensions that are sums of
    others: the user says so, or their names do.
    """

    ir: ir.Model
    path: Path
    sha256: str
    bound_dims: dict[str, int]
    interface: Interface
    named: Interface
    data_files: tuple[Path, ...] = ()
    form: SteadyForm | None = None
    has_packed: bool = False
    converted: str | None = None
    is_primed: bool = False
    summed: dict[str, Dim] = field(default_factory=dict)

    def inputs_at(self, sizes: Mapping[str, int]) -> tuple[InputSpec, ...]:
        """What to feed at other sizes of named dimensions."""
        known = with_sums({**self.bound_dims, **sizes}, self.summed)
        bound = (port_of(value) for value in fed_inputs(self.ir.graph))
        specs: list[InputSpec] = []
        counted = {value.name for value in counted_masks(self.ir)}
        for old, new, spec in zip(self.named.inputs, bound, inputs_of(self.ir), strict=True):
            pairs = _dim_pairs(old, new) if old.shape is not None else ((dim, dim) for dim in new.shape or ())
            named = (known.get(a.value or "", b) if isinstance(a, ir.SymbolicDim) else b for a, b in pairs)
            shape = tuple(int(str(dim)) for dim in named)
            specs.append(msgspec.structs.replace(spec, shape=shape, is_counted=spec.name in counted))
        return tuple(specs)

    def typed_as(self, optimised: Model) -> SourceModel:
        """The model with the types that the runtime found of outputs whose type the file does not say."""
        outputs = zip(self.named.outputs, optimised.graph.outputs, strict=True)
        typed = tuple(replace(port, type=port.type or found.type) for port, found in outputs)
        return replace(self, named=replace(self.named, outputs=typed))

    def interface_with(self, free: Collection[str]) -> Interface:
        """The interface with numbers for names but those that stay free, and sums of these.

        Outputs keep dimensions that no input names: they may depend on values.
        """
        free = {*free, *(name for name, total in self.summed.items() if total.names.intersection(free))}
        bound = (port_of(value) for value in fed_inputs(self.ir.graph))
        inputs: list[Port] = []
        sizes: dict[str, int | ir.SymbolicDim] = {}
        for old, new in zip(self.named.inputs, bound, strict=True):
            if old.shape is None or new.shape is None:
                inputs.append(new)
                continue
            dims = [a if isinstance(a, ir.SymbolicDim) and a.value in free else b for a, b in _dim_pairs(old, new)]
            inputs.append(replace(new, shape=ir.Shape(dims)))
            named = zip(old.shape, dims, strict=False)
            sizes |= {dim.value: b for dim, b in named if isinstance(dim, ir.SymbolicDim) and dim.value is not None}
        outputs: list[Port] = []
        for port in self.named.outputs:
            told = [dim if isinstance(dim, int) else sizes.get(dim.value or "", dim) for dim in port.shape or ()]
            outputs.append(port if port.shape is None else replace(port, shape=ir.Shape(told)))
        return Interface(tuple(inputs), tuple(outputs))


def _dim_pairs(old: Port, new: Port) -> Iterable[tuple[int | ir.SymbolicDim, int | ir.SymbolicDim]]:
    return zip(old.shape or (), new.shape or (), strict=False)


def load(path: Path, dims: DimBindings, *, has_custom_ops: bool = False) -> SourceModel:
    """Read, check and repair a model; its external data stays on disk until needed.

    With `has_custom_ops` ops of any domain are let in: a library of the user's own knows them.

    Raises:
        ModelError: the file is missing, not a valid model, or has dimensions, ops or data that remat cannot use.
    """
    proto = read_proto(path)
    check_texts(path, proto)
    check_types(path, proto)
    check_opset(path, proto)
    if is_too_old(proto):
        proto = read_proto(path, whole=True)  # as ONNX's converter takes it
    if not has_custom_ops:
        # Refuse ops that stock ONNX Runtime cannot know.
        known = KNOWN_DOMAINS | {function.domain for function in proto.functions}
        for node in all_nodes(proto.graph):
            if node.domain not in known:
                raise ModelError(
                    f"model {path}: unknown op without shape: '{node.domain}.{node.op_type}' (node '{node.name}'); "
                    "name the library that has it: --custom-ops LIB"
                )
    data_files = external_files(path, proto)
    as_loaded(path, proto)
    _check(path, proto)
    proto, converted = with_known_opset(path, proto)
    has_packed = sum(map(forget_packed, all_tensors(proto.graph))) > 0
    model = model_of(proto, path)
    forget_signature(model)
    if lost_metadata(model):
        raise ModelError(f"{path} {LOST_METADATA}")
    form, is_primed = form_of(model), without_primers(model)
    seen_through(model)
    _repair(model)
    interface = interface_of(model)
    nameless = name_dimensions(model, dims.names, dims.shapes)
    named = interface_of(model)
    summed = sums_of(named, dims.summed, dims.names)
    bound = bind_dimensions(model.graph, dims, nameless, summed)
    digest, data = sha256(path, *data_files), tuple(data_files)
    return SourceModel(
        model, path, digest, bound, interface, named, data, form, has_packed, converted, is_primed, summed
    )


def prepare_optimized(path: Path, before: ir.Model | None = None) -> ir.Model:
    """Read a file that ONNX Runtime's offline optimiser saved: the reference model that plans index.

    `before` is the model that was optimised; None where the file is in canonical form already.

    Raises:
        ModelError: the file is missing or not a model.
    """
    proto = read_proto(path)
    for tensor in all_tensors(proto.graph):
        forget_packed(tensor)
    model = model_of(proto, path)
    without_primers(model)
    seen_through(model)
    _repair(model)
    idle_casts_pass_on(model)
    names_of_bodies(model.graph)
    lift_body_weights(model)
    drop_unused_weights(model.graph)
    if before is not None:
        name_made_weights(model, before)
    canonicalise(model, outputs_by_place(before or model))
    return model


def _repair(model: ir.Model) -> None:
    """Names, constants, listed weights and blank inputs: what exporters leave undone. In place."""
    if model.ir_version < 4:
        weights_leave_inputs(model.graph)
    hide_lengths(model.graph)
    model.ir_version = max(model.ir_version, OLDEST_IR_VERSION)
    name_nodes(model.graph)
    drop_trailing_blanks(model.graph)
    drop_unread_states(model.graph)
    lift_constants(model.graph)


def read_proto(path: Path, *, whole: bool = False) -> onnx.ModelProto:
    """The file's contents, external data left on disk, and large weights inside too unless `whole`.

    Raises:
        ModelError: there is no such file, or it is not a model.
    """
    if not path.exists():
        raise ModelError(f"model {path} does not exist")
    if not path.is_file():
        raise ModelError(f"model {path} is not a file")
    if path.stat().st_size == 0:
        raise ModelError(f"model {path} is empty")
    try:
        proto = parsed(path, whole=whole)
    except DecodeError:
        plan = ": it is JSON; of a plan give the model that it was made from" if is_plan(path) else ""
        raise ModelError(f"model {path} is not an ONNX model, or it is cut off{plan}") from None
    except OSError as error:
        raise ModelError(f"model {path} cannot be read: {error.strerror}") from None
    if not proto.graph.node and not proto.graph.output:
        raise ModelError(f"model {path} is not an ONNX model: it has no graph")
    return proto


def _check(path: Path, proto: onnx.ModelProto) -> None:
    """Refuse what the ONNX checker refuses of the file, and the runtime would too."""
    try:
        onnx.checker.check_model(checkable(proto))
    except onnx.checker.ValidationError as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ModelError(f"model {path} is not valid: {reason}") from None


class DimBindings(msgspec.Struct, frozen=True):
    """What the user says of dimensions: `names` from --dim, `shapes` (per input) from --input-shape.

    `batch` takes the place of the first dimension of every input that has one, fixed or not. `fed` are the shapes in
    files of inputs, by file: they bind what nothing else does. `summed` dimensions are sums of others.
    """

    names: dict[str, int] = {}
    shapes: dict[str, tuple[int, ...]] = {}
    batch: int | None = None
    fed: dict[str, dict[str, tuple[int, ...]]] = {}
    summed: dict[str, Dim] = {}


def bind_dimensions(
    graph: ir.Graph, dims: DimBindings, nameless: Collection[str] = (), summed: Mapping[str, Dim] = MappingProxyType({})
) -> dict[str, int]:
    """Write numbers into the inputs' shapes, in place; returns the value of each named dimension.

    `nameless` are names that dimensions have in here only: users bind them by the shape of an input. `summed` are sums
    of others.

    Raises:
        ModelError: a dimension stays unbound, a name or an input does not exist, or two values contradict.
    """
    inputs = {value.name or "": value for value in fed_inputs(graph)}
    if dims.batch is not None:
        for value in inputs.values():
            if value.shape is not None and len(value.shape):
                value.shape = ir.Shape([dims.batch, *list(value.shape)[1:]])
    _check_bindings(inputs, dims)
    bound = with_sums(_named_values(inputs, dims, summed), summed)
    bound |= fed_sizes({name: _dims(value) for name, value in inputs.items()}, dims.fed, bound)
    bound = with_sums(bound, {name: total for name, total in summed.items() if name not in bound})
    first = next(iter(dims.fed.values()), {})
    shapes = {
        name: with_fed(_bound_shape(value, dims.shapes.get(name), bound), first.get(name))
        for name, value in inputs.items()
    }
    if any(shape is None or not all(isinstance(dim, int) for dim in shape) for shape in shapes.values()):
        raise ModelError(f"the model has unbound dimensions: add {_how_to_bind(shapes, nameless)}")
    for name, shape in shapes.items():
        inputs[name].shape = ir.Shape([int(str(dim)) for dim in shape or ()])
    return bound


Shapes = Mapping[str, Sequence[int | str | None] | None]


def _how_to_bind(shapes: Shapes, nameless: Collection[str]) -> str:
    """The options that bind what is left open: whole shapes where a dimension has no name, names for the rest."""
    by_shape = {name: shape for name, shape in shapes.items() if shape is None or set(shape).intersection(nameless)}
    told = dict.fromkeys(dim for shape in by_shape.values() for dim in shape or ())
    names = (dim for shape in shapes.values() for dim in shape or () if isinstance(dim, str) and dim not in told)
    options = [("--dim", f"{name}=N") for name in dict.fromkeys(names)]
    for name, shape in by_shape.items():
        dims = "N,..." if shape is None else ",".join(str(dim) if isinstance(dim, int) else "N" for dim in shape)
        options.append(("--input-shape", f"{name}:{dims}"))
    ranges = " ".join(f"--dim {shlex.quote(f'{dim}=LOW..HIGH')}" for dim in told if dim in nameless)
    one_size = " ".join(f"{option} {shlex.quote(text)}" for option, text in options)
    return f"{one_size}, or for a range of what has no name {ranges}" if ranges else one_size


def _dims(value: ir.Value) -> list[int | str] | None:
    """Declared dimensions: a number or a name each."""
    return None if value.shape is None else [dim if isinstance(dim, int) else dim.value or "" for dim in value.shape]


def _check_bindings(inputs: dict[str, ir.Value], dims: DimBindings) -> None:
    for value in inputs.values():
        if not isinstance(value.type, ir.TensorType):
            raise ModelError(f"input '{value.name}' is not a tensor: sequences, maps and optional inputs do not work")
    for name, number in dims.names.items():
        if number < 0:
            raise ModelError(f"--dim {name}={number}: a dimension must not be negative")
    for name, shape in dims.shapes.items():
        if name not in inputs:
            raise ModelError(f"--input-shape {name}: no such input; there are: {', '.join(inputs) or 'none'}")
        if any(number < 0 for number in shape):
            raise ModelError(f"--input-shape {name}:{_text(shape)}: a dimension must not be negative")
        declared = _dims(inputs[name])
        if declared is not None and len(declared) != len(shape):
            raise ModelError(f"--input-shape {name}:{_text(shape)}: the model declares {len(declared)} dimensions")


def _named_values(inputs: dict[str, ir.Value], dims: DimBindings, summed: Mapping[str, Dim]) -> dict[str, int]:
    """Value of each named dimension, from both options; one that only sums have is named too."""
    known = {dim for value in inputs.values() for dim in _dims(value) or () if isinstance(dim, str)}
    known.update(name for total in summed.values() for name in total.names)
    unknown = [name for name in dims.names if name not in known]
    if unknown:
        raise ModelError(f"--dim {unknown[0]}: no such dimension; there are: {', '.join(sorted(known)) or 'none'}")
    bound = dict(dims.names)
    for name, shape in dims.shapes.items():
        for dim, number in zip(_dims(inputs[name]) or (), shape, strict=False):
            if isinstance(dim, str) and bound.setdefault(dim, number) != number:
                raise ModelError(f"dimension '{dim}' cannot be both {bound[dim]} and {number}: see input '{name}'")
    return bound


def _bound_shape(
    value: ir.Value, given: tuple[int, ...] | None, bound: dict[str, int]
) -> list[int | str | None] | None:
    """Dimensions of an input with numbers where they are known; None when not even their count is."""
    declared = _dims(value)
    if given is not None:
        for dim, number in zip(declared or (), given, strict=False):
            if isinstance(dim, int) and dim != number:
                raise ModelError(f"--input-shape {value.name}:{_text(given)}: the model fixes a dimension at {dim}")
        return list(given)
    if declared is None:
        return None
    return [bound.get(dim, dim) if isinstance(dim, str) else dim for dim in declared]


def _text(shape: tuple[int, ...]) -> str:
    return ",".join(map(str, shape))


STATE_KEY = "remat.state"  # model metadata: JSON object, output -> the input it becomes
STATE_FILE_KEY = "remat.state_file"  # model metadata: name of an .npz file in the same folder


def state_file(source: SourceModel) -> Path | None:
    """Where the first state of a training step lies; None for other models.

    Raises:
        ModelError: it is gone.
    """
    return state_beside(source.ir, source.path)


def is_training_step(model: ir.Model) -> bool:
    """Whether it is a step of training, that says which outputs become which inputs or where these begin."""
    return not model.metadata_props.keys().isdisjoint({STATE_KEY, STATE_FILE_KEY})


def state_beside(model: ir.Model, source: Path) -> Path | None:
    """The same for a model that was read from `source`.

    Raises:
        ModelError: it is gone.
    """
    name = model.metadata_props.get(STATE_FILE_KEY)
    if name is None:
        return None
    path = source.parent / name
    if not path.is_file():
        raise ModelError(
            f"training step {source} begins with the parameters in {path}, which does not exist: "
            "put it back, or write the step anew with `remat train`"
        )
    return path
