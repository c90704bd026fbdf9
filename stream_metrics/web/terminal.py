"""The live page as text: lines where there is no terminal, and a screen made with Rich.

Texts from outside are never read as markup, and what a terminal would take for a command is made visible.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Final

from stream_metrics.web.client import CORRECTED, INCOMPLETE, Known, Row, RunKey

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table
    from rich.text import Text

_CHART_ROWS: Final = 9
_OPEN_ROWS: Final = 5
_LETTER_ROWS: Final = 3
_AXIS: Final = 9
_BARS: Final = " ▁▂▃▄▅▆▇█"
_DOTS: Final = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
_ASCII: Final = {
    ord("–"): "-",
    ord("·"): "|",
    ord("●"): "*",
    ord("▲"): "!",
    ord("◆"): "~",
    ord("…"): "...",
    ord("─"): "-",
}
_BY_ROLLOUT: Final = "bold bright_blue"
_BY_SAMPLE: Final = "yellow"


def visible(text: str, most: int = 80) -> str:
    """Returns a name from outside with all that can't be seen, or that a terminal would obey, made visible."""
    if not text:
        return "(empty)"
    cut = text if len(text) <= most else text[: most - 1] + "…"
    return "".join(
        chr(0x2400 + ord(one))
        if one < " "
        else "\ufffd"
        if unicodedata.category(one)[0] in "CZ" and one != " "
        else one
        for one in cut
    )


def number(value: float | None) -> str:
    if value is None:
        return "–"
    size = abs(value)
    if size and (size < 0.001 or size >= 1e6):
        return f"{value:.2e}"
    return f"{value:.1f}" if size >= 100 else f"{value:.3f}"


def gap(row: Row) -> str:
    by_sample, by_rollout = row["by_sample"], row["by_rollout"]
    if by_sample is None or by_rollout is None:
        return "–"
    return ("+" if by_sample > by_rollout else "") + number(by_sample - by_rollout)


