"""The versions of ONNX Runtime that a file is for, as a user names them."""

import msgspec


class RuntimeRange(msgspec.Struct, frozen=True):
    """From the oldest to the newest version, each MAJOR.MINOR; with no `newest`, up to the newest that was tried."""

    oldest: str
    newest: str | None = None

    def __str__(self) -> str:
        """As it is written on the command line."""
        if self.newest is None:
            return f">={self.oldest}"
        return f"=={self.oldest}" if self.newest == self.oldest else f"{self.oldest}..{self.newest}"
