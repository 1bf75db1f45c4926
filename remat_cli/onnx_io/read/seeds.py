"""Gives seeds to ops that draw random numbers without one, so that two models of such ops can be compared.

While remat works, each of these ops has a seed that follows from the name of what it makes, and therefore the same in
every model made from one; none of them is in a file that a user gets.
"""

import json
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from zlib import crc32

import onnx_ir as ir

from remat_cli.onnx_io.read.copies import copy_of
from remat_cli.onnx_io.read.mapped import model_of, parsed
from remat_cli.onnx_io.read.op_facts import DRAWING, MOST, OURS, is_ours, may_train
from remat_cli.onnx_io.write.packed import NOTHING_PACKED, packed_weights
from remat_cli.onnx_io.write.save import data_path, save

FRACTION = 0.5  # of a seed of ours: no one gives half a seed, and the runtime drops it
SEEDS_KEY = "remat.seeds"  # model metadata: names of ops that draw without a seed, with the one to compare under


def give_seeds(model: ir.Model) -> bool:
    """Give every op that draws without a seed one, in place; whether there were any."""
    known = json.loads(model.metadata_props.get(SEEDS_KEY, "{}"))
    found = [node for node in _drawing(model) if "seed" not in node.attributes]
    for node in found:
        number = known.get(node.name, crc32((node.outputs[0].name or "").encode()) % MOST)
        is_whole = node.op_type == "Dropout"
        seed = ir.AttrInt64("seed", OURS + number) if is_whole else ir.AttrFloat32("seed", number + FRACTION)
        node.attributes["seed"] = seed
    return bool(found)


def without_seeds(model: ir.Model) -> ir.Model:
    """The model without the seeds that `give_seeds` gave, which its metadata then say; itself where it has none."""
    if not any(map(is_ours, _drawing(model))):
        return model
    bare = copy_of(model)
    known: dict[str | None, int] = {}
    for node in filter(is_ours, _drawing(bare)):
        seed = node.attributes["seed"]
        known[node.name] = int(seed.as_float()) if seed.type == ir.AttributeType.FLOAT else seed.as_int() - OURS
        del node.attributes["seed"]
    bare.metadata_props[SEEDS_KEY] = json.dumps(known)
    return bare


def seeded_copy(path: Path, target: Path) -> Path:
    """A copy of a file in which ops that draw without a seed have one; the file itself where there are none.

    Raises:
        ConfigError: the copy cannot be written.
        RematError: the disk is full or failed.
    """
    model = model_of(parsed(path), path)
    if not give_seeds(model):
        return path
    has_data = data_path(path).exists()
    save(model, target, external=has_data, packed=packed_weights(path) if has_data else NOTHING_PACKED)
    return target


def _drawing(model: ir.Model) -> Iterator[ir.Node]:
    """Ops that draw random numbers, in bodies and functions too."""
    graphs = chain([model.graph], (function.graph for function in model.functions.values()))
    for node in chain.from_iterable(graph.all_nodes() for graph in graphs):
        if node.domain in ("", "ai.onnx") and (node.op_type in DRAWING or may_train(node)):
            yield node
