"""Several devices side by side, what they cannot run, and what copies cost."""

from __future__ import annotations

import msgspec

from remat_cli.core.values.profile import LinkCost, OpCost, Unsupported
from remat_cli.report import render_text
from remat_cli.report.profile import ProfileReport
from remat_cli.report.style import Style
from tests.report import samples


def text_of(**changes):
    own = samples.profile()
    came = msgspec.structs.replace(own.provenance, measured=changes.pop("measured", True))
    other = msgspec.structs.replace(
        own,
        device="accelerator",
        memory="fast",
        ops=(OpCost("make_skip", 400_000), OpCost("grow", 9_000_000), OpCost("shrink", 500_000)),
        unsupported=(Unsupported("join", "no kernel"),),
        provenance=came,
        is_opaque=True,
    )
    report = ProfileReport(model="net.onnx", profiles=(own, other), **changes)
    return render_text(report, Style())


def test_what_a_device_cannot_run_stands_with_the_reason():
    text = text_of()
    assert "cannot run 1 op:\n    join: no kernel\n" in text
    assert "each op in a session of its own" in text
    assert "unknown" in text.partition("accelerator:")[2]
    assert "ESTIMATED" not in text


def test_devices_stand_side_by_side():
    rows = [line.split() for line in text_of().partition("\ndevice ")[2].splitlines()]
    assert ["cpu", "cpu", "4", "ops", "2", "10.00", "ms"] in rows
    assert ["accelerator", "fast", "3", "ops", "2", "9.90", "ms"] in rows
    best = 0.4 + 6 + 0.5 + 1
    assert rows[3][-2:] == [f"{best:.2f}", "ms"]


def test_links_and_estimates_are_marked():
    links = (LinkCost("cpu", "fast", 2000, 1e9, noise_percent=1.5), LinkCost("fast", "cpu", 0, 2e9, measured=False))
    text = text_of(links=links, measured=False)
    assert "ESTIMATED from the device's description" in text
    assert "cpu -> fast  2.00 us  1.00 GB/s        1.05 ms  noise 1.5 %" in text
    assert text.rstrip().endswith("ESTIMATED")
