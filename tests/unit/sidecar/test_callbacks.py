"""What the client's callbacks do: they never raise, and what goes wrong in them is raised by the loop.

Nothing is connected to.
"""

from __future__ import annotations

import gc
import time
import weakref
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from stream_metrics.config import Settings
from stream_metrics.core.record import LogRecord
from stream_metrics.sidecar import loop
from stream_metrics.sidecar.commits import Commits
from stream_metrics.sidecar.errors import FencedError, KafkaRefusedError, RestartError, StateRefusedError
from stream_metrics.sidecar.health import Health
from stream_metrics.sidecar.loop import Sidecar
from stream_metrics.sidecar.owned import Owned
from stream_metrics.sidecar.self_metrics import SelfMetrics
from stream_metrics.sidecar.timers import Timers
from stream_metrics.testing import MemoryLog, close, sample

TOPIC = Settings().input_topic
FIRST, SECOND = TopicPartition(TOPIC, 0), TopicPartition(TOPIC, 1)


class _Message(LogRecord):
    def error(self) -> KafkaError | None:
        return None


class _Consumer:
    """Gives what was put in, and notes what it is told."""

    def __init__(self) -> None:
        self.waiting: list[Any] = []
        self.told: list[str] = []
        self.on_poll: Any = lambda: None

    def memberid(self) -> str:
        return "member"

    def poll(self, _: float) -> Any:
        self.on_poll()
        return self.waiting.pop(0) if self.waiting else None

    def consume(self, count: int, _: float) -> list[Any]:
        taken, self.waiting = self.waiting[:count], self.waiting[count:]
        return taken

    def incremental_assign(self, _: Any) -> None:
        self.told.append("assign")

    def unsubscribe(self) -> None:
        self.told.append("unsubscribe")


class Bench:
    """A loop with partitions 0 and 1, whose transactions are noted and succeed."""

    def __init__(self) -> None:
        health, metrics = Health(0.5, time.monotonic), SelfMetrics()
        self.sidecar = Sidecar(Settings(), "id", health, metrics)
        self.committed: list[tuple[int, int, int]] = []
        self.consumer = _Consumer()
        transactions: Any = SimpleNamespace(run=self._run, serve=lambda: None, is_ours=lambda *_: False)
        self.sidecar._consumer = self.consumer  # type: ignore[assignment]  # all that it needs
        self.sidecar._transactions = transactions
        self.sidecar._commits = Commits(
            Settings(),
            self.sidecar._owned,
            self.sidecar._consumer,
            transactions,
            1_000_000,
            health,
            metrics,
            time.monotonic,
            lambda: 0,
        )
        self.logs = {number: MemoryLog(topic=TOPIC, partition=number) for number in (0, 1)}
        fold, timers = Settings().fold(), Timers(3600, 60)
        for number in (0, 1):
            self.sidecar._owned[number] = Owned(fold, TOPIC, number, start=0, committed=0, note=None, timers=timers)

    def put(self, partition: int, *events: dict[str, Any]) -> None:
        for event in events:
            record = self.logs[partition].append(event)
            self.consumer.waiting.append(
                _Message(value=record.value(), offset=record.offset(), partition=partition, topic=TOPIC)
            )

    def turn(self) -> None:
        self.sidecar._last_tick = self.sidecar._monotonic()  # no look at anything else
        self.sidecar._turn()

    def _run(self, records: list[Any], offsets: list[TopicPartition], _: Any) -> None:
        self.committed += [(place.partition, place.offset, len(list(records))) for place in offsets]


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_a_record_of_a_partition_that_was_taken_away_after_the_fetch_is_not_folded(bench: Bench) -> None:
    bench.put(0, sample(1, 1.0))
    bench.put(1, sample(1, 1.0), close(1))
    # As the client does it: the callback runs in the very poll that then gives what was fetched before.
    bench.consumer.on_poll = lambda: bench.sidecar._on_lost(bench.consumer, [FIRST])  # type: ignore[arg-type]
    bench.turn()
    assert sorted(bench.sidecar._owned) == [1]
    assert bench.committed == [(1, 2, 1)]


def test_a_revoked_partition_is_committed_and_the_others_wait_for_their_time(bench: Bench) -> None:
    bench.put(0, sample(1, 1.0))
    bench.put(1, sample(1, 1.0))
    bench.turn()
    kept = bench.sidecar._owned[1]
    bench.sidecar._on_revoke(bench.consumer, [FIRST])  # type: ignore[arg-type]
    assert bench.committed == [(0, 1, 0)]
    assert bench.sidecar._owned == {1: kept}


