"""Whether the loop turns, whether it is caught up, and whether what it reads is any good."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Final

import msgspec

STUCK_SECONDS: Final = 30.0
"""A loop that hasn't turned for so long is stuck: no call of it takes more than some seconds."""

SLOW_COMMIT_SECONDS: Final = 5.0
"""A transaction takes milliseconds; one that takes so long waits for a broker that hangs without hanging up."""

FLOOD_SECONDS: Final = 60.0
_FLOOD_RECORDS: Final = 20
"""So few records say nothing about the share of dead letters."""


class Health:
    """What `/healthz` and `/readyz` answer. Written by the loop, read by the server's thread.

    Args:
        dead_letter_limit: Share of dead letters among the records of the last minute that is too much.
        clock: Monotonic seconds.

    Attributes:
        turned_at: When the loop last turned, by the clock.
        not_ready: Why results can't be expected now, as the loop knows it; empty where they can.
        is_broker_away: Whether the client has lost all brokers and none has answered since.
    """

    def __init__(self, dead_letter_limit: float, clock: Callable[[], float]) -> None:
        self._limit = dead_letter_limit
        self._clock = clock
        self.turned_at = clock()
        self._seconds: deque[tuple[float, int, int]] = deque()
        self._busy_since: float | None = None
        self.not_ready = "starting"
        self.is_broker_away = False

    @property
    def is_committing(self) -> bool:
        """Whether a transaction is under way."""
        return self._busy_since is not None

    def begin_commit(self) -> None:
        """Notes that a transaction begins."""
        self._busy_since = self._clock()

    def end_commit(self) -> None:
        """Notes that a transaction has ended, one way or the other."""
        self._busy_since = None

    def turn(self) -> None:
        """Notes that the loop is alive."""
        self.turned_at = self._clock()

    def count(self, records: int, dead_letters: int) -> None:
        """Notes what was read."""
        now = self._clock()
        seconds = self._seconds
        if seconds and now < seconds[-1][0] + 1:  # a busy loop turns a thousand times a second
            at, before, bad_before = seconds[-1]
            seconds[-1] = (at, before + records, bad_before + dead_letters)
        else:
            seconds.append((now, records, dead_letters))
        while seconds[0][0] < now - FLOOD_SECONDS:
            seconds.popleft()

    def flood(self) -> float | None:
        """Returns the share of dead letters in the last minute where it is over the limit."""
        records = dead_letters = 0
        for at, count, bad in tuple(self._seconds):
            if at >= self._clock() - FLOOD_SECONDS:
                records += count
                dead_letters += bad
        share = dead_letters / records if records else 0.0
        return share if dead_letters >= _FLOOD_RECORDS and share > self._limit else None

    def alive(self) -> tuple[bool, bytes]:
        """Returns whether the process is worth keeping, and why not."""
        silent = self._clock() - self.turned_at
        if silent > STUCK_SECONDS:
            return _answer(False, f"the loop hasn't turned for {silent:.0f} s")
        share = self.flood()
        if share is not None:
            return _answer(False, f"{share:.0%} of the last minute's records were dead letters")
        return _answer(True, "")

    def why_not_ready(self) -> str:
        """Returns why results can't be expected from here now, empty where they can."""
        if self.is_broker_away:
            return "the broker is away"
        since = self._busy_since
        busy = 0.0 if since is None else self._clock() - since
        if busy > SLOW_COMMIT_SECONDS:
            return f"a transaction has been waiting for the broker for {busy:.0f} s"
        return self.not_ready

    def ready(self) -> tuple[bool, bytes]:
        """Returns whether results can be expected from here now, and why not."""
        why_not = self.why_not_ready()
        return _answer(not why_not, why_not)


def _answer(is_good: bool, why: str) -> tuple[bool, bytes]:
    body: dict[str, Any] = {"status": "ok" if is_good else "failing"}
    if why:
        body["reason"] = why
    return is_good, msgspec.json.encode(body) + b"\n"
