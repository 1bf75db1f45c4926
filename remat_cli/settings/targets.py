"""Several targets of one compile: settings for each of them, which write files of their own names."""

from collections.abc import Mapping
from pathlib import Path

import msgspec

from remat_cli.settings.parsers import Target
from remat_cli.settings.settings import Settings, output_paths

PLAN_ENDING = ".plan.json"


def settings_by_target(model: Path, settings: Settings) -> Mapping[Target, Settings]:
    """What a compile is asked for by target: OUT.NAME.onnx and OUT.NAME.plan.json; OUT.onnx where there is one target.

    Whether these can be written is checked.

    Raises:
        ConfigError: a path cannot be written, exists without --force, or is the model itself.
    """
    if len(settings.targets) == 1:
        output_paths(model, settings)
        return {settings.target: settings}
    paths = output_paths(
        model, msgspec.structs.replace(settings, force=True)
    )  # those of one file, which is not written
    ending = PLAN_ENDING if paths.plan.name.endswith(PLAN_ENDING) else paths.plan.suffix
    found = {}
    for target in settings.targets:
        found[target] = msgspec.structs.replace(
            settings,
            targets=(target,),
            portable=target != "here",
            output=paths.model.with_name(f"{paths.model.stem}.{target}{paths.model.suffix}"),
            plan=paths.plan.with_name(f"{paths.plan.name.removesuffix(ending)}.{target}{ending}"),
        )
        output_paths(model, found[target])
    return found