def age(seconds: float) -> str:
    whole = max(0, int(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min" if whole < 172_800 else f"{whole // 86_400} days"


def notes(row: Row, reasons: Sequence[str]) -> str:
    """Returns what is to be said of a closed step, "" for nothing."""
    told = []
    if row["flags"] & INCOMPLETE:
        reason = reasons[row["reason"]] if row["reason"] < len(reasons) else "?"
        told.append(f"▲ incomplete: {visible(reason)}")
    if row["flags"] & CORRECTED:
        told.append(f"◆ corrected, {row['late']} late")
    if row["missing"]:
        told.append(f"{row['missing']} without reward")
    return ", ".join(told)


def line(row: Row, reasons: Sequence[str]) -> str:
    """Returns a closed step as one line."""
    closed = row["closed_unix_s"]
    time = datetime.fromtimestamp(closed).isoformat(" ") if closed >= 0 else "–"
    scope = "" if row["scope"] == "rollout" else f" {visible(row['scope'])}"
    parts = [
        f"{time}  {visible(row['run'])}{scope}",
        f"step {row['step']}",
        f"{row['samples']} samples",
        f"{row['rollouts']} rollouts",
        f"by rollout {number(row['by_rollout'])}",
        f"by sample {number(row['by_sample'])}",
        f"gap {gap(row)}",
        notes(row, reasons),
    ]
    return "  ".join(filter(None, parts))


def letter_line(letter: Row) -> str:
    """Returns a dead letter as one line."""
    where = f"{visible(letter['topic'])}[{visible(letter['partition'])}]@{visible(letter['offset'])}"
    return f"dead letter {where}  {visible(letter['reason'])}: {visible(letter['message'], 200)}"


def plain(text: str) -> str:
    """Returns a text for a terminal without Unicode."""
    return text.translate(_ASCII).encode("ascii", "replace").decode()


def waits_for(row: Row, now_unix_ms: int, grace_seconds: float) -> str:
    """Returns what an open step waits for."""
    if not row["is_closing"]:
        return "samples, and a close marker"
    wants = []
    if row["heard"] < row["producers"]:
        wants.append(f"{row['producers'] - row['heard']} of {row['producers']} close markers")
    if row["expected"] is not None and row["samples"] < row["expected"]:
        wants.append(f"{row['expected'] - row['samples']} samples")
    if row["closing_unix_ms"] is None:
        return " and ".join(wants)
    left = grace_seconds - (now_unix_ms - row["closing_unix_ms"]) / 1000
    return " and ".join(wants) + (f"; closes as it is in about {age(left)}" if left > 0 else "; closing as it is")


class Screen:
    """Draws what is known, in the size the terminal has."""

    def __init__(self, url: str, *, is_unicode: bool) -> None:
        self._url = url
        self._is_unicode = is_unicode

    def draw(
        self, known: Known, selected: RunKey | None, lost: str, now_unix_ms: int, width: int, height: int
    ) -> RenderableType:
        """Returns the whole screen."""
        from rich.console import Group

        rows = [known.steps[step] for step in sorted(known.steps)]
        parts: list[RenderableType] = [self._head(known, selected, lost)]
        left = height - 2
        if selected is None or (not rows and not known.open):
            parts.append(self._text("\n no step has closed yet" if known.share is None and not lost else ""))
        else:
            parts.append(self._title(selected, rows))
            left -= 1
            if rows and left > _CHART_ROWS + 10:
                parts.append(self._chart(rows[-2 * (width - _AXIS) :], width))
                left -= _CHART_ROWS + 3
            below: list[RenderableType] = []
            for place, (part, lines) in (
                (parts, self._open(known, selected, now_unix_ms)),
                (below, self._letters(known)),
            ):
                if lines and left > lines + 5:
                    place.append(part)
                    left -= lines
            if rows:
                parts.append(self._closed(rows[-max(1, left - 2) :], known.reasons))
            parts += below
        foot = self._text(" ↑ ↓ another run   q end" if self._is_unicode else " up/down another run   q end", "dim")
        return Group(*parts, foot)

    def _head(self, known: Known, selected: RunKey | None, lost: str) -> RenderableType:
        if lost:
            state, style = f"no answer: {lost}; trying again", "bold red"
        elif known.trouble:
            state, style = known.trouble, "yellow"
        elif known.share is not None:
            state, style = f"reading the results: {known.share:.0%}", "yellow"
        elif known.not_ready:
            state, style = f"not ready: {known.not_ready}", "yellow"
        else:
            state, style = "live", "green"
        runs = known.newest_runs()
        which = f"run {runs.index(selected) + 1} of {len(runs)}" if selected in runs else f"{len(runs)} runs"
        return self._line(
            (" stream_metrics ", "bold"),
            (f" {self._url}  ", "dim"),
            (f"● {visible(state)}", style),
            (f"   {which}", "dim"),
        )

    def _title(self, selected: RunKey, rows: Sequence[Row]) -> RenderableType:
        parts = [(f" {visible(selected[0], 40)} ", "bold reverse"), (f" {visible(selected[1], 30)}", "dim")]
        if rows:
            last = rows[-1]
            parts += [
                (f"   step {last['step']}", ""),
                (f"   by rollout {number(last['by_rollout'])}", _BY_ROLLOUT),
                (f"   by sample {number(last['by_sample'])}", _BY_SAMPLE),
                (f"   gap {gap(last)}", ""),
            ]
        return self._line(*parts)

    def _chart(self, rows: Sequence[Row], width: int) -> RenderableType:
        """Returns the two rewards as dots, two a column and four a row, and under them the samples as bars."""
        from rich.text import Text

        columns = max(10, width - _AXIS - 1)
        values = [one for row in rows for one in (row["by_rollout"], row["by_sample"]) if one is not None]
        low, high = (min(values), max(values)) if values else (0.0, 1.0)
        if low == high:
            low, high = low - 0.5, high + 0.5
        cells: dict[tuple[int, int], list[int]] = {}
        for series, name in enumerate(("by_sample", "by_rollout")):  # the one that counts is drawn last, over the other
            for x, y in _points([row[name] for row in rows], 2 * columns, 4 * _CHART_ROWS, low, high):
                cell = cells.setdefault((y // 4, x // 2), [0, series])
                if cell[1] != series:
                    cell[:] = [0, series]
                cell[0] |= _DOTS[y % 4][x % 2]
        made = Text()
        for y in range(_CHART_ROWS):
            label = high if y == 0 else low if y == _CHART_ROWS - 1 else None
            made.append(f"{'' if label is None else number(label):>{_AXIS - 1}} ", "dim")
            for x in range(columns):
                dots, series = cells.get((y, x), (0, 0))
                shown = chr(0x2800 + dots) if self._is_unicode else ("*" if series else ".")
                made.append(shown if dots else " ", _BY_ROLLOUT if series else _BY_SAMPLE)
            made.append("\n")
        samples = _columns([row["samples"] for row in rows], columns)
        most = max(samples, default=0) or 1
        bars = "".join(_BARS[max(1, round(one / most * 8)) if one else 0] for one in samples)
        made.append(f"{'samples':>{_AXIS - 1}} ", "dim")
        made.append(bars if self._is_unicode else "".join("#" if one else " " for one in samples), "dim")
        steps = f"step {rows[0]['step']}", f"step {rows[-1]['step']}"
        middle = max(1, columns - len(steps[0]) - len(steps[1]))
        made.append(f"\n{' ' * _AXIS}{steps[0]}{' ' * middle}{steps[1]}\n", "dim")
        return made

    def _open(self, known: Known, selected: RunKey, now_unix_ms: int) -> tuple[RenderableType, int]:
        if not known.open:
            return "", 0
        own = [row for row in known.open if (row["run"], row["scope"]) == selected]
        rows = (own + [row for row in known.open if (row["run"], row["scope"]) != selected])[:_OPEN_ROWS]
        grace = known.hello.get("close_grace_seconds", 0.0)
        table = self._table(f"open steps ({known.open_total})", ">step", ">samples", ">rollouts", ">age", "waits for")
        for row in rows:
            opened = row["opened_unix_ms"]
            of = "" if row["expected"] is None else f" of {row['expected']}"
            table.add_row(
                *map(
                    self._text,
                    (
                        visible(row["run"], 24),
                        str(row["step"]),
                        f"{row['samples']}{of}",
                        str(row["rollouts"]),
                        "–" if opened is None else age((now_unix_ms - opened) / 1000),
                        waits_for(row, now_unix_ms, grace),
                    ),
                )
            )
        return table, len(rows) + 1

    def _closed(self, rows: Sequence[Row], reasons: Sequence[str]) -> RenderableType:
        table = self._table(">closed step", ">samples", ">rollouts", ">by rollout", ">by sample", ">gap", "")
        for row in reversed(rows):
            told = notes(row, reasons)
            table.add_row(
                self._text(str(row["step"])),
                self._text(str(row["samples"])),
                self._text(str(row["rollouts"])),
                self._text(number(row["by_rollout"]), _BY_ROLLOUT),
                self._text(number(row["by_sample"]), _BY_SAMPLE),
                self._text(gap(row)),
                self._text(told, "red" if row["flags"] & INCOMPLETE else "magenta"),
            )
        return table

    def _letters(self, known: Known) -> tuple[RenderableType, int]:
        newest = sorted(known.letters, key=lambda letter: letter["unix_ms"] or 0)[-_LETTER_ROWS:]
        if not newest:
            return "", 0
        from rich.text import Text

        lines = Text(no_wrap=True, overflow="ellipsis", style="red")
        lines.append("\n".join(str(self._text(f" {letter_line(letter)}")) for letter in reversed(newest)))
        return lines, len(newest)

    def _table(self, *heads: str) -> Table:
        from rich.table import Table

        table = Table(box=None, pad_edge=True, header_style="dim")
        for head in heads:
            # The names are ours: markup in them there is none.
            table.add_column(head.lstrip(">"), justify="right" if head[:1] == ">" else "left", no_wrap=True)
        return table

    def _line(self, *parts: tuple[str, str]) -> RenderableType:
        from rich.text import Text

        made = Text(no_wrap=True, overflow="ellipsis")
        for text, style in parts:
            made.append(text if self._is_unicode else plain(text), style)
        return made

    def _text(self, text: str, style: str = "") -> Text:
        from rich.text import Text

        return Text(text if self._is_unicode else plain(text), style=style)


def _points(values: Sequence[float | None], width: int, height: int, low: float, high: float) -> list[tuple[int, int]]:
    """Returns the dots of a line through the values, from the left edge to the right one."""
    made = []
    last: tuple[int, int] | None = None
    for place, value in enumerate(values):
        if value is None:
            last = None
            continue
        x = place * (width - 1) // max(1, len(values) - 1)
        y = round((high - value) / (high - low) * (height - 1))
        if last is None:
            made.append((x, y))
        else:
            length = max(abs(x - last[0]), abs(y - last[1]), 1)
            made += [
                (last[0] + (x - last[0]) * part // length, last[1] + (y - last[1]) * part // length)
                for part in range(1, length + 1)
            ]
        last = (x, y)
    return made


def _columns(values: Sequence[int], width: int) -> list[int]:
    """Returns one value a column: the largest of those that fall into it, or the one whose column it is."""
    count = len(values)
    if not count:
        return []
    if count >= width:
        return [
            max(values[x * count // width : max(x * count // width + 1, (x + 1) * count // width)])
            for x in range(width)
        ]
    return [values[x * count // width] for x in range(width)]
