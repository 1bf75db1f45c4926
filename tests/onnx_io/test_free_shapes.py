"""Which values must be hidden so that the runtime does not know the shapes of large tensors."""

from __future__ import annotations

from remat_cli.onnx_io.sizes.free_shapes import known_shapes
from remat_cli.onnx_io.write.assemble import Draft

SIZES = {"small": 4, "wide": 4096, "sum": 4096}


def test_the_shape_that_a_constant_gives_to_expand_is_hidden():
    expand = Draft("spread", "Expand", ("small", "shape"), ("wide",))
    add = Draft("add", "Add", ("wide", "wide"), ("sum",))
    shapes = {"small": ("a",), "wide": (4, 256), "sum": (4, 256)}
    assert known_shapes([expand, add], shapes, 1024, SIZES) == ["shape", "wide"]


def test_small_tensors_may_be_known():
    expand = Draft("spread", "Expand", ("small", "shape"), ("wide",))
    assert known_shapes([expand], {"small": ("a",), "wide": (4, 256)}, 8192, SIZES) == []


def test_a_tensor_without_a_known_source_is_hidden_itself():
    op = Draft("noise", "RandomUniform", (), ("wide",))
    assert known_shapes([op], {"wide": (4, 256)}, 1024, SIZES) == ["wide"]


def test_where_no_source_is_known_those_known_in_part_are_hidden():
    product = Draft("product", "Gemm", ("left", "right"), ("wide",))
    shapes = {"left": ("a", 4), "right": ("b", 256), "wide": (4, 256)}
    assert known_shapes([product], shapes, 1024, SIZES) == ["left", "right"]
