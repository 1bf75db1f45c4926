"""One stage of a pipeline as sessions: forward and backward of micro-batches, sums of gradients, updates of weights.

Arrays go in and out by name; what a stage knows of others is which names come and go. With late updates there are two
versions of the weights: blocks of micro-batches take turns with them, and each is made anew from the other one.
"""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from remat_cli.base.errors import ModelError, RuntimeFailure
from remat_cli.pipelines.plan.schedule_file import SessionFile, StageFile
from remat_cli.runtime.sessions._ort import Array, run_into, runtime_errors, type_of, typed_array
from remat_cli.runtime.sessions.array_file import read_arrays
from remat_cli.runtime.sessions.session import SessionSettings, open_session, session_options

Arrays = dict[str, Array]
NOWHERE: Mapping[str, Array] = MappingProxyType({})


class StageRunner:
    """A stage with its sessions and its state; one micro-batch after another, in whatever order the caller likes.

    `is_late`: an update is of use to the next block but one only, so that the pipeline need not run empty.
    """

    def __init__(
        self, stage: StageFile, folder: Path, options: Callable[[], Any], settings: SessionSettings, *, is_late: bool
    ) -> None:
        """Open the sessions, each with options of its own, with the first values of the state.

        Raises:
            RuntimeFailure: the runtime refuses a model.
        """
        self.stage = stage
        self._is_late = is_late
        ways = [each for each in (stage.forward, stage.backward) if each is not None]
        self._sessions = {each.file: open_session(folder / each.file, settings, options()) for each in ways}
        if stage.update is not None:
            file = stage.update.file
            lasting = stage_options(settings)
            lasting.enable_cpu_mem_arena = False  # its outputs stay for long, and would leave gaps in an arena
            self._sessions[file] = open_session(folder / file, settings, lasting)
        self._types = {i.name: i.type for session in self._sessions.values() for i in session.get_inputs()}
        self._needed = {*stage.goes_back, *(stage.backward.reads if stage.backward else ())}
        self._kept: dict[int, Arrays] = {}
        self._sums: Arrays = {}
        self._at_hand: Arrays = {}
        self._places: dict[str, tuple[tuple[int, ...], np.dtype[Any]]] = {}
        if stage.backward is not None:
            # Gradients that nobody but this runner reads are written where they stay: among what comes and goes in an
            # arena, they would leave gaps.
            mine = {*stage.gradients} - {*stage.goes_back}
            made = self._sessions[stage.backward.file].get_outputs()
            self._places = {each.name: (tuple(each.shape), type_of(each)) for each in made if each.name in mine}
        self.load({} if stage.first is None else read_arrays(folder / stage.first))

    def load(self, state: Mapping[str, Array]) -> None:
        """Begin with this state, as `state` gives it; a version that it lacks is the newest one.

        Raises:
            ModelError: the state is that of another stage.
        """
        missing = [name for name in self.stage.states if name not in state]
        if missing:
            raise ModelError(f"the state lacks '{missing[0]}': it is that of another model or stage")
        kinds = {name: self._types.get(name.removesuffix(OLDER), "") for name in state}
        # What files know no type of comes as unsigned integers.
        typed = {name: typed_array(array, kinds[name]) for name, array in state.items()}
        self._moving = {name: typed[name] for name in self.stage.states if name not in self.stage.weights}
        newest = {name: typed[name] for name in self.stage.weights}
        self._versions = [{name: typed.get(f"{name}{OLDER}", newest[name]) for name in newest}, newest]
        self._updates = 0
        self._at_end = self._forward_states()

    def state(self) -> Arrays:
        """All that the next block begins with; with late updates also the version before the newest."""
        oldest, newest = self._versions if self._is_late else (self._versions[1], self._versions[1])
        older = {f"{name}{OLDER}": array for name, array in oldest.items()} if self._is_late else {}
        return {**self._moving, **self._at_end, **newest, **older}

    def forward(
        self, turn: tuple[int, int], arrived: Mapping[str, Array], fed: Mapping[str, Array], *, ends_block: bool
    ) -> tuple[Arrays, Arrays]:
        """Run the forward of a micro-batch; returns what goes on to the next stage, and what the session makes.

        Args:
            turn: the block and the number of the micro-batch, both counted from the state that was loaded.
            arrived: from the stage before.
            fed: the inputs of the model that the stage reads.
            ends_block: whether this is the last forward before an update of which it is part.
        """
        block, batch = turn
        is_older = self._is_late and self.stage.update is not None and block == self._updates
        weights = self._versions[0 if is_older else 1]
        here = {**weights, **self._moving, **arrived, **fed}
        made = self._run(self.stage.forward, here)
        here |= made
        self._moving |= {name: made[output] for output, name in self.stage.forward_states.items()}
        if ends_block:
            self._at_end = self._forward_states()
        if self._needed:
            self._kept[batch] = {name: here[name] for name in self._needed if name in here}
        return _chosen(here, self.stage.leaves), made

    def backward(self, batch: int, returned: Mapping[str, Array]) -> tuple[Arrays, Arrays]:
        """Run the backward of a micro-batch and add its gradients up; returns what goes back, and what comes out."""
        here = {**self._kept.pop(batch, {}), **returned}
        into: Arrays = {}  # the gradient of the first micro-batch goes to the sum, that of another beside it
        for name, (shape, dtype) in self._places.items():
            if name in self._sums and name not in self._at_hand:
                self._at_hand[name] = np.empty(shape, dtype)
            into[name] = self._at_hand[name] if name in self._sums else np.empty(shape, dtype)
        made = {} if self.stage.backward is None else self._run(self.stage.backward, here, into)
        here |= made
        for name in self.stage.gradients:
            if name in self._sums:
                np.add(self._sums[name], here[name], out=self._sums[name])
            else:
                self._sums[name] = into[name] if name in into else np.array(here[name])
        return _chosen(here, self.stage.goes_back), made

    def update(self, batches: int, chosen: Mapping[str, Array]) -> None:
        """Update the weights with the mean of the gradients of a block, at the caller's chosen settings."""
        if self.stage.update is None:
            return
        means, self._sums, self._at_hand = self._sums, {}, {}
        for total in means.values():
            np.divide(total, total.dtype.type(batches), out=total)
        newest = self._versions[1]
        self._versions = [newest, newest]  # nobody needs the older one any more: its place is for what is made now
        made = self._run(self.stage.update, {**self._moving, **newest, **means, **chosen})
        fresh = {state: made[output] for state, output in self.stage.next_of.items()}
        self._updates += 1
        self._moving |= {name: array for name, array in fresh.items() if name not in self.stage.weights}
        latest = {name: fresh.get(name, newest[name]) for name in self.stage.weights}
        self._versions = [newest if self._is_late else latest, latest]

    @property
    def alive(self) -> int:
        """How many micro-batches are kept now."""
        return len(self._kept)

    def _forward_states(self) -> Arrays:
        return _chosen(self._moving, self.stage.forward_states.values())

    def _run(self, session: SessionFile, here: Mapping[str, Array], into: Mapping[str, Array] = NOWHERE) -> Arrays:
        with runtime_errors(f"ONNX Runtime fails to run {session.file}"):
            return run_into(self._sessions[session.file], _chosen(here, session.reads), into)


OLDER = "#older"
"""Behind the name of a weight: its version before the newest."""


def stage_options(settings: SessionSettings) -> Any:
    """Options of a session that runs in turn with others: its threads sleep as soon as a run ends."""
    options = session_options(settings)
    options.add_session_config_entry("session.force_spinning_stop", "1")
    return options


def _chosen(arrays: Mapping[str, Array], names: Iterable[str]) -> Arrays:
    try:
        return {name: arrays[name] for name in names}
    except KeyError as error:
        raise RuntimeFailure(f"a stage needs {error}, which has not come: partition the model again") from None
