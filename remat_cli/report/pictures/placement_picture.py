"""Where ops are computed, copied and kept, as lines of text: one matrix per memory, ops downwards, steps to the right.

After Figures 3 and 10 of XEngine (Schuler et al. 2022), which draw the matrices R (computed) and S (saved) of each
device; here both are one picture, and what would not fit is drawn together: several ops in a row, several steps in a
column.
"""

import string
from collections import Counter, defaultdict

import msgspec

from remat_cli.report.explain import PlacementMatrix
from remat_cli.report.style import Role, Style, painted, plural, shorten

MOST_ROWS = 24
NAME_WIDTH = 24
MORE = " .."
CELL_WIDTH = 4
RULER_GAP = 6
DEVICE_ROLES: tuple[Role, ...] = ("accent", "good", "warn", "strong")


class _Mark(msgspec.Struct, frozen=True):
    """What a cell shows; of several those of the highest rank count."""

    rank: int
    char: str
    role: Role


class _Glyphs(msgspec.Struct, frozen=True):
    """Characters for what is no letter; `shades` say how much of a compressed cell is kept, from little to all."""

    kept: str
    shades: str
    copied_in: str
    copied_out: str
    given: str


UNICODE = _Glyphs("─", "░▒▓", "↓", "↑", "○")
ASCII = _Glyphs("-", ".:=", "v", "^", "o")


