"""The state of one (run_id, scope, attempt, step): its samples, its close markers, and what they make of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from stream_metrics.core.columns import Columns
from stream_metrics.core.lifecycle import Happening, State, after
from stream_metrics.core.settings import FoldSettings
from stream_metrics.events import Identifier, ResultReason, SampleFields, StepClose

_OLDEST_CLOCK_UNIX_MS: Final = 10**12  # 2001: an older timestamp is no clock's
_NEWEST_CLOCK_UNIX_MS: Final = 253_402_300_799_999  # year 9999

_MAX_REASONS: Final = 4_096
"""Far more than are published; a step must not hold more of them than that, whoever sends them."""


def clock_unix_ms(timestamp: tuple[int, int]) -> int | None:
    """Returns a record's timestamp in Unix milliseconds, or None where it has none or an absurd one."""
    kind, unix_ms = timestamp
    return unix_ms if kind and _OLDEST_CLOCK_UNIX_MS <= unix_ms <= _NEWEST_CLOCK_UNIX_MS else None


class Window:
    """One step of one attempt, from its first event until it is forgotten.

    Attributes:
        first_offset: Offset of the event that opened it.
        last_offset: Offset of the newest event that was for it, the sidecar's own markers excepted.
        close_offset: Offset of the event that closed it, -1 before.
        last_unix_ms: Timestamp of the newest event that was for it.
        closing_unix_ms: Timestamp of its first close marker.
        reason: What closed it.
        heard: From producer name to the number of samples it says it sent, None if it doesn't say.
        producers: How many producers close this step.
        dropped: Reason to count, added up over producers.
        duplicates: Samples dropped as duplicates, as the next result will say.
        late_samples: Samples taken after the close.
        is_dirty: Whether a correction is due.
        is_called_disagreeing: Whether the operator was told that a producer closed it twice with different numbers.
        is_called_redone: Whether the operator was told that it looks like a step done again.
        may_be_short: Whether samples of it may have been lost unread, so that only a full count makes it complete.
    """

    __slots__ = (
        "_columns",
        "_uncounted_duplicates",
        "attempt",
        "close_offset",
        "closed_unix_ms",
        "closing_unix_ms",
        "dropped",
        "duplicates",
        "first_offset",
        "heard",
        "is_called_disagreeing",
        "is_called_redone",
        "is_dirty",
        "last_offset",
        "last_unix_ms",
        "late_samples",
        "may_be_short",
        "opened_unix_ms",
        "producers",
        "reason",
        "run_id",
        "scope",
        "state",
        "step",
    )

    def __init__(
        self,
        settings: FoldSettings,
        run_id: str,
        scope: str,
        attempt: int,
        step: int,
        offset: int,
        unix_ms: int | None,
    ) -> None:
        self.run_id = run_id
        self.scope = scope
        self.attempt = attempt
        self.step = step
        self.state = State.OPEN
        self.reason: ResultReason = "closed"
        self.first_offset = self.last_offset = offset
        self.close_offset = -1
        self.opened_unix_ms = self.last_unix_ms = unix_ms
        self.closing_unix_ms: int | None = None
        self.closed_unix_ms: int | None = None
        self._columns = Columns(settings)
        self.heard: dict[str, int | None] = {}
        self.producers = 1
        self.dropped: dict[str, int] = {}
        self.duplicates = 0
        self.late_samples = 0
        self.is_dirty = False
        self.is_called_disagreeing = False
        self.is_called_redone = False
        self.may_be_short = False
        self._uncounted_duplicates = 0

    def __len__(self) -> int:
        return len(self._columns)

    @property
    def columns(self) -> Columns:
        """Its samples."""
        self._columns.settle()
        return self._columns

    @property
    def sample_ids(self) -> set[Identifier]:
        """Those of the samples it has been given: who takes a sample for it puts its id in."""
        return self._columns.sample_ids

    def settle(self) -> None:
        """Puts samples that wait for others into the columns, where they take less memory."""
        self._columns.settle()

    @property
    def is_complete(self) -> bool:
        """Whether all producers have closed and all the samples they speak of are in."""
        if not self.is_closed_by_all or self.reason in ("data_lost", "superseded", "evicted"):
            return False
        expected = self.expected_samples
        return not self.may_be_short if expected is None else len(self) >= expected

    @property
    def is_closed_by_all(self) -> bool:
        """Whether all producers have closed."""
        return 0 < len(self.heard) >= self.producers

    @property
    def expected_samples(self) -> int | None:
        """The sum of what the producers heard so far say they sent, or None where one of them doesn't say."""
        total = 0
        for expected in self.heard.values():
            if expected is None:
                return None
            total += expected
        return total if self.heard else None

    def add(self, samples: Sequence[SampleFields]) -> int:
        """Takes samples and returns how many it took; the others are duplicates and counted as such.

        After the close a duplicate is counted only together with the next event that changes the result: a correction
        must not depend on how many duplicates had come when it was published.
        """
        taken = self._columns.add(samples)
        self._uncounted_duplicates += len(samples) - taken
        if self.state is not State.CLOSED:
            self._count_duplicates()
        elif taken:
            self.late_samples += taken
            self.change()
        return taken

    def add_rows(self, rows: memoryview, cells: int) -> None:
        """Takes samples of an open window as rows of so many numbers: none of them is a duplicate."""
        self._columns.add_rows(rows, cells)

    def has_new(self, samples: Sequence[SampleFields]) -> bool:
        """Returns whether `add` would take at least one of the samples."""
        return self._columns.has_new(samples)

    def change(self) -> None:
        """Notes that a closed window's result has changed."""
        self.is_dirty = True
        self._count_duplicates()

    def hear(self, marker: StepClose) -> None:
        """Takes the close marker of a producer not heard before."""
        self.heard[marker.producer or ""] = marker.expected_samples
        self.producers = max(self.producers, marker.producers or 1)
        for reason, count in (marker.dropped or {}).items():
            if count is None:
                continue
            if reason not in self.dropped and len(self.dropped) >= _MAX_REASONS:
                reason = "other"
            self.dropped[reason] = self.dropped.get(reason, 0) + count
        self.state = after(self.state, Happening.MARKER)

    def disagrees(self, marker: StepClose) -> bool:
        """Returns whether a producer already heard now says something else."""
        return self.heard[marker.producer or ""] != marker.expected_samples or (marker.producers or 1) > self.producers

    def close(self, reason: ResultReason, offset: int, unix_ms: int | None) -> None:
        """Ends the wait."""
        happening = Happening.COMPLETE if reason == "closed" else Happening.GIVEN_UP
        self.state = after(self.state, happening)
        self.reason = reason
        self.close_offset = offset
        self.closed_unix_ms = unix_ms

    def _count_duplicates(self) -> None:
        self.duplicates += self._uncounted_duplicates
        self._uncounted_duplicates = 0
