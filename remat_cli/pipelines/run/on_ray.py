"""Stages of a pipeline on a Ray cluster: an actor per device, orders drive it, tensors pass through the object store.

Each actor runs what it is given in the order in which it was given, and waits for what it needs; no clock is read to
decide anything. What passes between stages goes from actor to actor, not through the driver.
"""

from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from remat_cli.base.errors import RuntimeFailure
from remat_cli.pipelines.plan.orders import Turn, flushed_turns, late_turns
from remat_cli.pipelines.plan.schedule_file import PipelineFile
from remat_cli.pipelines.run.local import BlockRun, PipelineRunRequest
from remat_cli.pipelines.run.ray_cluster import ClusterOptions, cluster
from remat_cli.pipelines.run.stage_actor import DeviceActor
from remat_cli.pipelines.run.stage_runner import Arrays

WINDOW_BLOCKS = 2
"""Blocks that are under way at most, so that inputs of later ones do not fill the object store."""
PLACE_SECONDS = 60.0


class LostStage(RuntimeFailure):
    """An actor ended in mid-run; `states` are those after `finished` updates, one per stage, empty: the first ones."""

    def __init__(self, line: str, finished: int, states: tuple[Arrays, ...]) -> None:
        """Say in one line what was lost, and keep what is left."""
        super().__init__(line)
        self.finished = finished
        self.states = states


def run_on_cluster(
    plan: PipelineFile, folder: Path, request: PipelineRunRequest, options: ClusterOptions
) -> Generator[BlockRun, None, None]:
    """Run on a cluster; one `BlockRun` per update, its states fetched, so that a loss costs one block at most.

    Raises:
        ConfigError: late updates need more micro-batches.
        RuntimeFailure: the cluster is not there, or has no place for the actors.
        LostStage: an actor ended.
    """
    make = late_turns if request.is_late else flushed_turns
    turns = make(plan, request.batches, request.steps)
    with cluster(options, len(plan.devices)) as ray:
        driver = _Driver(ray, plan, request, _actors(ray, plan, (str(folder.resolve()), request.is_late), options))
        yield from driver.run(turns)


def _actors(ray: ModuleType, plan: PipelineFile, where: tuple[str, bool], options: ClusterOptions) -> list[Any]:
    """An actor per device, which has opened its sessions.

    Raises:
        RuntimeFailure: the cluster has no place for them.
    """
    kind = ray.remote(DeviceActor)
    asked: dict[str, Any] = {"num_cpus": options.resources.get("cpu", 1), "max_restarts": 0}
    asked["num_gpus"] = options.resources.get("gpu", 0)
    asked["resources"] = {name: each for name, each in options.resources.items() if name not in ("cpu", "gpu")}
    actors = []
    for device in range(len(plan.devices)):
        numbers = [number for number, stage in enumerate(plan.stages, 1) if stage.device == device]
        actors.append(kind.options(**asked).remote(plan, numbers, (*where, options.threads)))
    try:
        ray.get([actor.where.remote() for actor in actors], timeout=PLACE_SECONDS)
    except ray.exceptions.GetTimeoutError:
        wanted = ", ".join(f"{name}={each:g}" for name, each in {"cpu": 1, **options.resources}.items())
        raise RuntimeFailure(
            f"the cluster has no place for {len(actors)} actors of {wanted} within {PLACE_SECONDS:g} s: "
            "ask for less with --resource, or add machines"
        ) from None
    except ray.exceptions.RayError as error:
        raise RuntimeFailure(f"a device's sessions do not open: {_reason(error)}") from None
    return actors


def _reason(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).strip().splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__


class _Driver:
    """Gives turns to actors in the plan's order, and collects what comes out, block by block."""

    def __init__(self, ray: ModuleType, plan: PipelineFile, request: PipelineRunRequest, actors: list[Any]) -> None:
        self._ray, self._plan, self._request, self._actors = ray, plan, request, actors
        self._passing: dict[tuple[str, int, int], Any] = {}
        self._results: dict[int, list[tuple[Turn, Any]]] = {}
        self._states: dict[int, dict[int, Any]] = {}
        self._finished = 0
        self._last: tuple[Arrays, ...] = request.states
        for number, state in enumerate(request.states, 1):
            actors[plan.stages[number - 1].device].load.remote(number, state)

    def run(self, turns: Sequence[Turn]) -> Iterator[BlockRun]:
        """Hand out all turns, no more than some blocks ahead of what has come back."""
        waiting = list(reversed(turns))
        for block in range(self._request.steps):
            while waiting and waiting[-1].block < block + WINDOW_BLOCKS:
                self._hand_out(waiting.pop())
            # Wait for the block, its updates included.
            given: dict[int, Arrays] = {}
            spans = []
            for turn, ref in self._results.pop(block):
                outputs, span = self._get(ref, turn.stage)
                given.setdefault(turn.batch, {}).update(outputs)
                spans.append(span)
                last = len(self._plan.stages) if turn.kind == "F" else 1
                if turn.stage == last:
                    self._passing.pop((turn.kind, turn.stage, turn.batch), None)
            updated = self._states.pop(block, {})
            states = []
            for number, stage in enumerate(self._plan.stages, 1):
                has_state = bool(stage.states)
                ref = updated.get(number)
                if ref is None and has_state:
                    ref = self._actors[stage.device].state.remote(number)
                states.append({} if ref is None else self._get(ref, number))
            found = BlockRun(tuple(given[batch] for batch in sorted(given)), tuple(spans), tuple(states))
            self._finished, self._last = block + 1, found.states
            yield found

    def _hand_out(self, turn: Turn) -> None:
        stage = self._plan.stages[turn.stage - 1]
        actor = self._actors[stage.device]
        if turn.kind == "U":
            chosen = dict(self._request.chosen)
            state, result = actor.update.options(num_returns=2).remote(turn, self._request.batches, chosen)
            self._states.setdefault(turn.block, {})[turn.stage] = state
            self._results.setdefault(turn.block, []).append((turn, result))
            return
        if turn.kind == "F":
            fed = self._request.feed(turn.batch)
            mine = {name: fed[name] for name in stage.fed}
            arrived = self._passing.pop(("F", turn.stage - 1, turn.batch), {})
            passed, result = actor.forward.options(num_returns=2).remote(turn, arrived, mine)
        else:
            returned = self._passing.pop(("B", turn.stage + 1, turn.batch), {})
            passed, result = actor.backward.options(num_returns=2).remote(turn, returned)
        self._passing[turn.kind, turn.stage, turn.batch] = passed
        self._results.setdefault(turn.block, []).append((turn, result))

    def _get(self, ref: Any, stage: int) -> Any:
        ray = self._ray
        try:
            return ray.get(ref)
        except ray.exceptions.RayTaskError as error:
            lost = error.cause if isinstance(error.cause, ray.exceptions.RayActorError) else None
            if lost is None:
                raise RuntimeFailure(f"stage {stage} fails: {_reason(error)}") from None
        except ray.exceptions.RayError:
            pass
        stages = []  # of the actors that do not answer any more
        for device, actor in enumerate(self._actors):
            try:
                ray.get(actor.where.remote(), timeout=5)
            except ray.exceptions.GetTimeoutError:
                continue
            except ray.exceptions.RayError:
                stages += [number for number, each in enumerate(self._plan.stages, 1) if each.device == device]
        stages = stages or [stage]
        many = "stages" if len(stages) > 1 else "stage"
        raise LostStage(
            f"{many} {', '.join(map(str, stages))} of device {self._plan.stages[stages[0] - 1].device} was lost "
            f"in update {self._finished + 1}",
            self._finished,
            self._last,
        ) from None
