"""What a model costs on several devices, and the links between their memories."""

import msgspec

from remat_cli.base.progress import Progress, part
from remat_cli.compiling.placed.copy_costs import link_costs
from remat_cli.compiling.placed.cut import own_bytes
from remat_cli.compiling.placed.profile_apart import profile_apart
from remat_cli.compiling.platform import Platform
from remat_cli.compiling.prepare import Prepared
from remat_cli.compiling.profile import profile_on_cpu
from remat_cli.core.values.conditions import CPU, Conditions
from remat_cli.core.values.profile import Profile
from remat_cli.devices.roofline import estimate, estimated_links
from remat_cli.runtime.sessions.providers import device_of, must_estimate, require_device


def profile_devices(prepared: Prepared, conditions: Conditions, progress: Progress) -> Platform:
    """The cost of every op on each device, and of copies between each two memories.

    Raises:
        RuntimeFailure: the model fails to run on the CPU, or nothing runs on a device.
        MissingDependency: a device cannot be used.
        ConfigError: the description of a device that is not here lacks figures.
    """
    specs = conditions.devices
    absent = {spec.name for spec in specs if must_estimate(spec, conditions.estimate)}
    here = [spec for spec in specs if spec.name not in absent]
    for spec in here:
        require_device(device_of(spec))
    found: dict[str, Profile] = {}
    for number, spec in enumerate(here):
        share = part(progress, number, len(here), len(prepared.graph.ops))
        measure = profile_on_cpu if spec.provider == CPU else profile_apart
        found[spec.name] = measure(prepared, conditions, spec, share)
    measured = (found[here[0].name], here[0]) if here else (None, None)
    for spec in specs:
        if spec.name in absent:
            guess = estimate(prepared.graph, spec, *measured)
            found[spec.name] = msgspec.structs.replace(guess, model_sha256=prepared.reference_sha256)
    links = link_costs(here, conditions)
    known = {(link.source, link.target) for link in links}
    described = tuple(link for link in estimated_links(specs) if (link.source, link.target) not in known)
    profiles = tuple(found[spec.name] for spec in specs)
    return Platform(prepared.graph, specs, profiles, (*links, *described), own_bytes(prepared.graph, specs))