def test_nothing_is_committed_of_a_partition_that_is_lost(bench: Bench) -> None:
    bench.put(0, sample(1, 1.0), close(1))
    bench.sidecar._fold(bench.sidecar._consume())
    assert bench.sidecar._owned[0].pending
    bench.sidecar._on_lost(bench.consumer, [FIRST, SECOND])  # type: ignore[arg-type]
    bench.turn()
    assert bench.committed == []
    assert bench.sidecar._owned == {}


def test_what_a_partition_held_is_free_as_soon_as_it_is_dropped(bench: Bench) -> None:
    bench.put(0, sample(1, 1.0))
    bench.turn()
    fold = weakref.ref(bench.sidecar._owned[0].fold)
    gc.disable()  # it may be long before the collector looks by itself
    try:
        bench.sidecar._on_revoke(bench.consumer, [FIRST])  # type: ignore[arg-type]
        assert fold() is None
    finally:
        gc.enable()


def _raising(error: BaseException) -> Any:
    def fail(*_: Any) -> None:
        raise error

    return fail


REFUSED = KafkaException(KafkaError(KafkaError.GROUP_AUTHORIZATION_FAILED))
PASSES = KafkaException(KafkaError(KafkaError._TRANSPORT))


@pytest.mark.parametrize(("holder", "may_join"), [(None, True), ("member", True), ("another", False), (PASSES, False)])
def test_a_static_member_that_has_lost_its_partitions_joins_again_only_where_nobody_has_its_instance_id(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, holder: Any, may_join: bool
) -> None:
    answer = _raising(holder) if isinstance(holder, Exception) else lambda *_: holder
    monkeypatch.setattr(loop, "member_with", answer)
    bench.sidecar._settings = Settings(instance_id="a")
    bench.consumer.on_poll = lambda: bench.sidecar._on_lost(bench.consumer, [FIRST])  # type: ignore[arg-type]
    if may_join:
        bench.turn()
        assert bench.consumer.told == []
    else:
        with pytest.raises(RestartError) as caught:  # and then it is asked until it is known
            bench.turn()
        assert caught.value.is_replaced_perhaps
        assert bench.consumer.told == ["unsubscribe"]


def test_a_member_that_the_group_says_is_replaced_asks_who_has_its_instance_id(bench: Bench) -> None:
    with pytest.raises(RestartError) as caught:
        bench.sidecar._raise_lost(KafkaError(KafkaError.FENCED_INSTANCE_ID))
    assert caught.value.is_replaced_perhaps


@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (StateRefusedError("offsets of somebody else"), StateRefusedError),
        (REFUSED, KafkaRefusedError),
        (PASSES, RestartError),
        (ZeroDivisionError("a mistake of ours"), ZeroDivisionError),
    ],
    ids=["state", "right", "passing", "mistake"],
)
def test_what_goes_wrong_in_an_assignment_is_raised_by_the_loop_in_the_same_turn(
    bench: Bench, error: BaseException, raised: type[BaseException]
) -> None:
    bench.sidecar._take_over = _raising(error)  # type: ignore[method-assign]
    bench.put(0, sample(1, 1.0))
    bench.consumer.on_poll = lambda: bench.sidecar._on_assign(bench.consumer, [FIRST])  # type: ignore[arg-type]
    with pytest.raises(raised):
        bench.turn()
    assert bench.consumer.told == []  # not reading from who knows where
    assert bench.committed == []


def test_what_goes_wrong_in_the_commit_of_a_revocation_drops_the_partition_and_is_raised(bench: Bench) -> None:
    bench.put(0, sample(1, 1.0))
    bench.turn()
    bench.sidecar._transactions.run = _raising(FencedError("another has our id"))  # type: ignore[method-assign]
    bench.consumer.on_poll = lambda: bench.sidecar._on_revoke(bench.consumer, [FIRST])  # type: ignore[arg-type]
    with pytest.raises(FencedError):
        bench.turn()
    assert sorted(bench.sidecar._owned) == [1]


def test_an_error_of_a_right_that_a_client_tells_in_its_callback_is_raised(bench: Bench) -> None:
    bench.consumer.on_poll = lambda: bench.sidecar._on_error(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED))
    with pytest.raises(KafkaRefusedError, match="right to read the input topic"):
        bench.turn()


def test_of_several_failures_the_first_is_raised_and_the_next_turn_is_clean(bench: Bench) -> None:
    bench.sidecar._keep_failure(StateRefusedError("first"))
    bench.sidecar._keep_failure(ZeroDivisionError("what came of it"))
    with pytest.raises(StateRefusedError, match="first"):
        bench.turn()
    bench.turn()
