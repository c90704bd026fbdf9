"""What the page and `watch` show: closed steps of all runs, open steps of this replica, the newest dead letters.

- A view, not a source: it is filled from the topics and may be thrown away at any time.
- Bounded: `MAX_STEPS` results in all, those of the run unseen for longest go first. A step takes about 80 bytes.
- A viewer asks for what is new since it last asked. So a slow one costs nothing but a larger answer, and none has a
  queue here.
- Forgiving where the wire contract is strict: a result of a newer version, with fields or reasons not known here, is
  shown by what is known of it.
"""

from __future__ import annotations

import functools
import math
import threading
from array import array
from bisect import bisect_left
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from types import SimpleNamespace
from typing import Annotated, Any, Final

import msgspec

from stream_metrics.core.lifecycle import State
from stream_metrics.core.window import Window
from stream_metrics.events import MAX_INTEGER

MAX_STEPS: Final = 200_000
MAX_SERIES: Final = 10_000
MAX_LETTERS: Final = 200
MAX_OPEN: Final = 500
"""Open steps that are handed over: half of them the oldest, half the newest."""

_MAX_CHANGES: Final = 10_000
"""Changes remembered for viewers; one that is further behind gets everything again."""

_PART: Final = 10_000
"""Steps told at a time: more would make a hundred thousand objects at once, and hold up the aggregation meanwhile."""

_MAX_REASONS: Final = 32
_MAX_TEXT: Final = 512
_LAST_UNIX_MS: Final = 253_402_300_799_999  # year 9999
_DIGITS: Final = ".7g"
"""More than anybody sees in a chart, and half of what a double takes on the wire."""

_CORRECTED: Final = 1
_INCOMPLETE: Final = 2

_Whole = Annotated[int, msgspec.Meta(ge=0, le=MAX_INTEGER)]

News = tuple[str, dict[str, Any]]


class _Result(msgspec.Struct, gc=False):
    """What is read of a result; `reason` is any word, and the metrics are whatever a newer version makes of them."""

    type: str
    run_id: str
    scope: str
    step: _Whole
    attempt: _Whole = 0
    complete: bool = True
    reason: str = ""
    correction: bool = False
    late_samples: _Whole = 0
    closed_unix_ms: int | None = None
    metrics: msgspec.Raw = msgspec.Raw(b"{}")


_decode = msgspec.json.Decoder(_Result).decode

_METRICS: Final = ("num_training_samples", "num_rollouts", "episode_raw_reward", "raw_reward", "missing_rewards")


@functools.lru_cache(maxsize=256)
def _metrics_decoder(scope: str) -> Callable[[msgspec.Raw], Any]:
    """Returns what finds a scope's few metrics among the many of a result, without making objects of the others."""
    names = {name: f"{scope}/{name}" for name in _METRICS}
    kind = msgspec.defstruct("Metrics", [(name, Any, None) for name in _METRICS], rename=names)
    return msgspec.json.Decoder(kind).decode


COLUMNS: Final = (
    ("step", "q"),
    ("attempt", "q"),
    ("samples", "q"),
    ("rollouts", "q"),
    ("by_rollout", "d"),
    ("by_sample", "d"),
    ("flags", "b"),
    ("reason", "b"),
    ("late", "q"),
    ("missing", "q"),
    ("closed_unix_s", "q"),
)
"""What is kept of a closed step. `flags`: 1 for a correction, 2 for an incomplete step; -1 is an unknown time."""

_ATTEMPT: Final = 1


