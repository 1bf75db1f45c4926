"""Weights that may page: which they are, what they take, and what it takes to open a session over them in a run."""

import math
import tempfile
from pathlib import Path
from typing import Any, Final

from remat_cli.base.files import WORK_FOLDER
from remat_cli.base.progress import Progress
from remat_cli.compiling.platform import Platform
from remat_cli.core.paging.paged_plan import image_bytes
from remat_cli.core.paging.weight_paging import MIB, NO_WEIGHTS, HostedWeight, LoadCosts, WeightPaging
from remat_cli.core.schedule.graph import Graph
from remat_cli.core.schedule.program import WeightUse
from remat_cli.core.values.conditions import CPU, Conditions
from remat_cli.core.values.profile import LinkCost
from remat_cli.onnx_io.read.one_op import write_product
from remat_cli.onnx_io.write.segment_models import UNSHARED, plainly_read_weights
from remat_cli.ort_rules.packing import PackingRules
from remat_cli.runtime.measure.open_speed import OpenJob, measure_opening
from remat_cli.runtime.measure.profile_cache import ProfileCache, cpu_name
from remat_cli.runtime.sessions._ort import installed_rules
from remat_cli.runtime.sessions.session import SessionSettings, device_settings, runtime_version

LEAST_BYTES: Final = 2**16
"""Smaller weights stay: a transfer of them is mostly its beginning."""
PROBES: Final = ((16, 16), (2048, 2048))
PROBE_WEIGHT: Final = "w"


def hosted_weights(platform: Platform, model: Any, conditions: Conditions, progress: Progress) -> WeightPaging:
    """The weights of a model that may page, with what opening takes: measured once, and where there are any."""
    found = may_page(platform.graph, model, installed_rules().packing)
    if not found:
        return NO_WEIGHTS
    spec = platform.specs[0]
    settings = device_settings(spec, SessionSettings())
    key = f"opens {spec.name} {spec.threads} {cpu_name()} {runtime_version()}"
    with ProfileCache(conditions.cache_dir) as cache:
        known = cache.link(key, (CPU, CPU))
        if known is None:
            with tempfile.TemporaryDirectory(prefix=WORK_FOLDER) as folder:
                models = [(Path(folder) / f"{rows}.onnx", (rows, columns)) for rows, columns in PROBES]
                for path, shape in models:
                    write_product(path, *shape, PROBE_WEIGHT)
                job = OpenJob(tuple((str(path), shape) for path, shape in models), PROBE_WEIGHT, settings)
                measured = measure_opening(job, progress.advance)
            known = LinkCost(CPU, CPU, measured.open_ns, MIB * 1e9 / max(1, measured.pack_ns_per_mib))
            cache.store_link(key, known)
    costs = LoadCosts(known.latency_ns, round(MIB * 1e9 / known.bytes_per_second))
    return WeightPaging(weights=found, costs=costs)


def may_page(graph: Graph, model: Any, packing: PackingRules) -> tuple[HostedWeight, ...]:
    """Large weights that only ops of the main graph read, all of them packing it in a known way, or none."""
    uses, found = plainly_read_weights(model), []
    for number, weight in enumerate(graph.weights):
        use = uses.get(weight.name)
        if use is None:
            continue
        packed_bytes = _packed_bytes(use, packing)
        if packed_bytes is not None:
            found.append(HostedWeight(number, image_bytes(weight.size_bytes), packed_bytes))
    return tuple(found)


def _packed_bytes(use: WeightUse, packing: PackingRules) -> int | None:
    """The most that an op's own copy of a weight takes, 0 where none makes one; None where that is not known."""
    if use.size_bytes < LEAST_BYTES or use.dtype in UNSHARED:
        return None
    are_packed = [packing.packs_weight(reader, use.dtype, use.shape) for reader in use.readers]
    if not any(are_packed):
        return 0
    if not all(are_packed) or any(reader.op_type not in packing.columns for reader in use.readers):
        return None
    multiple = max(packing.columns[reader.op_type] for reader in use.readers)
    *several, rows, columns = use.shape
    wide, high = rows * (columns + -columns % multiple), columns * (rows + -rows % multiple)
    most_elements = math.prod(several) * max(wide, high)  # either side may be the columns
    return most_elements * (use.size_bytes // math.prod(use.shape))