class _Frame(msgspec.Struct, frozen=True):
    """How many rows and columns stand for how many ops and steps; `cell_width` is characters per column."""

    ops: int
    steps: int
    rows: int
    columns: int
    cell_width: int

    @property
    def is_compressed(self) -> bool:
        """Whether a cell is more than one op at one step."""
        return self.rows < self.ops or self.columns < self.steps

    def row(self, op: int) -> int:
        """The row that shows an op."""
        return op * self.rows // self.ops

    def column(self, step: int) -> int:
        """The column that shows a step."""
        return step * self.columns // self.steps

    def first_op(self, row: int) -> int:
        """The first op of a row."""
        return -(-row * self.ops // self.rows)

    def size(self, row: int, column: int) -> int:
        """How many ops and steps a cell stands for, multiplied."""
        steps = -(-(column + 1) * self.steps // self.columns) - -(-column * self.steps // self.columns)
        return (self.first_op(row + 1) - self.first_op(row)) * steps


def placement_lines(matrix: PlacementMatrix, style: Style) -> list[str]:
    """A matrix per memory with a row per op and a column per step, as far as there is room, and what the marks mean."""
    ops, steps = max(1, len(matrix.rows)), max(1, len(matrix.steps))
    room = max(10, style.width - _margin(matrix) - 5)
    columns = min(steps, room)
    frame = _Frame(ops, steps, min(ops, MOST_ROWS), columns, max(1, min(CELL_WIDTH, room // columns)))
    # What rows and columns are, and how many they stand for.
    per_row = "an op" if frame.rows == frame.ops else f"about {frame.ops / frame.rows:.0f} ops"
    per_column = "a step" if frame.columns == frame.steps else f"about {frame.steps / frame.columns:.0f} steps"
    given = sum(step.kind == "given" for step in matrix.steps)
    inputs = f" and {plural(given, 'input')}" if given else ""
    counts = f"{plural(len(matrix.rows) - given, 'op')}{inputs} in {plural(len(matrix.steps), 'step')}"
    lines = [f"placement of {counts}; {per_row} per row, {per_column} per column:"]
    for memory, name in enumerate(matrix.memories):
        devices = [device for device, used in enumerate(matrix.memory_of) if used == memory]
        users = ", ".join(f"{_letter(device)} {matrix.devices[device]}" for device in devices)
        lines += [f"  {style.paint(name, 'strong')}: {users}", *_memory_lines(matrix, memory, frame, style)]
    # What the marks mean that occur.
    glyphs = UNICODE if style.has_unicode else ASCII
    kinds = {step.kind for step in matrix.steps}
    entries = ["capital: computed on the device of that letter"]
    entries += ["small: computed again"] if "recompute" in kinds else []
    entries += [f"{glyphs.copied_in} copied in", f"{glyphs.copied_out} copied out"] if "copy" in kinds else []
    entries += [f"{glyphs.given} given by the caller"] if "given" in kinds else []
    entries += [f"{' '.join(glyphs.shades)} some to all kept" if frame.is_compressed else f"{glyphs.kept} kept"]
    # Entries side by side, as many per line as fit.
    legend = [""]
    for entry in entries:
        longer = f"{legend[-1]}   {entry}" if legend[-1] else f"  {entry}"
        if legend[-1] and len(longer) > style.width:
            legend.append(f"  {entry}")
        else:
            legend[-1] = longer
    return [*lines, "", *legend]


def _margin(matrix: PlacementMatrix) -> int:
    """Width of the names."""
    more = len(MORE) if len(matrix.rows) > MOST_ROWS else 0
    return min(NAME_WIDTH, max((len(name) for name in matrix.rows), default=1)) + more


def _letter(device: int) -> str:
    return string.ascii_uppercase[device % len(string.ascii_uppercase)]


def _memory_lines(matrix: PlacementMatrix, memory: int, frame: _Frame, style: Style) -> list[str]:
    """The rows that say anything, and a ruler below them."""
    glyphs = UNICODE if style.has_unicode else ASCII
    kept: dict[tuple[int, int], int] = defaultdict(int)  # how many steps of lives fall into each row and column
    for row, first, last in {(life.row, life.first, life.last) for life in matrix.lives if life.memory == memory}:
        for column in range(frame.column(first), frame.column(last) + 1):
            start = max(first, -(-column * frame.steps // frame.columns))
            stop = min(last + 1, -(-(column + 1) * frame.steps // frame.columns))
            kept[frame.row(row), column] += stop - start
    marks = _marks(matrix, memory, frame, glyphs)
    margin, lines = _margin(matrix), []
    for row in range(frame.rows):
        cells = [_cell(row, column, frame, marks, kept, glyphs) for column in range(frame.columns)]
        if any(cell is not None for cell in cells):
            more = MORE if frame.rows < frame.ops else ""
            name = f"{shorten(matrix.rows[frame.first_op(row)], NAME_WIDTH) + more:<{margin}}"
            pieces: list[tuple[str, Role | None]] = []
            for cell in cells:
                if cell is None:
                    pieces.append((" " * frame.cell_width, None))
                else:
                    mark, goes_on = cell
                    # What stands between a cell and the next one that is kept.
                    filler = glyphs.kept if goes_on else " "
                    if goes_on and frame.is_compressed:
                        filler = mark.char if mark.char in glyphs.shades else glyphs.shades[0]
                    pieces += [(mark.char, mark.role), (filler * (frame.cell_width - 1), "faint" if goes_on else None)]
            while pieces and pieces[-1][0].isspace():
                pieces.pop()
            lines.append(f"  {name} {'│' if style.has_unicode else '|'}{painted(pieces, style)}".rstrip())
    return [*lines, f"  {'':<{margin}} {_ruler(frame, style)}"] if lines else ["  (nothing)"]


def _marks(matrix: PlacementMatrix, memory: int, frame: _Frame, glyphs: _Glyphs) -> dict[tuple[int, int], _Mark]:
    """What happens in one memory, by row and column: of what matters most, what there is most of."""
    found: dict[tuple[int, int], Counter[_Mark]] = defaultdict(Counter)
    for number, step in enumerate(matrix.steps):
        # How a step shows in one memory: None where it has nothing to do with it.
        role = DEVICE_ROLES[step.device % len(DEVICE_ROLES)]
        if step.kind == "copy" and step.target is not None and matrix.memory_of[step.target] == memory:
            mark = _Mark(3, glyphs.copied_in, "strong")
        elif matrix.memory_of[step.device] != memory:
            mark = None
        elif step.kind == "copy":
            mark = _Mark(2, glyphs.copied_out, "strong")
        elif step.kind == "given":
            mark = _Mark(1, glyphs.given, "faint")
        else:
            letter = _letter(step.device)
            mark = _Mark(5, letter.lower(), role) if step.kind == "recompute" else _Mark(4, letter, role)
        if mark is not None:
            found[frame.row(step.row), frame.column(number)][mark] += 1
    return {place: max(counts, key=lambda mark: (mark.rank, counts[mark])) for place, counts in found.items()}


def _cell(
    row: int,
    column: int,
    frame: _Frame,
    marks: dict[tuple[int, int], _Mark],
    kept: dict[tuple[int, int], int],
    glyphs: _Glyphs,
) -> tuple[_Mark, bool] | None:
    """What a cell shows, and whether it is kept on to the next column."""
    place = row, column
    goes_on = place in kept and (row, column + 1) in kept
    if place in marks:
        return marks[place], goes_on
    if place not in kept:
        return None
    if not frame.is_compressed:
        return _Mark(0, glyphs.kept, "faint"), goes_on
    share = min(1.0, kept[place] / frame.size(row, column))
    return _Mark(0, glyphs.shades[min(2, int(3 * share))], "faint"), goes_on


def _ruler(frame: _Frame, style: Style) -> str:
    """The axis with numbers of steps where there is room."""
    width = frame.columns * frame.cell_width
    cells = list(("─" if style.has_unicode else "-") * width)
    apart = max(1, -(-RULER_GAP // frame.cell_width))
    for column in range(0, frame.columns, apart):
        label, at = str(-(-column * frame.steps // frame.columns)), column * frame.cell_width
        if at + len(label) <= width:
            cells[at : at + len(label)] = label
    return ("└" if style.has_unicode else "+") + "".join(cells)
