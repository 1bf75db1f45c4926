"""What a model costs on the device that pages, and what it takes to write to the other memory and to read it."""

from remat_cli.base.progress import Progress
from remat_cli.compiling.placed.copy_costs import link_costs
from remat_cli.compiling.placed.cut import own_bytes
from remat_cli.compiling.placed.profile_apart import profile_apart
from remat_cli.compiling.platform import Platform
from remat_cli.compiling.prepare import Prepared
from remat_cli.compiling.profile import profile_on_cpu
from remat_cli.core.values.conditions import CPU, Conditions
from remat_cli.core.values.profile import DeviceSpec
from remat_cli.core.values.spill import HOST
from remat_cli.paging.spill import with_host, with_spill
from remat_cli.runtime.sessions.providers import device_of, require_device


def profile_paging(prepared: Prepared, conditions: Conditions, progress: Progress) -> Platform:
    """The cost of every op, and of transfers.

    Raises:
        RuntimeFailure: the model fails to run.
        MissingDependency: the device cannot be used.
    """
    spill, specs = conditions.spill, conditions.devices
    if spill is not None and spill.memory == HOST:
        # A device with a memory of its own: ops are measured there, and copies to the host and back.
        (spec,) = conditions.devices
        require_device(device_of(spec))
        profile = profile_apart(prepared, conditions, spec, progress)
        own = Platform(prepared.graph, (spec,), (profile,), session_bytes=own_bytes(prepared.graph, (spec,)))
        return with_host(own, spill, link_costs((spec, DeviceSpec(CPU, CPU)), conditions))
    own = Platform(prepared.graph, specs, (profile_on_cpu(prepared, conditions, specs[0], progress),))
    return with_spill(own, conditions, progress)
