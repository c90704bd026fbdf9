"""When a step has waited too long. Decides only when a timeout marker is written, never what comes of it.

Time is passed in. A window's age starts from its newest record's timestamp where that is a clock's, so that a restart
doesn't begin the wait anew; from then on the monotonic clock counts, so that a wall clock that jumps doesn't matter.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from stream_metrics.core.fold import Fold
from stream_metrics.core.lifecycle import State
from stream_metrics.core.window import Window
from stream_metrics.events import CloseReason, StepClose


class _Wait(msgspec.Struct):
    state: State
    last_offset: int
    since: float
    is_asked: bool = False


class Timers:
    """The waits of one partition's windows.

    Args:
        idle_timeout_seconds: How long an open window waits for its next event.
        close_grace_seconds: How long a closing one waits, from its first close marker, for what is missing.
    """

    def __init__(self, idle_timeout_seconds: float, close_grace_seconds: float) -> None:
        self._idle_timeout = idle_timeout_seconds
        self._close_grace = close_grace_seconds
        self._waits: dict[int, _Wait] = {}
        self._is_first_look = True

    def due(self, fold: Fold, now: float, now_unix_ms: int) -> list[Window]:
        """Returns the windows that have waited too long, each once until something new is in it.

        Args:
            fold: The partition's fold, caught up with the log.
            now: Monotonic seconds.
            now_unix_ms: Wall clock, used only for windows that were there at the first look.
        """
        return list(self._look(fold, now, now_unix_ms))

    def ask_again(self) -> None:
        """Forgets what was asked for: the markers weren't written."""
        for wait in self._waits.values():
            wait.is_asked = False

    def _look(self, fold: Fold, now: float, now_unix_ms: int) -> Iterator[Window]:
        waits = {}
        for window in fold.open_windows():
            wait = self._waits.get(window.first_offset)
            is_closing = window.state is State.CLOSING
            if wait is None or wait.state is not window.state:
                unix_ms = window.closing_unix_ms if is_closing else window.last_unix_ms
                wait = _Wait(window.state, window.last_offset, now - self._age(unix_ms, now_unix_ms))
            elif wait.last_offset != window.last_offset:
                wait.last_offset = window.last_offset
                wait.is_asked = False
                if not is_closing:
                    wait.since = now
            waits[window.first_offset] = wait
            limit = self._close_grace if is_closing else self._idle_timeout
            if not wait.is_asked and now - wait.since >= limit:
                wait.is_asked = True
                yield window
        self._waits = waits
        self._is_first_look = False

    def _age(self, unix_ms: int | None, now_unix_ms: int) -> float:
        """Seconds since a record's timestamp at the first look; 0.0 for one from the future, and for later looks."""
        if not self._is_first_look or unix_ms is None:
            return 0.0
        return max(0.0, (now_unix_ms - unix_ms) / 1000)


def marker(window: Window, reason: CloseReason) -> StepClose:
    """Returns the marker that ends a window's wait.

    A timeout names the newest offset seen, so that it does nothing where something newer has come meanwhile. After a
    loss of data nothing that comes can make the step whole again, so that marker always acts.
    """
    return StepClose(
        run_id=window.run_id,
        scope=window.scope,
        step=window.step,
        attempt=window.attempt,
        reason=reason,
        seen_offset=window.last_offset if reason == "timeout" else None,
    )
