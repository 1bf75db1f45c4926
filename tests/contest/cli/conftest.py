"""The command line as the tests of other commands have it."""

from tests.cli.conftest import folder, pipeline, remat

__all__ = ["folder", "pipeline", "remat"]
