"""Batches of which rows are laid flat, compiled: by items and rows, without what sessions would fuse in tiles only."""

from __future__ import annotations

import onnx

import remat_cli as remat
from tests.splitting.test_items_apart import flat_model


def test_a_batch_whose_rows_are_laid_flat_fits_by_items_and_rows(tmp_path, cache):
    """Two tensors alike are added in tiles where one was broadcast before: sessions would take that for another op."""
    onnx.save(flat_model(2, has_places=True), tmp_path / "flat.onnx")
    words = {"budget": "32%", "max_overhead": "1000%", "output": tmp_path / "out.onnx"}
    report = remat.compile(tmp_path / "flat.onnx", **words, plan=tmp_path / "out.json")
    assert report.exit_code == 0
    assert report.verification.outputs_identical
    items, *inner = report.regions
    assert items.tiles == 2
    assert any("Gemm" in name for region in inner for name in region.ops)
    assert not any("_Add" in name and "n0" in name for name in items.ops), "left whole: it would be fused in tiles"
