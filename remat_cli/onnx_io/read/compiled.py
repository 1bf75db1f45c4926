"""Reads what a compiled file says of itself: its promises, its interface, the order of its ops, and where it runs."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec
import onnx_ir as ir

from remat_cli.base.errors import ModelError
from remat_cli.core.schedule.program import InputSpec
from remat_cli.core.values.process_promise import ProcessPromise
from remat_cli.core.values.runs_on import DEFAULT_OPTIONS, RUNS_ON_KEY, RunsOn
from remat_cli.core.values.sizes import SizeLimit, family_told
from remat_cli.onnx_io.read.default_order import captured_values
from remat_cli.onnx_io.read.layout import uses_blocks
from remat_cli.onnx_io.read.load import DimBindings, SourceModel, load, read_proto
from remat_cli.onnx_io.read.mapped import parsed
from remat_cli.onnx_io.read.untrusted import all_tensors, external_files
from remat_cli.onnx_io.write.op_versions import loads_from
from remat_cli.onnx_io.write.packed import forget_packed
from remat_cli.onnx_io.write.processor_guard import guard_in
from remat_cli.ort_rules.versions import SAME_BITS_FROM, TRIED_UP_TO, newest

VERSION_KEY, PEAK_KEY, BUDGET_KEY = "remat.version", "remat.predicted_peak_bytes", "remat.budget_bytes"
SOURCE_KEY, DEVICES_KEY, CLONE_KEY = "remat.source_sha256", "remat.devices", "remat.clone_of"
SOURCE_NAME_KEY = "remat.source"
"""The name of the file that it was made of."""
DIMS_KEY = "remat.dims"
"""There where it was made for many sizes: those, as a user writes them."""
PORTABLE_KEY = "remat.portable"
LEFT = "left"  # what it says of a file that sessions bring into a layout; its target behind a colon
"""There where sessions optimise the file again, so that it promises something under the exact options only."""
UNKNOWN_PROCESSOR = "the kind of processor that it was compiled on"
UNKNOWN_BLOCK = 0


@dataclass(frozen=True)
class CompiledFile:
    """A compiled file as it is read.

    `order` are its ops that depend on an input, in the order in which they were planned; `copies` are those of them
    that repeat another one, which no optimiser may join with it. Of a `is_portable` file sessions may make another
    model, so that it promises something under the exact options only; but bits and its budget where it `is_left` to
    them to bring it into a layout, the latter on processors of its `target`, if it has one. `process` is what it says
    of a process, and `processor` the kind that it was made on. Bytes are totals; None where it says nothing.
    """

    source: SourceModel
    order: tuple[str, ...]
    copies: frozenset[str]
    predicted_peak_bytes: int | None
    budget_bytes: int | None
    source_sha256: str
    is_portable: bool
    is_left: bool
    target: str
    process: ProcessPromise
    processor: str | None = None


def read_compiled(path: Path, dims: DimBindings, *, has_custom_ops: bool = False) -> CompiledFile:
    """Read a compiled file; sizes that it leaves open are the user's to say.

    Raises:
        ModelError: it is none, it cannot be used, or it was not made for these sizes.
    """
    told = {entry.key: entry.value for entry in read_proto(path).metadata_props}
    if VERSION_KEY not in told or DEVICES_KEY in told:
        what = "holds a plan for several devices: verify its PLAN.json" if DEVICES_KEY in told else _NOT_COMPILED
        raise ModelError(f"{path} {what}")
    source = load(path, dims, has_custom_ops=has_custom_ops)
    _check_sizes(path, told.get(DIMS_KEY, ""), source.bound_dims)
    # Nodes that depend on an input, however far; others are computed while a session is made.
    known = {value for value in source.ir.graph.inputs if not value.is_initializer()}
    nodes = []
    for node in source.ir.graph:
        if known.intersection(value for value in (*node.inputs, *captured_values(node)) if value is not None):
            known.update(node.outputs)
            nodes.append(node)
    return CompiledFile(
        source=source,
        order=tuple(node.name or "" for node in nodes),
        copies=frozenset(node.name or "" for node in nodes if CLONE_KEY in node.metadata_props),
        predicted_peak_bytes=_number(told, PEAK_KEY),
        budget_bytes=_number(told, BUDGET_KEY),
        source_sha256=told.get(SOURCE_KEY, ""),
        is_portable=PORTABLE_KEY in told,
        is_left=told.get(PORTABLE_KEY, "").partition(":")[0] == LEFT,
        target=told.get(PORTABLE_KEY, "").partition(":")[2],
        process=ProcessPromise.from_metadata(told),
        processor=told.get(f"{RUNS_ON_KEY}.processor"),
    )


_NOT_COMPILED = (
    "is no file that `remat compile` wrote, or another tool took its remat metadata out: compile the model again"
)


def _check_sizes(path: Path, told: str, sizes: Mapping[str, int]) -> None:
    """Check that a file was made for some sizes; of one that does not say for which, any are let in."""
    if not told:
        return
    family = family_told(told)
    if family is None:
        raise ModelError(f"{path} was made for sizes '{told}', which cannot be read: compile the model again")
    left = family.left_by(sizes)
    if left is not None:
        names = left.names if isinstance(left, SizeLimit) else (left.name,)
        given = " ".join(f"--dim {name}={sizes[name]}" for name in names if name in sizes)
        raise ModelError(f"{given}: {path} was made for {left} only: give sizes within it, or compile it for more")


def compiled_before(source: SourceModel) -> str | None:
    """What to tell of a file that remat wrote and that is compiled again; None: it is no such file."""
    told = source.ir.metadata_props
    if VERSION_KEY not in told or BUDGET_KEY not in told:  # a training step says only by what it was made
        return None
    name = told.get(SOURCE_NAME_KEY) or f"the model with SHA-256 {told.get(SOURCE_KEY, '')[:12]}"
    return f"{source.path} was compiled before from {name}: compile that, which gives the better plan"


def sizes_left_open(path: Path) -> frozenset[str]:
    """Names of the sizes that a file's inputs leave open.

    Raises:
        ModelError: it cannot be read.
    """
    shapes = (port.type.tensor_type.shape for port in read_proto(path).graph.input)
    return frozenset(dim.dim_param for shape in shapes for dim in shape.dim if dim.dim_param)


def check_data_files(path: Path) -> None:
    """Check that the data of a file's weights is where it says.

    Raises:
        ModelError: it is not, or the file cannot be read.
    """
    external_files(path, read_proto(path))


def check_same_interface(compiled: Path, ours: tuple[InputSpec, ...], original: Path) -> None:
    """Check that two models take the same inputs: names, and sizes where the original has any.

    Raises:
        ModelError: they do not.
    """
    graph = read_proto(original).graph
    weights = {tensor.name for tensor in graph.initializer}
    theirs = {port.name: port.type.tensor_type.shape.dim for port in graph.input if port.name not in weights}
    shapes = {spec.name: spec.shape for spec in ours}
    if odd := sorted(theirs.keys() ^ shapes.keys()):
        who = original if odd[0] in theirs else compiled
        raise ModelError(f"{compiled} was not made from {original}: only {who} has an input '{odd[0]}'")
    for name, dims in theirs.items():
        declared = [dim.dim_value if dim.HasField("dim_value") and dim.dim_value > 0 else None for dim in dims]
        here = list(shapes[name])
        may_be = len(declared) == len(here) and all(a in (None, b) for a, b in zip(declared, here, strict=True))
        if declared and not may_be:
            there = [dim or "?" for dim in declared]
            raise ModelError(f"{compiled} was not made from {original}: '{name}' is {there} there and {here} here")


def runs_on_at(path: Path) -> RunsOn | None:
    """Where the compiled file at a path runs; None for a file that remat did not write."""
    proto = parsed(path)
    packed = [forget_packed(tensor) for tensor in all_tensors(proto.graph)]
    return compiled_runs_on(ir.from_proto(proto), is_packed=any(packed))


def compiled_runs_on(model: ir.Model, *, is_packed: bool = False) -> RunsOn | None:
    """Where a compiled model runs, whose file holds packed copies or not; None for one that remat did not write.

    Blocks and the guard are looked for in the model itself: what other tools do to a file does not change what it says.
    """
    if VERSION_KEY not in model.metadata_props:
        return None
    said = RunsOn.from_metadata(model.metadata_props)
    if said is None:  # the file was made before files said it: what can be told of it
        loads = loads_from(model, TRIED_UP_TO, is_packed=is_packed)
        said = RunsOn(
            processor=UNKNOWN_PROCESSOR,
            layout_block=None,
            least_runtime=newest((loads, SAME_BITS_FROM)),
            loads_from=loads,
            tried_up_to=TRIED_UP_TO,
            options=DEFAULT_OPTIONS,
        )
    guard = guard_in(model)
    block = said.layout_block if guard is None or not guard.block else guard.block
    return msgspec.structs.replace(
        said,
        layout_block=(block or UNKNOWN_BLOCK) if uses_blocks(model) else None,
        is_guarded=guard is not None,
    )


def _number(told: Mapping[str, str], key: str) -> int | None:
    text = told.get(key, "")
    return int(text) if text.isdecimal() else None
