"""Draw docs/netron.png, a compiled file as Netron shows it: `python -m docs.make_netron_png unet.remat.onnx`.

Needs the packages netron and playwright, and Debian's chromium.
"""

from __future__ import annotations

import sys
from pathlib import Path

PORT = 8765
WIDTH, HEIGHT = 1100, 1010
PROPERTIES = (92, HEIGHT - 26)  # the button that shows them
TARGET = Path(__file__).with_name("netron.png")


def draw(model: Path) -> None:
    """Open the file in Netron, then the properties of the model, and keep what is to be seen."""
    import netron
    from playwright.sync_api import sync_playwright

    netron.start(str(model), address=("localhost", PORT), browse=False)
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT})
        page.goto(f"http://localhost:{PORT}")
        page.get_by_role("button", name="Accept").click()
        page.wait_for_selector("#canvas .node")
        page.wait_for_timeout(1000)
        page.mouse.click(*PROPERTIES)
        page.wait_for_timeout(1000)
        page.screenshot(path=TARGET)
        browser.close()
    netron.stop()


if __name__ == "__main__":
    draw(Path(sys.argv[1]))
