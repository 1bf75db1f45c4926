"""The op whose tiles give other bits is found."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from remat_cli.splitting.tiles.build import (
    SPLIT_OF,
    split_model,
)
from remat_cli.splitting.tiles.differences import compared_pieces, first_difference, with_outputs
from remat_cli.splitting.tiles.steps import TiledRegion, region_steps
from remat_cli.splitting.tiles.tiling import Cutting
from tests.helpers import to_bytes
from tests.splitting.random_models import Sketch
from tests.splitting.split_case import make_case, run_exact


def chain():
    sketch = Sketch(np.random.default_rng(0))
    x = sketch.input("x", (1, 16, 12, 12))
    for _ in range(3):
        x = sketch.add("Conv", [x, sketch.weight(16, 16, 3, 3)], (1, 16, 12, 12), pads=[1, 1, 1, 1])
    return make_case(sketch.sample([x]))


def exposed(model, names, feeds):
    """Values by name, from a run that gives them all."""
    outputs = [value.name for value in model.graph.outputs]
    assert set(names) <= set(outputs)
    return dict(zip(outputs, run_exact(to_bytes(model), feeds), strict=True))


def same_bits(one, other):
    return one.tobytes() == other.tobytes()


def culprit(spoilt):
    case = chain()
    ops = tuple(op for op in case.timeline.order if "Conv" in case.view.graph.ops[op].op_type)
    exit_ = case.view.makes[ops[-1]][0]
    steps = region_steps(case.view, Cutting(ops, ((exit_, 2),), 3))
    region = TiledRegion(ops, steps)
    split = split_model(case.view, case.timeline.order, [region])
    name = None if spoilt is None else case.view.graph.ops[ops[spoilt]].name
    for node in split.graph:
        if name is not None and node.metadata_props.get(SPLIT_OF) == name:
            weight = node.inputs[1].const_value.numpy() + np.float32(1e-3)
            value = ir.Value(name="spoilt", const_value=ir.tensor(weight, name="spoilt"))
            split.graph.register_initializer(value)
            node.replace_input_with(1, value)
            break
    pieces = compared_pieces([region])
    whole_names = {piece.tensor: piece.tensor for _, piece in pieces}
    split_names = {piece.name: piece.tensor for _, piece in pieces}
    whole = exposed(with_outputs(case.reference, case.view, whole_names), whole_names, case.feeds)
    tiles = exposed(with_outputs(split, case.view, split_names), split_names, case.feeds)
    found = first_difference(case.view, pieces, whole, tiles, same_bits)
    return None if found is None else ops.index(found)


def test_nothing_is_found_where_all_tiles_are_right():
    assert culprit(None) is None


def test_the_first_op_that_differs_is_to_blame():
    assert [culprit(op) for op in range(3)] == [0, 1, 2]
