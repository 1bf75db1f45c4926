"""From operations on a chain to steps that use tensors, which is what schedules, the exact model and the judge know."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from remat_cli.core.paging.paging import PagedProblem, PagedTensor
from remat_cli.solvers.chains.actions import Action
from remat_cli.solvers.published._pofo.paged_chain import PagedChain


@dataclass(frozen=True)
class ChainSteps:
    """A sequence of operations as a problem; the first `turn` steps are the forward sweep, the loss the last of them.

    `copies[k]` is the tensor that the sweep keeps of stage k for the backward sweep, and its only gap that may be paged
    lies across the turn.
    """

    problem: PagedProblem
    turn: int
    copies: dict[int, int]

    def gaps(self, stages: Iterable[int]) -> dict[int, int]:
        """Tensor and gap of the copies of these stages; those of no bytes are left out."""
        found = {}
        for stage in stages:
            tensor = self.copies.get(stage)
            if tensor is not None and self.problem.tensors[tensor].open_gaps:
                found[tensor] = self.problem.tensors[tensor].open_gaps[0]
        return found


def keep_all_actions(stages: int) -> tuple[list[Action], list[Action]]:
    """Every forward once, keeping all that the backwards need; every backward once."""
    numbers = range(1, stages + 1)
    return [Action("all", stage) for stage in numbers], [Action("back", stage) for stage in reversed(numbers)]


def chain_steps(chain: PagedChain, forward: Sequence[Action], backward: Sequence[Action]) -> ChainSteps:
    """The steps of a plan; each action is one, and all that it makes lives as long as later ones use it."""
    walk = _Walk(chain)
    for action in (*forward, *backward):
        walk.take(action)
    turn = len(forward)
    tensors = []
    for size, uses, may_page in zip(walk.sizes, walk.uses, walk.may_page, strict=True):
        # The gap in which the loss runs and nothing else uses the tensor, if there is one.
        across = tuple(gap for gap in range(len(uses) - 1) if uses[gap] < turn <= uses[gap + 1])
        tensors.append(PagedTensor(size, tuple(uses), gaps=across if may_page else ()))
    copies = {stage: tensor for tensor, stage in walk.stage_of.items() if tensors[tensor].gaps}
    durations, workspaces = tuple(walk.durations), tuple(walk.workspaces)
    problem = PagedProblem(durations, workspaces, tuple(tensors), chain.budget_bytes, chain.link)
    return ChainSteps(problem, turn, copies)


@dataclass
class _Walk:
    """Steps taken so far; `values[k]` is the tensor that now holds stage k, `bare` where that is its output alone."""

    chain: PagedChain
    durations: list[int] = field(default_factory=list)
    workspaces: list[int] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    uses: list[list[int]] = field(default_factory=list)
    may_page: list[bool] = field(default_factory=list)
    stage_of: dict[int, int] = field(default_factory=dict)
    values: dict[int, int] = field(default_factory=dict)
    gradient: int | None = None

    def __post_init__(self) -> None:
        """The chain's input is there from the start."""
        self._make(0, self.chain.kept_bytes[0], -1)

    def take(self, action: Action) -> None:
        """One operation; what it uses and makes."""
        number, stage, figures = len(self.durations), action.stage, self.chain.chain
        self.uses[self.values[stage - 1]].append(number)
        if action.kind == "back":
            self.uses[self.values.pop(stage)].append(number)
            workspace = figures.backward_extra_bytes[stage]
            if self.gradient is None:
                workspace += figures.gradient_bytes[stage]
            else:
                self.uses[self.gradient].append(number)
            self._spend(figures.backward_ns[stage], workspace)
            self.gradient = self._tensor(figures.gradient_bytes[stage - 1], number, may_page=False)
            return
        is_full = action.kind == "all"
        extra = figures.saving_extra_bytes if is_full else figures.forward_extra_bytes
        self._spend(figures.forward_ns[stage], extra[stage])
        self._make(stage, (self.chain.kept_bytes if is_full else figures.value_bytes)[stage], number)

    def _spend(self, duration: int, workspace: int) -> None:
        self.durations.append(max(1, duration))
        self.workspaces.append(workspace)

    def _make(self, stage: int, size: int, number: int) -> None:
        self.values[stage] = self._tensor(size, number, may_page=0 <= stage < self.chain.stages)
        self.stage_of[self.values[stage]] = stage

    def _tensor(self, size: int, made: int, may_page: bool) -> int:
        self.sizes.append(size)
        self.uses.append([made])
        self.may_page.append(may_page)
        return len(self.sizes) - 1
