"""What plans that say where ops run are asked for, and what that refuses."""

from remat_cli.base.errors import ConfigError, ModelError
from remat_cli.compiling.ask import CompileRequest
from remat_cli.compiling.prepare import Prepared


def refuse_nothing(prepared: Prepared) -> None:
    """Refuse a model without ops.

    Raises:
        ModelError: nothing runs in it.
    """
    if not prepared.graph.ops:
        path = prepared.source.path
        raise ModelError(f"nothing runs in {path}: there is no op to place; leave --device out")


def refuse_what_sessions_lack(request: CompileRequest) -> None:
    """Refuse what plans that are run in sessions cannot do yet.

    Raises:
        ConfigError: splits are to be made at any price, a budget is to be found, or a model is for many sizes.
    """
    if request.splits.mode == "max":
        raise ConfigError("--split max: ops are not split in plans for several devices; leave --split out")
    if least := [budget.text for budget in request.asked.parts if budget.kind == "min"]:
        raise ConfigError(f"budget '{least[0]}' is found for --device cpu only: write bytes, or a share such as 70%")
    if request.conditions.family is not None:
        each = request.conditions.family.ranges[0]
        one_size = f"write --dim {each.name}={each.high}"
        raise ConfigError(f"--dim {each}: plans for several devices are of one size: {one_size}")
