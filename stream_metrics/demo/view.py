"""The live table of closed steps, and the same as plain lines where there is no terminal.

Rows come in the order of the output topic; a correction is a row of its own and says so. Texts from outside are never
read as markup: they are only ever put into `Text`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import IO, Final

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from stream_metrics.events import StepMetrics

BAR_WIDTH: Final = 8
BAR_GAP: Final = 0.30
"""The gap that fills a side of the bar."""

_SLIGHT_GAP: Final = 0.03
_LARGE_GAP: Final = 0.10
_ROWS_AROUND: Final = 9
"""Lines of the screen that the table's frame and the status take."""


@dataclass(frozen=True, slots=True)
class Row:
    """What a result says, as the table shows it."""

    step: int
    samples: int
    rollouts: int
    by_sample: float | None
    by_rollout: float
    is_correction: bool
    note: str

    @property
    def gap(self) -> float:
        """How much the mean over samples is above the mean over rollouts."""
        return 0.0 if self.by_sample is None else self.by_sample - self.by_rollout


def row_of(result: StepMetrics) -> Row:
    """Returns the row that shows a result."""

    def metric(name: str) -> int | float | None:
        return result.metrics.get(f"{result.scope}/{name}")

    notes = []
    if result.correction:
        notes.append(f"correction +{result.late_samples}")
    if not result.complete:
        notes.append(f"incomplete: {result.reason}")
    missing = metric("missing_rewards")
    if missing and not result.correction:
        notes.append(f"{missing} unrewarded")
    return Row(
        step=result.step,
        samples=int(metric("num_training_samples") or 0),
        rollouts=int(metric("num_rollouts") or 0),
        by_sample=metric("raw_reward"),
        by_rollout=float(metric("episode_raw_reward") or 0.0),
        is_correction=result.correction,
        note=", ".join(notes),
    )


def gap_bar(gap: float, full: str = "█") -> str:
    """Returns a bar from the middle, to the left where the mean over samples reads too low."""
    length = min(BAR_WIDTH, round(abs(gap) / BAR_GAP * BAR_WIDTH))
    left, right = (length, 0) if gap < 0 else (0, length)
    return (full * left).rjust(BAR_WIDTH) + "│" + (full * right).ljust(BAR_WIDTH)


class View:
    """Shows rows and a status line on a console; use it as a context.

    Args:
        stream: Where to write.
    """

    def __init__(self, stream: IO[str]) -> None:
        self.console = Console(file=stream, highlight=False, markup=False, emoji=False)
        self._is_live = self.console.is_terminal and not self.console.is_dumb_terminal
        encoding = (getattr(stream, "encoding", None) or "ascii").lower().replace("-", "")
        self._is_unicode = encoding.startswith("utf")
        self._rows: list[Row] = []
        self._spinner = Spinner("dots" if self._is_unicode else "line", text=Text(""))
        self._live: Live | None = None
        self._is_headed = False

    def __enter__(self) -> View:
        if self._is_live:
            self._live = Live(
                get_renderable=self._screen, console=self.console, refresh_per_second=10, transient=True
            ).__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        if self._live is not None:
            self._live.__exit__(None, None, None)
            self._live = None
            if self._rows:  # the whole of it stays on the screen
                self.console.print(self._table(self._rows))

    def say(self, text: str, style: str = "") -> None:
        """Writes a paragraph above the table."""
        self.console.print(Text(self._plain(text), style=style), soft_wrap=not self._is_live)

    def status(self, text: str) -> None:
        """Shows what is going on now; plain output leaves it out."""
        self._spinner.update(text=Text(self._plain(text)))

    def add(self, row: Row) -> None:
        """Shows one more row."""
        self._rows.append(row)
        if not self._is_live:
            if not self._is_headed:
                self._is_headed = True
                for heads in zip(*_HEADS, strict=True):
                    self._line(heads)
            self._line(_cells(row))

    def _screen(self) -> RenderableType:
        if not self._rows:
            return self._spinner
        room = max(3, self.console.height - _ROWS_AROUND)
        return Group(self._table(self._rows[-room:]), self._spinner)

    def _table(self, rows: Sequence[Row]) -> Table:
        table = Table(pad_edge=False, box=None, header_style="bold", padding=(0, 1, 0, 0))
        for number, (above, below) in enumerate(_HEADS):
            # A bar must be to the left: anywhere else its blanks are stripped.
            is_number = number < _NUMBERS
            table.add_column(
                Text(self._plain(f"{above}\n{below}")), justify="right" if is_number else "left", no_wrap=True
            )
        for row in rows:
            step, samples, rollouts, by_sample, by_rollout, gap, bar, note = map(self._plain, _cells(row))
            colour = _colour(row.gap)
            table.add_row(
                Text(step),
                Text(samples),
                Text(rollouts),
                Text(by_sample, style=colour),
                Text(by_rollout, style="bold"),
                Text(gap, style=colour),
                Text(bar, style=colour),
                Text(note, style="cyan" if row.is_correction else "dim"),
                style="cyan" if row.is_correction else "",
            )
        return table

    def _line(self, cells: Sequence[str]) -> None:
        line = " ".join(cell.rjust(width) if width else cell for cell, width in zip(cells, _WIDTHS, strict=True))
        self.console.print(Text(self._plain(line.rstrip())), soft_wrap=True)

    def _plain(self, text: str) -> str:
        return text if self._is_unicode else text.translate(_ASCII)


# Narrow enough for a terminal of 80 columns; the last one takes what is left.
_HEADS: Final = (
    ("", "step"),
    ("", "samples"),
    ("", "rollouts"),
    ("reward by", "sample"),
    ("reward by", "rollout"),
    ("", "gap"),
    (" by sample reads ", " too low│too high"),
    ("", ""),
)
_NUMBERS: Final = 6
"""So many columns, from the first, hold numbers."""

_WIDTHS: Final = (4, 7, 8, 9, 9, 6, 2 * BAR_WIDTH + 1, 0)
_ASCII: Final = {ord("█"): "#", ord("│"): "|", ord("×"): "x", ord("→"): "->", ord("−"): "-", ord("…"): "..."}


def _cells(row: Row) -> tuple[str, ...]:
    return (
        str(row.step),
        str(row.samples),
        str(row.rollouts),
        "" if row.by_sample is None else f"{row.by_sample:.3f}",
        f"{row.by_rollout:.3f}",
        f"{row.gap:+.3f}",
        gap_bar(row.gap),
        row.note,
    )


def _colour(gap: float) -> str:
    return "green" if abs(gap) < _SLIGHT_GAP else "yellow" if abs(gap) < _LARGE_GAP else "red"
