"""The plan as a file: everything needed to rebuild the rewritten model, draw its memory, and know what was promised."""

import os
from collections.abc import Callable
from html import escape
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

import msgspec
from msgspec import UNSET, UnsetType

from remat_cli.base.errors import InvalidSchedule, ModelError
from remat_cli.base.files import atomic_path, atomic_write
from remat_cli.base.units import format_bytes
from remat_cli.core.paging.paged_plan import PagedPlan, read_paging
from remat_cli.core.paging.paged_sessions import own_sizes
from remat_cli.core.schedule.graph import Graph
from remat_cli.core.schedule.plan import Instance, Plan, Schedule
from remat_cli.core.schedule.problem import Problem, device_tensor_ids, make_device_problem, make_problem
from remat_cli.core.schedule.simulate import simulate
from remat_cli.core.schedule.splits import SplitMode, Splitting
from remat_cli.core.values.curve import CurvePoint
from remat_cli.core.values.elsewhere import VerifiedOn
from remat_cli.core.values.profile import Kind, Placement, Profile
from remat_cli.core.values.resident import ProcessMemory, RunsForecast
from remat_cli.core.values.runs_on import RunsOn, RuntimeRange
from remat_cli.core.values.session import AskedSession
from remat_cli.core.values.sizes import Dim, SizeFamily
from remat_cli.core.values.spill import Paging
from remat_cli.core.values.told_names import ToldNames
from remat_cli.core.values.verification import Verification

FORMAT: Final = "remat-plan"
VERSION: Final = 1
ROOM_BYTES: Final = 2**18
"""What a plan says more at most, once its model is written: paths, a snippet, what verification saw."""


class FileRef(msgspec.Struct, frozen=True):
    """A file as it was when the plan was made; `path` is a hint for people, the hash decides."""

    path: str
    sha256: str


class ExactSession(msgspec.Struct, frozen=True):
    """ONNX Runtime session options by their Python names; under these the predicted peak is exact, to the byte."""

    graph_optimization_level: str = "ORT_DISABLE_ALL"
    execution_order: str = "PRIORITY_BASED"
    enable_mem_reuse: bool = False
    enable_mem_pattern: bool = False
    intra_op_num_threads: int = 0


class PlanRequest(msgspec.Struct, frozen=True):
    """What the user asked for. `budget_bytes` is the total that the text came to, fixed part included.

    `budget_scope` says what it bounds (plans of older versions have `total` for `live`). `plain`: the steady form was
    not wanted. `session` is how sessions of the file are opened, for which it was made.
    `split`, `max_tiles`, `split_axis` and `allow_reassociation` say which splits were looked for; plans of versions
    that knew none have `off`; no tensor was to be larger than `max_tensor_bytes`. `process_budget_bytes` bounds the
    process, mapped pages of files with it where `count_mapped` (None: the budget bounds what is live). `external_data`
    is whether weights were to go into a file of their own (None: where they are large), and `packed_weights` whether
    copies as kernels pack them were to go there too. `max_overhead_percent` is the most extra time that was to be
    spent (None: any). `target` names the processors for which memory is promised (empty: all that it runs on), and
    `runtimes` the versions of the runtime (None: none were named).
    `custom_ops` are the libraries whose operators the model has. `summed` are dimensions that are sums of others.
    """

    budget: str
    budget_bytes: int
    budget_scope: Literal["live", "activations", "process", "total"] = "live"
    order: Literal["free", "keep"] = "free"
    portable: bool = False
    target: str = ""
    runtimes: RuntimeRange | None = None
    plain: bool = False
    session: AskedSession = AskedSession()
    dims: dict[str, int] = {}
    summed: dict[str, Dim] = {}
    input_shapes: dict[str, tuple[int, ...]] = {}
    family: SizeFamily | None = None
    split: SplitMode = "off"
    max_tiles: int = 32
    split_axis: str = "auto"
    allow_reassociation: bool = False
    max_tensor_bytes: int | None = None
    custom_ops: tuple[str, ...] = ()
    process_budget_bytes: int | None = None
    external_data: bool | None = None
    packed_weights: bool = True
    count_mapped: bool = False
    max_overhead_percent: float | None = None


class Solved(msgspec.Struct, frozen=True):
    """Which solver found the schedule and what it proved, in its search space. Times are in nanoseconds.

    `floor_bytes` is the floor of whole ops, `floor_with_splitting_bytes` that of the split model (None: not known).
    """

    solver: str
    options: dict[str, Any]
    seed: int
    space: str
    status: str
    time_ns: int
    baseline_time_ns: int
    bound_ns: int | None
    overhead_percent: float | None
    lower_bound_percent: float | None
    floor_bytes: int
    seconds: float
    seconds_to_best: float | None = None
    floor_with_splitting_bytes: int | None = None


