"""The integer program of `xengine`: stage matrices with a device index, copies written out, so that all is linear.

Names of the paper: run = R, hold = S, free = F, level = U. A copy replaces Z and its products with R: "in this stage op
k on device d reads x from device s". Reading locally has no variable: an op that runs and copies nothing reads locally.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from remat_cli.solvers.milp.program import Milp, Terms, Unfinished
from remat_cli.solvers.published._xengine.layout import Layout

MOST_VARIABLES = 100_000  # CP-SAT takes about 2 GB for as many


@dataclass
class XEngineModel:
    """A program with what its variables mean.

    `runs[t, v, d]`, `holds[t, x, m]` (at the start of stage t), `copies[t, x, v, s, d]`, `frees[t, x, m][v]`; `levels`
    are the variables that count bytes, `products` those of objective (1) as printed, with the keys of copies. What has
    no variable is zero.
    """

    layout: Layout
    milp: Milp = field(default_factory=Milp)
    runs: dict[tuple[int, int, int], int] = field(default_factory=dict)
    holds: dict[tuple[int, int, int], int] = field(default_factory=dict)
    copies: dict[tuple[int, int, int, int, int], int] = field(default_factory=dict)
    frees: dict[tuple[int, int, int], dict[int, int]] = field(default_factory=dict)
    products: dict[tuple[int, int, int, int, int], int] = field(default_factory=dict)
    levels: set[int] = field(default_factory=set)
    weights: dict[int, int] = field(default_factory=dict)

    def runs_in(self, stage: int, op: int, memory: int) -> Terms:
        """How often an op is computed into a memory in a stage: at most once."""
        keys = [(stage, op, device) for device in self.layout.homes[memory]]
        return [(1, self.runs[key]) for key in keys if key in self.runs]

    def available(self, stage: int, tensor: int, memory: int) -> Terms:
        """1 where a tensor is in a memory some time in a stage: held from before or computed."""
        held = self.holds.get((stage, tensor, memory))
        made = self.runs_in(stage, self.layout.problem.tensors[tensor].producer, memory)
        return made if held is None else [(1, held), *made]

    def copied(self, stage: int, tensor: int, op: int, sources: tuple[int, ...], targets: tuple[int, ...]) -> Terms:
        """Copies of a tensor for an op from any of these devices to any of those."""
        keys = [(stage, tensor, op, s, d) for s in sources for d in targets]
        return [(1, self.copies[key]) for key in keys if key in self.copies]

    def read_locally(self, stage: int, tensor: int, op: int, memory: int) -> Terms:
        """1 where an op in a memory reads a tensor that is there."""
        everywhere = tuple(range(len(self.layout.problem.devices)))
        copies = self.copied(stage, tensor, op, everywhere, self.layout.homes[memory])
        return [*self.runs_in(stage, op, memory), *_negative(copies)]

    def reads(self, stage: int, tensor: int, op: int, memory: int) -> list[Terms]:
        """Who may read a tensor from a memory for an op: those there, and those of each other memory; each 0 or 1."""
        homes = self.layout.homes
        others = [self.copied(stage, tensor, op, homes[memory], home) for m, home in enumerate(homes) if m != memory]
        return [group for group in (self.read_locally(stage, tensor, op, memory), *others) if group]


def _negative(terms: Terms) -> Terms:
    return [(-factor, variable) for factor, variable in terms]


def build_model(layout: Layout, is_over: Callable[[], bool]) -> XEngineModel:
    """The whole program.

    Raises:
        Unfinished: time is up, or there are too many variables.
    """
    model = XEngineModel(layout)
    if layout.binaries() > MOST_VARIABLES:
        raise Unfinished(f"more than {MOST_VARIABLES} variables")
    for stage in range(len(layout.problem.ops) + 1):
        _add_variables(model, stage)
        if is_over() or len(model.milp.upper) > MOST_VARIABLES:
            raise Unfinished("time is up" if is_over() else f"more than {MOST_VARIABLES} variables")
    _add_weights(model)
    for stage in range(len(layout.problem.ops)):
        _add_stage(model, stage)
        if is_over():
            raise Unfinished("time is up")
    _add_end(model)
    _add_energy(model)
    if layout.rules.objective == "paper":
        _add_literal_copies(model)
    return model


def _add_variables(model: XEngineModel, stage: int) -> None:
    layout, milp = model.layout, model.milp
    memories, devices = range(len(layout.homes)), range(len(layout.problem.devices))
    is_literal = layout.rules.objective == "paper"
    for tensor, spec in enumerate(layout.problem.tensors):
        if spec.producer < stage <= layout.last_hold[tensor]:
            model.holds |= {(stage, tensor, memory): milp.add() for memory in memories}
    for op in layout.running(stage) if stage < len(layout.problem.ops) else []:
        spec_op = layout.problem.ops[op]
        for device in (d for d in devices if spec_op.time_ns[d] is not None):
            model.runs[stage, op, device] = milp.add(cost=layout.run_cost(op, device))
            for tensor in dict.fromkeys(spec_op.inputs):
                for source in layout.sources[device][tensor]:
                    cost = 0 if is_literal else layout.copy_cost(tensor, source, device)
                    model.copies[stage, tensor, op, source, device] = milp.add(cost=cost)


def _add_stage(model: XEngineModel, stage: int) -> None:
    for op in model.layout.running(stage):
        _add_run(model, stage, op)
    _add_holds(model, stage)
    memories = [
        m for m in range(len(model.layout.homes)) if (model.layout.rules.room == "pooled" or model.layout.is_tight(m))
    ]
    for memory in memories:
        _add_frees(model, stage, memory)
    levels = {memory: list(_levels(model, stage, memory)) for memory in memories}
    if model.layout.rules.room == "pooled":
        pool = sum(model.layout.capacity(memory) for memory in range(len(model.layout.homes)))
        for together in zip(*levels.values(), strict=True):
            model.milp.at_most([term for level in together for term in level], pool)
        return
    for memory, sums in levels.items():
        for level in sums:
            model.milp.at_most(level, model.layout.capacity(memory))


def _add_run(model: XEngineModel, stage: int, op: int) -> None:
    """Ops run once for the first time, then at most once per memory; what they read is there or copied."""
    layout, milp = model.layout, model.milp
    if op == stage:
        everywhere = [term for memory in range(len(layout.homes)) for term in model.runs_in(stage, op, memory)]
        milp.at_least(everywhere, 1)
        milp.at_most(everywhere, 1)
    for memory in range(len(layout.homes)):
        runs = model.runs_in(stage, op, memory)
        if op < stage and len(runs) > 1:
            milp.at_most(runs, 1)
        for tensor in dict.fromkeys(layout.problem.ops[op].inputs):
            available = model.available(stage, tensor, memory)
            for group in model.reads(stage, tensor, op, memory):
                milp.at_most([*group, *_negative(available)], 0)
    for device in range(len(layout.problem.devices)):
        for tensor in dict.fromkeys(layout.problem.ops[op].inputs):
            copies = model.copied(stage, tensor, op, tuple(range(len(layout.problem.devices))), (device,))
            if copies:
                milp.at_most([*copies, (-1, model.runs[stage, op, device])], 0)


def _add_holds(model: XEngineModel, stage: int) -> None:
    """What is held was held or computed before; what is computed anew was not worth holding."""
    for tensor, spec in enumerate(model.layout.problem.tensors):
        for memory in range(len(model.layout.homes)):
            available = model.available(stage, tensor, memory)
            later = model.holds.get((stage + 1, tensor, memory))
            if later is not None and spec.producer <= stage:
                model.milp.at_most([(1, later), *_negative(available)], 0)
            if (stage, tensor, memory) in model.holds and len(available) > 1:
                model.milp.at_most(available, 1)


def _add_frees(model: XEngineModel, stage: int, memory: int) -> None:
    """A tensor may be freed after a read, if it is neither held on nor read again in the stage.

    After an op with several outputs also those that are not needed; nothing matters after the last op of a stage.
    """
    layout, milp = model.layout, model.milp
    running = layout.running(stage)
    for op in running[:-1]:
        spec = layout.problem.ops[op]
        unread = spec.outputs if len(spec.outputs) > 1 else ()
        for tensor in dict.fromkeys((*spec.inputs, *unread)):
            groups = model.reads(stage, tensor, op, memory) if tensor in spec.inputs else []
            done = [term for group in groups for term in group] or model.runs_in(stage, op, memory)
            if layout.sizes[tensor] and done and model.available(stage, tensor, memory):
                free = milp.add()
                model.frees.setdefault((stage, tensor, memory), {})[op] = free
                milp.at_most([(1, free), *_negative(done)], 0)
    for tensor in range(len(layout.problem.tensors)):
        if frees := model.frees.get((stage, tensor, memory)):
            later = model.holds.get((stage + 1, tensor, memory))
            readers = [r for r in model.layout.readers[tensor] if r <= stage <= model.layout.last_run[r]]
            for op, free in frees.items():
                if later is not None:
                    model.milp.at_most([(1, free), (1, later)], 1)
                for reader in (r for r in readers if r > op):
                    for group in model.reads(stage, tensor, reader, memory):
                        model.milp.at_most([(1, free), *group], 1)
            all_frees = [(1, free) for free in frees.values()]
            model.milp.at_most([*all_frees, *_negative(model.available(stage, tensor, memory))], 0)


def _levels(model: XEngineModel, stage: int, memory: int) -> Iterator[Terms]:
    """What a memory holds while each op of a stage may run, in byte units: level, workspace, staged copies, weights."""
    layout, milp, sizes = model.layout, model.milp, model.layout.sizes
    weights = [(1, model.weights[memory])] if memory in model.weights else []
    together = range(len(layout.homes)) if layout.rules.room == "pooled" else (memory,)
    most = max(0, sum(layout.capacity(m) for m in together))
    everywhere = tuple(range(len(layout.problem.devices)))
    # What the memory holds when the stage begins, and what each op adds and frees.
    keys = [(stage, x, memory) for x, size in enumerate(sizes) if size]
    changes = [(sizes[key[1]], model.holds[key]) for key in keys if key in model.holds]
    for op in layout.running(stage):
        spec = layout.problem.ops[op]
        made = sum(sizes[tensor] for tensor in spec.outputs)
        changes += [(made, run) for _, run in model.runs_in(stage, op, memory) if made]
        level = milp.add(upper=most, integral=False)
        model.levels.add(level)
        milp.at_most([*changes, (-1, level)], 0)
        # What an op takes during its own step only: workspace and copies of what its memory lacks.
        beside: Terms = []
        for device in layout.homes[memory]:
            workspace = layout.units(spec.workspace_bytes[device])
            if workspace and (stage, op, device) in model.runs:
                beside.append((workspace, model.runs[stage, op, device]))
        for tensor in dict.fromkeys(spec.inputs) if layout.rules.room == "staging" else ():
            copies = model.copied(stage, tensor, op, everywhere, layout.homes[memory])
            beside += [(sizes[tensor], copy) for _, copy in copies if sizes[tensor]]
        yield [(1, level), *beside, *weights]
        frees = {x: model.frees.get((stage, x, memory), {}) for x in (*spec.inputs, *spec.outputs)}
        changes = [(1, level), *((-sizes[x], found[op]) for x, found in frees.items() if op in found)]


def _add_weights(model: XEngineModel) -> None:
    """A memory holds, all through the run, the weights of what is computed there; only where there are several."""
    layout, milp = model.layout, model.milp
    sizes = [layout.units(size) for size in layout.problem.weight_bytes]
    if len(layout.homes) == 1 or not any(sizes):
        return
    for memory in range(len(layout.homes)):
        total = milp.add(upper=sum(sizes), integral=False)
        model.weights[memory] = total
        model.levels.add(total)
        present = [milp.add(integral=False) for _ in sizes]
        milp.at_most([*((size, weight) for size, weight in zip(sizes, present, strict=True)), (-1, total)], 0)
        for op, spec in enumerate(layout.problem.ops):
            for stage in range(op, layout.last_run[op] + 1) if spec.weights else ():
                runs = model.runs_in(stage, op, memory)
                for weight in spec.weights if runs else ():
                    milp.at_most([*runs, (-1, present[weight])], 0)


def _add_end(model: XEngineModel) -> None:
    """Kept tensors are somewhere at the end; settled ones stay where they are made last, and are not copied then."""
    layout, end = model.layout, len(model.layout.problem.ops)
    everywhere = tuple(range(len(layout.problem.devices)))
    for tensor, spec in enumerate(layout.problem.tensors):
        if spec.kept:
            model.milp.at_least([(1, model.holds[end, tensor, m]) for m in range(len(layout.homes))], 1)
        later: Terms = []
        for stage in range(end - 1, spec.producer - 1, -1) if spec.kept and layout.rules.settled else ():
            for reader in layout.readers[tensor]:
                for _, copy in model.copied(stage, tensor, reader, everywhere, everywhere):
                    model.milp.at_most([(1, copy), *_negative(later)], 0)
            for device in reversed(everywhere):
                run = model.runs.get((stage, spec.producer, device))
                if run is not None:
                    stays = model.holds[end, tensor, layout.memory(device)]
                    model.milp.at_most([(1, run), *_negative(later), (-1, stays)], 0)
                    later.append((1, run))


def _add_energy(model: XEngineModel) -> None:
    """(18) per device, for the run and per stage; (19) per stage over all devices."""
    layout, rules = model.layout, model.layout.rules
    if not rules.is_limited:
        return
    spent: dict[tuple[int, int], Terms] = {}
    for (stage, op, device), run in model.runs.items():
        spent.setdefault((stage, device), []).append((layout.run_energy(op, device), run))
    for (stage, tensor, _, source, target), copy in model.copies.items():
        spent.setdefault((stage, source), []).append((layout.copy_energy(tensor, source, target), copy))
    _limit(model, [(device, terms) for (_, device), terms in spent.items()], rules.energy_limit_nj)
    _limit(model, list(spent.items()), rules.stage_energy_limit_nj)
    _limit(model, [(stage, terms) for (stage, _), terms in spent.items()], rules.total_stage_energy_limit_nj)


def _limit(model: XEngineModel, parts: Sequence[tuple[object, Terms]], limit: int | None) -> None:
    """At most so much for all parts with the same key together."""
    sums: dict[object, Terms] = {}
    for key, terms in parts if limit is not None else ():
        sums.setdefault(key, []).extend((energy, variable) for energy, variable in terms if energy)
    for terms in sums.values():
        if terms and limit is not None:
            model.milp.at_most(terms, limit)


def _add_literal_copies(model: XEngineModel) -> None:
    """Objective (1) as printed: a read costs a copy from every other memory that has the tensor in the stage."""
    layout, milp = model.layout, model.milp
    for (stage, op, device), run in model.runs.items():
        for tensor in dict.fromkeys(layout.problem.ops[op].inputs):
            for source in layout.sources[device][tensor]:
                cost = layout.copy_cost(tensor, source, device)
                available = model.available(stage, tensor, layout.memory(source))
                if cost and available:
                    product = model.products[stage, tensor, op, source, device] = milp.add(cost=cost)
                    milp.at_most([(1, run), *available, (-1, product)], 1)
