"""Says where each thread stands once the loop has stopped turning: who kills the process then kills the evidence."""

from __future__ import annotations

import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Final

from stream_metrics.sidecar import logs
from stream_metrics.sidecar.health import STUCK_SECONDS

LOOK_SECONDS: Final = 1.0
_LOOKS: Final = int(STUCK_SECONDS / LOOK_SECONDS)
_MAX_FRAMES: Final = 20
"""The innermost ones of a thread; they tell what it waits for."""


class Watchdog:
    """A thread that looks at the loop's turns.

    It counts its own looks and no clock: after a process has been stopped as a whole, the loop is given its time.

    Args:
        turns: Returns something that changes with each turn of the loop.
        pause: Waits between two looks; returns whether to end, which by default it never does.
    """

    def __init__(self, turns: Callable[[], float], pause: Callable[[], bool] | None = None) -> None:
        self._turns = turns
        self._pause = pause or _sleep

    def start(self) -> None:
        """Begins to look, until the process ends."""
        threading.Thread(target=self.watch, name="watchdog", daemon=True).start()

    def watch(self) -> None:
        """Looks until told to end; says the stacks once for each time that the loop stands still."""
        seen, looks = self._turns(), 0
        while not self._pause():
            turns = self._turns()
            looks = looks + 1 if turns == seen else 0
            seen = turns
            if looks == _LOOKS:
                say_stacks(f"the loop hasn't turned for {STUCK_SECONDS:.0f} s")


def _sleep() -> bool:
    time.sleep(LOOK_SECONDS)
    return False


def say_stacks(why: str) -> None:
    """Logs where each thread but the calling one stands.

    Args:
        why: What begins each line.
    """
    for name, stack in _stacks():
        logs.error(f"{why}: thread {name} stands here", stack=stack)


def _stacks() -> Iterator[tuple[str, str]]:
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    for ident, frame in sys._current_frames().items():
        if ident != threading.get_ident():
            frames = traceback.extract_stack(frame)[-_MAX_FRAMES:]
            told = (f"{one.filename.rpartition('/')[2]}:{one.lineno} {one.name}" for one in frames)
            yield names.get(ident, str(ident)), " > ".join(told)
