"""What is said of a loop that has stopped turning, by looks that a test counts."""

from __future__ import annotations

import io
import threading

from stream_metrics.sidecar.watchdog import _LOOKS, Watchdog


def _watch(turns: list[int]) -> None:
    """Lets a watchdog look once at each of these, the first being what it sees at the start."""
    left = iter(turns)
    Watchdog(lambda: float(next(left)), iter([False] * (len(turns) - 1) + [True]).__next__).watch()


def _watch_from_another_thread(turns: list[int]) -> None:
    watching = threading.Thread(target=_watch, args=(turns,))
    watching.start()
    watching.join()


def _loop_that_hangs(has_come: threading.Event, may_go: threading.Event) -> None:
    has_come.set()
    may_go.wait(60)


def test_a_loop_that_stands_still_is_shown_with_where_it_stands(said: io.StringIO) -> None:
    has_come, may_go = threading.Event(), threading.Event()
    loop = threading.Thread(target=_loop_that_hangs, args=(has_come, may_go), name="stuck-loop")
    loop.start()
    has_come.wait(60)
    try:
        _watch([7] * (_LOOKS + 1))
    finally:
        may_go.set()
        loop.join()
    (line,) = (line for line in said.getvalue().splitlines() if "stuck-loop" in line)
    assert " error " in line
    assert "test_watchdog.py" in line and "_loop_that_hangs > threading.py" in line


def test_it_is_said_once_and_again_only_after_the_loop_has_turned(said: io.StringIO) -> None:
    def times() -> int:
        return said.getvalue().count("thread MainThread")

    _watch_from_another_thread([7] * (5 * _LOOKS))
    assert times() == 1
    _watch_from_another_thread([7] * (_LOOKS + 1) + [8] * (_LOOKS + 1))
    assert times() == 3


def test_a_loop_that_turns_is_left_alone(said: io.StringIO) -> None:
    _watch([7] * _LOOKS + [8] * _LOOKS)
    assert said.getvalue() == ""