class Series:
    """The closed steps of one run and scope, in columns, ordered by step."""

    __slots__ = ("columns", "key")

    def __init__(self, key: tuple[str, str]) -> None:
        self.key = key
        self.columns: tuple[array[Any], ...] = tuple(array(code) for _, code in COLUMNS)

    def __len__(self) -> int:
        return len(self.columns[0])

    def put(self, row: tuple[Any, ...]) -> int | None:
        """Takes a step's newest result and returns by how much the series grew; None for one of an older attempt."""
        steps = self.columns[0]
        if not steps or row[0] > steps[-1]:
            for column, item in zip(self.columns, row, strict=True):
                column.append(item)
            return 1
        place = bisect_left(steps, row[0])
        if steps[place] != row[0]:
            for column, item in zip(self.columns, row, strict=True):
                column.insert(place, item)
            return 1
        if row[_ATTEMPT] < self.columns[_ATTEMPT][place]:
            return None
        for column, item in zip(self.columns, row, strict=True):
            column[place] = item
        return 0

    def drop(self, count: int) -> None:
        """Drops the lowest steps."""
        for column in self.columns:
            del column[:count]

    def before(self, step: int | None, count: int) -> dict[str, list[Any]]:
        """Returns so many steps at most, the highest below one or, for None, of all, as columns by name."""
        end = len(self) if step is None else bisect_left(self.columns[0], step)
        start = max(0, end - count)
        return {name: column[start:end].tolist() for (name, _), column in zip(COLUMNS, self.columns, strict=True)}

    def some(self, steps: Iterable[int]) -> dict[str, list[Any]]:
        """Returns some steps, those that are gone left out, as columns by name."""
        own = self.columns[0]
        places = [place for step in steps if (place := bisect_left(own, step)) < len(own) and own[place] == step]
        return {
            name: [column[place] for place in places] for (name, _), column in zip(COLUMNS, self.columns, strict=True)
        }

    def last(self) -> list[Any]:
        """Returns the row of the highest step."""
        return [column[-1] for column in self.columns]


class Viewer:
    """What one viewer has been shown.

    Args:
        selection: The run and scope whose steps it wants, or None.
        is_all: It wants the steps of all runs that close from now on.
        count: How many of the steps that have closed it wants, the newest.
    """

    def __init__(
        self, selection: tuple[str, str] | None = None, *, is_all: bool = False, count: int = MAX_STEPS
    ) -> None:
        self.selection = selection
        self.is_all = is_all
        self.count = count
        self.epoch = -1
        self.change = -1
        self.open = -1
        self.letters = -1
        self.progress: Any = None
        self.is_owed = False
        """Whether there are older steps it wants."""
        self._told = 0
        self._lowest: int | None = None

    def begin(self) -> None:
        """All steps it wants are owed to it."""
        self.is_owed, self._told, self._lowest = True, 0, None

    def next_part(self, series: Series) -> dict[str, list[Any]]:
        """Returns the next older steps that are owed."""
        columns = series.before(self._lowest, min(_PART, self.count - self._told))
        steps = columns["step"]
        self._told += len(steps)
        self._lowest = steps[0] if steps else None
        self.is_owed = bool(steps) and self._told < self.count and steps[0] > series.columns[0][0]
        return columns


