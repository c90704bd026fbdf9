"""When the loop commits, by a clock that a test turns and a consumer that a test fills. Nothing is connected to."""

from __future__ import annotations

import time
from typing import Any

import pytest
from confluent_kafka import KafkaError

from stream_metrics.config import Settings
from stream_metrics.core.catalogue import work_ahead
from stream_metrics.core.record import LogRecord
from stream_metrics.core.settings import FoldSettings
from stream_metrics.sidecar import loop
from stream_metrics.sidecar.commits import BEHIND_COMMIT_SECONDS, Commits
from stream_metrics.sidecar.health import Health
from stream_metrics.sidecar.loop import AHEAD_SHARE, BATCH, Sidecar
from stream_metrics.sidecar.owned import Owned
from stream_metrics.sidecar.self_metrics import SelfMetrics
from stream_metrics.sidecar.timers import Timers
from stream_metrics.testing import MemoryLog, close, sample


class _Message(LogRecord):
    def error(self) -> KafkaError | None:
        return None


class _Consumer:
    """Gives what was put in."""

    def __init__(self) -> None:
        self.waiting: list[Any] = []

    def poll(self, _: float) -> Any:
        return self.waiting.pop(0) if self.waiting else None

    def consume(self, count: int, _: float) -> list[Any]:
        taken, self.waiting = self.waiting[:count], self.waiting[count:]
        return taken


class _Turned:
    """A loop with one partition whose commits are noted, and not made."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        self.commits: list[float] = []
        self.log = MemoryLog()
        health, metrics = Health(0.5, time.monotonic), SelfMetrics()
        sidecar = Sidecar(Settings(), "id", health, metrics, monotonic=lambda: self.now)
        owned = Owned(FoldSettings(), "t", 0, start=0, committed=0, note=None, timers=Timers(3600, 60))
        self.consumer = sidecar._consumer = _Consumer()  # type: ignore[assignment]
        sidecar._owned[0] = owned
        transactions: Any = None
        sidecar._commits = Commits(
            Settings(),
            sidecar._owned,
            sidecar._consumer,
            transactions,
            1_000_000,
            health,
            metrics,
            lambda: self.now,
            lambda: 0,
        )

        def commit(live: list[Owned]) -> None:
            self.commits.append(self.now)
            for one in live:
                one.pending.clear()

        monkeypatch.setattr(sidecar._commits, "commit", commit)
        self._sidecar = sidecar

    def put(self, *events: dict[str, Any]) -> None:
        for event in events:
            record = self.log.append(event)
            self.consumer.waiting.append(_Message(value=record.value(), offset=record.offset()))

    def turn(self) -> None:
        messages = self._sidecar._consume()
        if messages:
            self._sidecar._fold(messages)
        else:
            self._sidecar._work_ahead()
        self._sidecar._commits.commit_if_due(is_behind=self._sidecar._is_behind)


@pytest.fixture
def turned(monkeypatch: pytest.MonkeyPatch) -> _Turned:
    return _Turned(monkeypatch)


def test_a_result_is_committed_at_once_where_no_more_records_wait(turned):
    turned.put(sample(1, 1.0), close(1))
    turned.turn()
    assert turned.commits == [0.0]
    turned.put(sample(2, 1.0))
    turned.turn()
    assert turned.commits == [0.0]  # no result, and the interval isn't over


def test_results_share_a_commit_while_full_batches_come(turned):
    for step in range(4):
        turned.put(close(step), *[sample(step + 1, 1.0)] * (BATCH - 1))
    turned.turn()
    turned.turn()
    assert turned.commits == []
    turned.now += BEHIND_COMMIT_SECONDS
    turned.turn()
    assert turned.commits == [BEHIND_COMMIT_SECONDS]
    turned.turn()
    assert turned.commits == [BEHIND_COMMIT_SECONDS]
    turned.turn()  # nothing waits any more
    assert turned.commits == [BEHIND_COMMIT_SECONDS] * 2


def test_errors_among_messages_are_told_by_identity(turned):
    """A client's error that is compared with None raises, and not always where it was compared."""

    class Failed(_Message):
        def error(self) -> KafkaError:
            return KafkaError(KafkaError._PARTITION_EOF)

    turned.put(sample(1, 1.0), close(1))
    turned.consumer.waiting.append(Failed(value=None, offset=2))
    turned.turn()
    assert turned.commits == [0.0]
    assert turned._sidecar._owned[0].is_caught_up
    assert loop._by_partition([]) == {}


def test_a_lull_is_used_to_work_out_what_the_next_close_would_wait_for(turned, monkeypatch):
    monkeypatch.setattr("stream_metrics.core.fold._WORTH_WORKING_AHEAD", 1)
    fold = turned._sidecar._owned[0].fold
    worked: list[float] = []

    def working_ahead(window: Any, settings: Any) -> Any:
        worked.append(turned.now)
        turned.now += 0.002
        return work_ahead(window, settings)

    monkeypatch.setattr("stream_metrics.core.fold.work_ahead", working_ahead)
    turned.put(sample(1, 1.0))
    turned.turn()
    assert worked == []  # there may be more
    turned.turn()
    assert worked == [0.0]
    turned.put(sample(1, 2.0))
    turned.turn()
    turned.turn()
    assert worked == [0.0]  # it has had its share of the time
    turned.now += 0.002 / AHEAD_SHARE
    turned.turn()
    assert len(worked) == 2
    turned.turn()
    assert len(worked) == 2 and not fold.work_ahead()


def test_a_partition_that_is_being_restored_is_left_alone(turned):
    owned = turned._sidecar._owned[0]
    owned.is_restoring = True
    owned.fold.work_ahead = lambda: pytest.fail("a replay publishes nothing")  # type: ignore[method-assign]
    turned.turn()
