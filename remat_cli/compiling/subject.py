"""What is planned: a model, whole or cut up before it is planned, with what it costs."""

from dataclasses import dataclass, replace
from typing import TypeVar

from remat_cli.compiling.planned import Answered
from remat_cli.compiling.platform import Platform
from remat_cli.compiling.prepare import Prepared
from remat_cli.core.schedule.splits import Splitting

P = TypeVar("P", bound=Answered)


@dataclass(frozen=True)
class PlanSubject:
    """A model with what it costs; `splitting` None: it is the whole one."""

    prepared: Prepared
    platform: Platform
    splitting: Splitting | None = None

    def of(self, planned: P, whole: Prepared) -> P:
        """A plan of it as one of the whole model."""
        return planned if self.splitting is None else replace(planned, whole=whole, splitting=self.splitting)
