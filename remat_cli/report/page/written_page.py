"""What `report` wrote."""

import msgspec

from remat_cli.base.units import format_bytes
from remat_cli.report.pictures.shown import Shown
from remat_cli.report.solution import EXIT_DONE
from remat_cli.report.style import Style


class PageReport(Shown, msgspec.Struct, frozen=True, kw_only=True):
    """A page that was written, and what it is about."""

    file: str
    output: str
    output_bytes: int
    verdict: str = ""

    @property
    def exit_code(self) -> int:
        """0: whatever the page says, it is there."""
        return EXIT_DONE

    def lines(self, style: Style) -> list[str]:
        """Where it is."""
        told = [self.verdict] if self.verdict else []
        return [
            *told,
            f"page {self.output} ({format_bytes(self.output_bytes)}): open it in a browser, no network needed",
        ]
