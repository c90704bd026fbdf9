"""What one run and scope has in memory: its live attempt, its windows, and the floor below which all is forgotten."""

from __future__ import annotations

import heapq
from typing import Final

from stream_metrics.core.lifecycle import State
from stream_metrics.core.replay_note import Floor, floor_bytes, name_hash
from stream_metrics.core.window import Window

MAX_BESIDE: Final = 4
"""Steps forgotten alone that are remembered beside a floor."""


class Track:
    """One run and scope.

    Attributes:
        attempt: The attempt that is alive.
        floor: Newest step of it forgotten in order, -1 for none.
        beside: Steps above the floor forgotten alone, each with the offset of the last event for it.
        windows: The windows in memory by step; all of them of the live attempt.
        closed: How many of the windows are closed.
        last_seen: Offset of the newest event of this run and scope; below 0 for one known from a note only.
        note_bytes: What its floor takes in a note.
        too_late: Events too late since the last one that wasn't.
        whole_from: Windows opened below this offset may have begun in what was lost unread; -1 while any may have.
    """

    __slots__ = (
        "_steps",
        "attempt",
        "beside",
        "closed",
        "floor",
        "last_seen",
        "name",
        "note_bytes",
        "too_late",
        "whole_from",
        "windows",
    )

    def __init__(self, name: int, attempt: int, last_seen: int) -> None:
        self.name = name
        self.attempt = attempt
        self.last_seen = last_seen
        self.floor = -1
        self.beside: dict[int, int] = {}
        self.windows: dict[int, Window] = {}
        self.closed = 0
        self.too_late = 0
        self.whole_from = 0
        self._steps: list[int] = []  # a heap; may hold steps that are no window any more
        self.note_bytes = 0
        self.measure()

    @classmethod
    def named(cls, run_id: str, scope: str, attempt: int, offset: int) -> Track:
        """Returns the track of a run and scope seen for the first time."""
        return cls(name_hash(run_id, scope), attempt, offset)

    @classmethod
    def noted(cls, floor: Floor, last_seen: int) -> Track:
        """Returns the track that a note remembers."""
        track = cls(floor.name, floor.attempt, last_seen)
        track.floor = floor.step
        track.beside = dict.fromkeys(floor.beside, -1)
        track.whole_from = floor.whole_from
        track.measure()
        return track

    def note(self) -> Floor:
        """Returns what a note says of this track."""
        return Floor(self.name, self.attempt, self.floor, tuple(self.beside), self.whole_from)

    def measure(self) -> None:
        """Brings `note_bytes` up to date; to be called after a change of what a floor says."""
        self.note_bytes = floor_bytes(self.note())

    def open(self, window: Window) -> None:
        """Takes a new window."""
        self.windows[window.step] = window
        heapq.heappush(self._steps, window.step)

    def lowest(self) -> Window | None:
        """Returns the window with the lowest step."""
        steps = self._steps
        while steps and steps[0] not in self.windows:
            heapq.heappop(steps)
        return self.windows[steps[0]] if steps else None

    def forget(self, window: Window) -> None:
        """Drops a window, and raises the floor to it or, where lower ones are in memory, keeps its step beside it."""
        is_lowest = self.lowest() is window
        del self.windows[window.step]
        if window.state is State.CLOSED:
            self.closed -= 1
        if is_lowest:
            self.floor = max(self.floor, window.step)
            self.beside = {step: last for step, last in self.beside.items() if step > self.floor}
        else:
            self.beside[window.step] = window.last_offset
        self.become_whole(self.whole_from)

    def raise_attempt(self, attempt: int) -> None:
        """Makes a higher attempt the live one; the windows of the older one must have been forgotten."""
        self.attempt = attempt
        self.floor = -1
        self.beside = {}
        self._steps = []
        self.measure()

    def lose(self) -> None:
        """Takes no window for whole that is opened from here on, until `become_whole`."""
        self.whole_from = -1
        self.measure()

    def may_have_lost(self, first_offset: int) -> bool:
        """Returns whether a window opened there may have begun in what was lost."""
        return self.whole_from < 0 or first_offset < self.whole_from

    def become_whole(self, offset: int) -> None:
        """Takes windows opened from `offset` on for whole."""
        is_needed = offset < 0 or any(window.first_offset < offset for window in self.windows.values())
        self.whole_from = offset if is_needed else 0
        self.measure()
