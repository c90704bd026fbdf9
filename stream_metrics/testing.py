"""Builders of events and an in-memory log, for tests of producers, of trainers, and of this package."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from stream_metrics.core.effects import Effect, Publish, SetAside
from stream_metrics.core.fold import Fold
from stream_metrics.core.record import CREATE_TIME, NO_TIMESTAMP, Headers, LogRecord, Record
from stream_metrics.core.settings import FoldSettings
from stream_metrics.events import StepMetrics

EventObject = dict[str, Any]


def sample(step: int, reward: float | bool | EventObject | None = None, **fields: Any) -> EventObject:
    """Returns a `sample` event as the object that goes on the wire."""
    return {"type": "sample", "step": step, "reward": reward, **fields}


def samples(step: int, items: Iterable[EventObject], **fields: Any) -> EventObject:
    """Returns a `samples` event; its items are objects without a step."""
    return {"type": "samples", "step": step, "samples": list(items), **fields}


def close(step: int, **fields: Any) -> EventObject:
    """Returns a close marker."""
    return {"type": "close", "step": step, **fields}


class MemoryLog:
    """One partition's log in memory.

    Args:
        topic: Name that results will give.
        partition: Number that results will give.
    """

    def __init__(self, topic: str = "rollout-samples", partition: int = 0) -> None:
        self.topic = topic
        self.partition = partition
        self.records: list[LogRecord] = []

    @property
    def next_offset(self) -> int:
        return self.records[-1].offset() + 1 if self.records else 0

    def append(
        self,
        event: EventObject | bytes | None,
        *,
        headers: Headers | None = None,
        unix_ms: int | None = None,
        key: bytes | None = None,
        skip_offsets: int = 0,
    ) -> LogRecord:
        """Appends an event object, a raw value or a tombstone, and returns its record.

        `skip_offsets` leaves a gap before it, as a transaction's control records do.
        """
        record = LogRecord(
            value=msgspec.json.encode(event) if isinstance(event, dict) else event,
            key=key,
            headers=headers,
            partition=self.partition,
            offset=self.next_offset + skip_offsets,
            timestamp=(NO_TIMESTAMP, 0) if unix_ms is None else (CREATE_TIME, unix_ms),
            topic=self.topic,
        )
        self.records.append(record)
        return record

    def between(self, first: int, end: int) -> list[Record]:
        """Returns the records with offsets from `first` up to, not including, `end`."""
        return [record for record in self.records if first <= record.offset() < end]

    def fold(self, settings: FoldSettings | None = None) -> Outcome:
        """Returns what comes of the whole log, as `stream-metrics replay` would say it."""
        fold = Fold(settings or FoldSettings(), self.topic, self.partition)
        fold.feed(self.records)
        return Outcome(fold.take_effects() + fold.take_corrections(), fold)


class Outcome:
    """What came of a log.

    Attributes:
        results: Published results in order.
        dead_letters: (offset, reason) of each record set aside.
        open_steps: (run_id, scope, attempt, step) of the windows that are still open, oldest first.
    """

    def __init__(self, effects: Iterable[Effect], fold: Fold) -> None:
        self.results: list[StepMetrics] = []
        self.dead_letters: list[tuple[int, str]] = []
        for effect in effects:
            if isinstance(effect, Publish):
                self.results.append(effect.result)
            elif isinstance(effect, SetAside):
                self.dead_letters.append((effect.record.offset(), effect.reason))
        self.open_steps = [(one.run_id, one.scope, one.attempt, one.step) for one in fold.open_windows()]
