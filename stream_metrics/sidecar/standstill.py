"""When nothing more can be read of a partition though its log goes on: a producer's transaction stands open in it.

A read_committed consumer is given what lies below the first open transaction and nothing above. That is no error. It
lasts until the transaction ends by its producer or, after 15 minutes at most by default, by the broker.
"""

from __future__ import annotations

from typing import Final

STAND_SECONDS: Final = 10.0


class Standstill:
    """Watches one partition."""

    def __init__(self) -> None:
        self._next_offset = -1
        self._since = 0.0
        self.is_said = False

    def look(self, next_offset: int, waiting: int, now: float) -> bool | None:
        """Returns True when it is to be said that the partition stands still, False that it goes on again; else None.

        Args:
            next_offset: Offset to read next, all below it having been read.
            waiting: How many offsets the log has from there on; 0 too where it can't be known.
            now: Monotonic seconds.
        """
        if next_offset != self._next_offset or not waiting:
            self._next_offset, self._since = next_offset, now
            was_said, self.is_said = self.is_said, False
            return False if was_said else None
        if self.is_said or now - self._since < STAND_SECONDS:
            return None
        self.is_said = True
        return True