class FamilyPromise(msgspec.Struct, frozen=True):
    """What a plan holds for every size of a family.

    `dims` are the dimensions, as expressions, of tensors of the plan's graph that depend on the sizes, by name.
    `peak_bytes` is the most for any size, which is held at `peak_sizes`.
    """

    dims: dict[str, tuple[Dim, ...]]
    peak_bytes: int
    peak_sizes: dict[str, int]


class Promise(msgspec.Struct, frozen=True):
    """What the written model does, gates included.

    `order` are the op names in the order in which the runtime must run them, `gates` those among them that are gates.
    `peak_bytes` is the predicted total (fixed, live tensors and workspace), `live_peak_bytes` the same without
    workspace and fixed part, `fixed_bytes` that part with the small constants of gates, `memory_bytes`
    the total during each op of `order`: exact under `exact_session`. A session with default options stays within the
    budget in its first run when `holds_by_default`. The baseline is that of the whole optimised model, one entry of
    `baseline_memory_bytes` per op of it. `process` is what a process holds that loads and runs the model with default
    options, `runs` the part of it that is for runs. `family` is about all sizes that a plan was made for.
    """

    order: tuple[str, ...]
    gates: tuple[str, ...]
    peak_bytes: int
    live_peak_bytes: int
    fixed_bytes: int
    baseline_peak_bytes: int
    memory_bytes: tuple[int, ...]
    baseline_memory_bytes: tuple[int, ...]
    exact_session: ExactSession
    holds_by_default: bool
    process: ProcessMemory | None = None
    runs: RunsForecast | None = None
    family: FamilyPromise | None = None


PlanParts: TypeAlias = Literal["one_model", "sessions", "paged"]
"""What a plan file has: the part that most plans have, a placement, and paging."""


class OwnPart(msgspec.Struct, frozen=True):
    """What only plans of a kind have that the parts of a file do not tell: its name, and what its wing reads again."""

    kind: Kind
    values: dict[str, Any] = {}


class PlanFile(msgspec.Struct, frozen=True, kw_only=True):
    """A plan with its provenance.

    `graph` is the optimised model that `schedule` indexes; its hash is `optimized_sha256`. `instances` are the lives
    of tensors in that schedule, before gates: `tensor` is an id of `graph`, `birth` and `death` are steps. `snippet`
    is Python that runs the result. With `splitting`, `graph`, `schedule`, `profile` and `optimized_sha256` are those of
    the split model, and the whole one is told of there. With `placement` the plan spans devices: `device` names them,
    `profile` is the first one's, `output` is the optimised model, which `schedule` indexes (its ops after those that
    stand for model inputs, where there are several memories), figures of bytes are the first memory's. With `paging`
    there is a placement on one device, and `solved.time_ns` is the makespan with stalls. `runs_on` is where the model
    runs that was written; plans of versions that did not know it have None. `verified_on` is what other places showed.
    `names` are those by which people are told of ops and tensors of the model before splitting. `curve` are the plans
    of the model that were known when this one was made. `own` is what a kind of plan has that the other parts do not
    tell of.
    """

    format: Literal["remat-plan"] = FORMAT
    version: int = VERSION
    remat_version: str
    source: FileRef
    optimized_sha256: str
    output: FileRef
    request: PlanRequest
    device: str
    graph: Graph
    profile: Profile
    schedule: Schedule
    instances: tuple[Instance, ...]
    solved: Solved
    promise: Promise
    snippet: str
    warnings: tuple[str, ...] = ()
    verified_on: tuple[VerifiedOn, ...] = ()
    verification: Verification | None = None
    runs_on: RunsOn | None = None
    splitting: Splitting | None = None
    placement: Placement | None = None
    paging: Paging | None = None
    names: ToldNames = ToldNames()
    curve: tuple[CurvePoint, ...] = ()
    own: OwnPart | UnsetType = UNSET

    def __str__(self) -> str:
        """What it does, in a line."""
        was, now = format_bytes(self.promise.baseline_peak_bytes), format_bytes(self.promise.peak_bytes)
        spent = self.solved.overhead_percent
        cost = "" if spent is None else f", {spent:+.1f} % time by prediction"
        model = f"{self.source.path} -> {self.output.path}"
        return f"plan {model} for {self.request.budget} on {self.device}: {was} -> {now} live{cost}"

    def _repr_html_(self) -> str:
        """The same for a notebook."""
        return f"<pre>{escape(str(self))}</pre>"

    @property
    def kind(self) -> Kind:
        """The kind of plan: by its name, or as the parts say that the file has."""
        return self.own.kind if self.own else self.parts

    @property
    def parts(self) -> PlanParts:
        """What the file has: a model, where its ops run too, or how that pages as well."""
        if self.paging:
            return "paged"
        return "sessions" if self.placement else "one_model"

    @property
    def profiles(self) -> tuple[Profile, ...]:
        """What the model costs on each device."""
        return self.placement.profiles if self.placement else (self.profile,)

    @property
    def session_devices(self) -> tuple[str, ...]:
        """The names by which sessions are opened on the devices."""
        return self.placement.session_devices if self.placement else (self.device,)

    def problem(self) -> Problem:
        """The problem that was solved.

        Raises:
            ModelError: there is not one profile for each device; the file was changed.
        """
        if place := self.placement:
            if len(place.devices) != len(place.profiles):
                raise ModelError("the plan has not one profile for each device: compile again")
            rest = (place.budgets, place.overlap, place.session_bytes)
            return make_device_problem(self.graph, place.profiles, place.links, *rest)
        return make_problem(self.graph, self.profile, self.request.budget_bytes)

    def plan(self) -> Plan:
        """The judged schedule, worked out again from graph and profile.

        Raises:
            ModelError: the stored lives of tensors are not what the judge says; the file was changed.
        """
        try:
            problem = self.problem()
            plan = simulate(problem, self.schedule)
        except InvalidSchedule as error:
            raise ModelError(f"the plan's schedule is not legal: {error}; compile again") from None
        if graph_instances(self.graph, problem, plan) != self.instances:
            raise ModelError("the plan's tensor lives do not follow from its schedule: compile again")
        return plan

    def placed(self) -> Placement:
        """The devices of a plan that says where ops run.

        Raises:
            ModelError: it is one model; the file was changed.
        """
        if not self.placement:
            raise ModelError("the plan does not say where ops run")
        return self.placement

    def paged(self, plan: Plan) -> PagedPlan:
        """How the plan is paged, judged again.

        Raises:
            ModelError: its figures do not follow from its rules, or it is not paged; the file was changed.
        """
        if self.paging is None:
            raise ModelError("the plan is not paged")
        problem = self.problem()
        return read_paging(problem, plan, self.paging, own_sizes(self.graph, problem))


