"""Reading a plan file that anybody may have written: decoded, then checked as a whole."""

from pathlib import Path

import msgspec

from remat_cli.base.errors import ModelError
from remat_cli.core.files.plan_check import check_plan
from remat_cli.core.files.plan_file import FORMAT, VERSION, PlanFile, is_plan
from remat_cli.core.values.verification import read_verification


class _Header(msgspec.Struct):
    """The part of a plan that every version has."""

    format: str = ""
    version: int = 0


def read_plan(path: Path) -> PlanFile:
    """Read a plan and check it as a whole: its schedule is judged again.

    Raises:
        ModelError: the file is missing, truncated, no plan, of a newer version, damaged, or contradicts itself.
    """
    try:
        data = path.read_bytes()
        header = msgspec.json.decode(data, type=_Header)
    except FileNotFoundError:
        raise ModelError(f"plan {path} does not exist") from None
    except OSError as error:
        raise ModelError(f"plan {path} cannot be read: {error.strerror}") from None
    except msgspec.ValidationError:
        raise ModelError(f"{path} is not a remat plan: it has no readable format and version") from None
    except (msgspec.DecodeError, RecursionError) as error:
        if data and not is_plan(path):
            raise ModelError(f"{path} is no plan: give the PLAN.json that `remat compile` wrote") from None
        raise ModelError(f"plan {path} is truncated or not JSON: {error}") from None
    if header.format != FORMAT:
        raise ModelError(f"{path} is not a remat plan: its format is '{header.format}', not '{FORMAT}'")
    if header.version > VERSION:
        raise ModelError(
            f"plan {path} was made by a newer remat (plan version {header.version}, this one reads up to {VERSION}): "
            "upgrade remat"
        )
    try:
        plan = msgspec.json.decode(data, type=PlanFile, dec_hook=read_verification)
        check_plan(plan)
    except (msgspec.ValidationError, ModelError) as error:
        reason = str(error).removesuffix("; compile again").removesuffix(": compile again")
        raise ModelError(f"plan {path} is damaged: {reason}; compile again") from None
    return plan