class Board:
    """The view. Every method but `look` needs no more than a moment, and any thread may call it."""

    def __init__(self) -> None:
        self._lock = threading.Condition()
        self._open_rows: list[list[Any]] = []
        self._open_total = 0
        self._open_number = 0
        self._letters_number = 0
        self._epoch = 0
        self._change = 0
        self._is_closed = False
        self.is_watched = False
        """Whether there is anybody to look; where not, nothing need be handed over."""
        self.clear()

    def clear(self) -> None:
        """Forgets all that came from the topics."""
        with self._lock:
            self._series: OrderedDict[tuple[str, str], Series] = OrderedDict()  # the one changed last is last
            self._num_steps = 0
            self._changes: deque[tuple[int, Series, int]] = deque(maxlen=_MAX_CHANGES)
            self._letters: deque[dict[str, Any]] = deque(maxlen=MAX_LETTERS)
            self._letters_number += 1
            self._reasons: list[str] = []
            self._trouble = ""
            self._share: float | None = 0.0
            self._unreadable = 0
            self._forgotten = 0
            self._begin_epoch()

    # --- what feeds it -------------------------------------------------------------------------------------------

    def take_results(self, values: Iterable[bytes]) -> None:
        """Takes records of the output topic, in its order."""
        with self._lock:
            closed = {self._take(value) for value in values}
            self._drop_closed(closed)
            self._make_room()
            self._lock.notify_all()

    def _take(self, value: bytes) -> tuple[Any, ...] | None:
        """Takes one record and returns the run, scope, step and attempt of its result."""
        try:
            result = _decode(value)
            row = self._row(result)
        except (msgspec.MsgspecError, RecursionError, ValueError, AttributeError):
            result = None
        if result is None or result.type != "step_metrics":
            self._unreadable += 1
            return None
        key = (result.run_id, result.scope)
        series = self._series.get(key)
        if series is None:
            series = self._series[key] = Series(key)
        else:
            self._series.move_to_end(key)
        grown = series.put(row)
        if grown is not None:
            self._num_steps += grown
            self._change += 1
            self._changes.append((self._change, series, result.step))
        return (*key, result.step, result.attempt)

    def _drop_closed(self, closed: set[tuple[Any, ...] | None]) -> None:
        """What has closed isn't open any more, though what was handed over may be a second old."""
        rows = [row for row in self._open_rows if tuple(row[:4]) not in closed]
        if len(rows) < len(self._open_rows):
            self._open_total -= len(self._open_rows) - len(rows)
            self._open_rows = rows
            self._open_number += 1

    def _row(self, result: _Result) -> tuple[Any, ...]:
        metrics = _metrics(result)
        closed = result.closed_unix_ms
        return (
            result.step,
            result.attempt,
            _count(metrics.num_training_samples),
            _count(metrics.num_rollouts),
            _number(metrics.episode_raw_reward),
            _number(metrics.raw_reward),
            _CORRECTED * result.correction | _INCOMPLETE * (not result.complete),
            self._reason(result.reason),
            result.late_samples,
            _count(metrics.missing_rewards),
            -1 if closed is None or not 0 <= closed <= _LAST_UNIX_MS else closed // 1000,
        )

    def _reason(self, reason: str) -> int:
        """Returns the number of a reason; those past a bound are `other`."""
        reason = reason[:_MAX_TEXT]
        if reason not in self._reasons:
            if len(self._reasons) >= _MAX_REASONS:
                reason = "other"
            if reason not in self._reasons:
                self._reasons.append(reason)
        return self._reasons.index(reason)

    def _make_room(self) -> None:
        while self._num_steps > MAX_STEPS or len(self._series) > MAX_SERIES:
            key, series = next(iter(self._series.items()))
            # Some more than it must, since all viewers get everything again.
            excess = max(self._num_steps - MAX_STEPS, MAX_STEPS // 10)
            if excess < len(series) and len(self._series) <= MAX_SERIES:
                series.drop(excess)
            else:
                excess = len(series)
                del self._series[key]
            self._num_steps -= excess
            self._forgotten += excess
            self._begin_epoch()

    def _begin_epoch(self) -> None:
        """All viewers get everything again."""
        self._epoch += 1
        self._changes.clear()
        self._lock.notify_all()

    def take_letter(self, headers: Iterable[tuple[str, bytes | None]], unix_ms: int | None, prefix: str) -> None:
        """Takes a dead letter by the headers that say where it was and what is wrong with it."""
        told = {name.removeprefix(prefix): _text(value) for name, value in headers if name.startswith(prefix)}
        letter = {
            name: told.get(name, "") for name in ("reason", "error", "message", "topic", "partition", "offset")
        } | {"unix_ms": unix_ms}
        with self._lock:
            self._letters.append(letter)
            self._letters_number += 1
            self._lock.notify_all()

    def take_open(self, windows: list[Window]) -> None:
        """Takes the open windows of this replica, oldest first; to be called by who owns them, now and then."""
        if not self.is_watched:
            return
        half = MAX_OPEN // 2
        shown = windows if len(windows) <= MAX_OPEN else [*windows[:half], *islice(windows, len(windows) - half, None)]
        rows = [_open_row(window) for window in shown]
        if rows == self._open_rows and len(windows) == self._open_total:
            return
        with self._lock:
            self._open_rows, self._open_total = rows, len(windows)
            self._open_number += 1
            self._lock.notify_all()

    def tell(self, *, share: float | None, trouble: str) -> None:
        """Notes how much of the topics has been read, None for all of it, and what is in the way."""
        with self._lock:
            if (share, trouble) != (self._share, self._trouble):
                self._share, self._trouble = share, trouble
                self._lock.notify_all()

    # --- what is asked of it -------------------------------------------------------------------------------------

    def wait(self, viewer: Viewer, seconds: float) -> None:
        """Returns once there may be news for a viewer, or the time is over."""
        with self._lock:
            self._lock.wait_for(lambda: self._is_closed or self._has_news(viewer), seconds)

    def close(self) -> None:
        """Nobody waits any more."""
        with self._lock:
            self._is_closed = True
            self._lock.notify_all()

    def _has_news(self, viewer: Viewer) -> bool:
        if viewer.open != self._open_number or viewer.progress != (self._share, self._trouble):
            return True
        return self._share is None and (
            viewer.is_owed
            or viewer.epoch != self._epoch
            or viewer.change != self._change
            or viewer.letters != self._letters_number
        )

    def look(self, viewer: Viewer) -> list[News]:
        """Returns what is new for a viewer, by name, and notes that it has been shown.

        While the topics are read for the first time only that is told: else the same steps would go out over and over.
        """
        with self._lock:
            return list(self._news(viewer))

    def _news(self, viewer: Viewer) -> Iterator[News]:
        if viewer.progress != (self._share, self._trouble):
            viewer.progress = (self._share, self._trouble)
            yield "progress", {"share": self._share, "trouble": self._trouble}
        if viewer.open != self._open_number:
            viewer.open = self._open_number
            yield "open_steps", {"total": self._open_total, "rows": self._open_rows}
        if self._share is not None:
            return
        if viewer.letters != self._letters_number:
            viewer.letters = self._letters_number
            yield "letters", {"rows": list(self._letters)}
        if viewer.change != self._change or viewer.epoch != self._epoch:
            oldest = self._changes[0][0] if self._changes else self._change + 1
            is_whole = viewer.epoch != self._epoch or viewer.change < oldest - 1
            changed: dict[Series, set[int]] = {}
            if not is_whole:
                for change, series, step in reversed(self._changes):
                    if change <= viewer.change:
                        break
                    changed.setdefault(series, set()).add(step)
            viewer.epoch, viewer.change = self._epoch, self._change
            yield self._runs(self._series.values() if is_whole else changed, is_whole=is_whole)
            yield from self._steps(viewer, changed, is_whole=is_whole)
        elif viewer.is_owed and viewer.selection is not None:
            one = self._series.get(viewer.selection)
            if one is None:
                viewer.is_owed = False
            else:
                yield _steps_of(one, viewer.next_part(one), is_whole=False)

    def _runs(self, series: Iterable[Series], *, is_whole: bool) -> News:
        rows = [[*one.key, len(one), *one.last()] for one in series]
        return "runs", {
            "whole": is_whole,
            "rows": rows,
            "reasons": self._reasons,
            "steps": self._num_steps,
            "forgotten": self._forgotten,
            "unreadable": self._unreadable,
        }

    def _steps(self, viewer: Viewer, changed: dict[Series, set[int]], *, is_whole: bool) -> Iterator[News]:
        if viewer.is_all:
            for series, steps in changed.items():
                yield _steps_of(series, series.some(sorted(steps)), is_whole=False)
        elif viewer.selection is not None:
            one = self._series.get(viewer.selection)
            if is_whole:
                one = one or Series(viewer.selection)
                viewer.begin()
                yield _steps_of(one, viewer.next_part(one), is_whole=True)
            elif one in changed:
                yield _steps_of(one, one.some(sorted(changed[one])), is_whole=False)


def _steps_of(series: Series, columns: dict[str, list[Any]], *, is_whole: bool) -> News:
    return "steps", {"run": series.key[0], "scope": series.key[1], "whole": is_whole, "columns": columns}


OPEN_COLUMNS: Final = (
    "run",
    "scope",
    "step",
    "attempt",
    "is_closing",
    "samples",
    "rollouts",
    "groups",
    "expected",
    "heard",
    "producers",
    "opened_unix_ms",
    "last_unix_ms",
    "closing_unix_ms",
)


def _open_row(window: Window) -> list[Any]:
    columns = window.columns
    return [
        window.run_id,
        window.scope,
        window.step,
        window.attempt,
        window.state is State.CLOSING,
        len(columns),
        len(columns.rollout_group),
        len(columns.groups),
        window.expected_samples,
        len(window.heard),
        window.producers,
        window.opened_unix_ms,
        window.last_unix_ms,
        window.closing_unix_ms,
    ]


def _metrics(result: _Result) -> Any:
    try:
        return _metrics_decoder(result.scope)(result.metrics)
    except ValueError:  # msgspec gives a field no name with quotes, backslashes or control characters
        found = msgspec.json.decode(result.metrics)
        return SimpleNamespace(**{name: found.get(f"{result.scope}/{name}") for name in _METRICS})


def _count(item: Any) -> int:
    return int(min(max(item, 0), MAX_INTEGER)) if isinstance(item, int | float) and item == item else 0


def _number(item: Any) -> float:
    """Returns a metric to seven digits; NaN, which goes out as null, for one that is no number."""
    if isinstance(item, bool) or not isinstance(item, int | float):
        return math.nan
    try:
        return float(format(item, _DIGITS))
    except (OverflowError, ValueError):
        return math.nan


def _text(value: bytes | None) -> str:
    return (value or b"").decode("utf-8", "replace")[:_MAX_TEXT]