def graph_instances(graph: Graph, problem: Problem, plan: Plan) -> tuple[Instance, ...]:
    """The instances of a plan with tensor ids of the graph in place of the problem's."""
    ids = device_tensor_ids(graph, problem)
    return tuple(msgspec.structs.replace(instance, tensor=ids[instance.tensor]) for instance in plan.instances)


def write_plan(path: Path, plan: PlanFile) -> None:
    """Write a plan atomically, as JSON of one top-level key per line.

    Raises:
        ConfigError: the path cannot be written.
        RematError: the disk is full or failed.
    """
    atomic_write(path, _serialised(plan))


def write_with_plan(path: Path, draft: PlanFile, write_model: Callable[[], PlanFile]) -> PlanFile:
    """Write a model and then the plan that speaks of it, the model only where there is room for the plan too.

    `draft` is the plan as far as it is known before the model is there; `write_model` writes that, and returns the
    plan. Neither file is changed where the plan cannot be written.

    Raises:
        ConfigError: the path cannot be written.
        RematError: the disk is full or failed.
    """
    with atomic_path(path) as temporary:
        with temporary.open("wb") as file:
            file.write(bytes(written_bytes(draft)))
            file.flush()
            os.fsync(file.fileno())
        plan = write_model()
        with temporary.open("r+b") as file:
            file.write(_serialised(plan))
            file.truncate()
    return plan


def written_bytes(draft: PlanFile) -> int:
    """How large the file of a plan is at most, of which all is known but the files that it speaks of."""
    return len(_serialised(draft)) + ROOM_BYTES


def _serialised(plan: PlanFile) -> bytes:
    items = msgspec.to_builtins(plan).items()
    lines = ",\n".join(f"{_json(key)}: {_json(value)}" for key, value in items)
    return f"{{\n{lines}\n}}\n".encode()


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()


def is_plan(path: Path) -> bool:
    """Whether a file looks like JSON rather than an ONNX model; reads its first bytes only."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(64).lstrip()[:1] == b"{"


def format_of(path: Path) -> str:
    """The format that a JSON file says it has; empty where it says none, or cannot be read."""

    class Header(msgspec.Struct):
        format: str = ""

    try:
        return msgspec.json.decode(path.read_bytes(), type=Header).format
    except (OSError, msgspec.MsgspecError, RecursionError):
        return ""


def check_belongs(plan: PlanFile, source_sha256: str) -> None:
    """Check that a plan was made for the model with this hash.

    Raises:
        ModelError: it was made for another one.
    """
    if plan.source.sha256 != source_sha256:
        raise ModelError(
            f"the plan belongs to another model: made for {plan.source.path} with hash {plan.source.sha256[:12]}, "
            f"this one has {source_sha256[:12]}; compile it again"
        )
