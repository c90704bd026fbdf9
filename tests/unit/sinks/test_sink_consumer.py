"""The consumer's loop against a scripted client: outages, rebalances, and what is committed when."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from stream_metrics.events import encode
from stream_metrics.sinks.base import Delivery, Sink, SinkOutageError, SinkRefusedError
from stream_metrics.sinks.consumer import SinkConsumer
from support.results import step_metrics


def value(step: int, attempt: int = 0, run_id: str = "r") -> bytes:
    return encode(step_metrics(step, attempt=attempt, run_id=run_id))


class Message:
    def __init__(self, offset: int, value: bytes | None = None, error: int | None = None, partition: int = 0) -> None:
        self._offset, self._value, self._partition = offset, value, partition
        self._error = None if error is None else KafkaError(error)

    def error(self) -> KafkaError | None:
        return self._error

    def partition(self) -> int:
        return self._partition

    def offset(self) -> int:
        return self._offset

    def value(self) -> bytes | None:
        return self._value

    def timestamp(self) -> tuple[int, int]:
        return (1, 5)


def end(offset: int) -> Message:
    return Message(offset, error=KafkaError._PARTITION_EOF)


class Client:
    """Gives out one partition's log from where it was assigned, and does what it was told to at its next calls."""

    def __init__(self, log: Sequence[bytes | None], committed: int = -1001) -> None:
        self.log = list(log)
        self.committed_offset = committed
        self.place: int | None = None
        self.is_paused = False
        self.now = 0.0
        self.calls: list[str] = []
        self.at_poll: list[Callable[[], None]] = []
        self.at_consume: list[Callable[[], None]] = []
        self.commit_failures: list[int] = []
        self.committed_failures: list[int] = []
        self.errors: list[Message] = []

    def subscribe(self, _topics: list[str], on_assign: Any, on_revoke: Any) -> None:
        self.on_assign, self.on_revoke = on_assign, on_revoke
        self.given = True

    def rebalance(self) -> None:
        self.on_revoke(self, [TopicPartition("t", 0)])
        self.place = None
        self.given = True

    def consume(self, _count: int, timeout: float) -> list[Message]:
        self.now += timeout
        if self.errors:
            return [self.errors.pop(0)]
        if self.at_consume and self.place == len(self.log):
            self.at_consume.pop(0)()
            return [Message(0, value(0))]
        stale = [] if self.place is None else [Message(0, value(0))]
        if self.given:
            self.given = False
            self.on_assign(self, [TopicPartition("t", 0)])
            return stale  # consumed before the rebalance; not to be used
        if self.place is None or self.is_paused:
            return []
        found = [Message(offset, self.log[offset]) for offset in range(self.place, len(self.log))]
        self.place = len(self.log)
        return [*found, end(len(self.log))]

    def poll(self, timeout: float) -> Message | None:
        self.now += timeout
        if self.at_poll:
            self.at_poll.pop(0)()
        return None

    def committed(self, partitions: list[TopicPartition], timeout: float) -> list[TopicPartition]:
        if self.committed_failures:
            raise KafkaException(KafkaError(self.committed_failures.pop()))
        return [TopicPartition("t", 0, self.committed_offset) for _ in partitions]

    def assign(self, partitions: list[TopicPartition]) -> None:
        self.place = 0 if partitions else None
        self.is_paused = False

    def assignment(self) -> list[TopicPartition]:
        return []

    def pause(self, _: list[TopicPartition]) -> None:
        self.is_paused = True

    def resume(self, _: list[TopicPartition]) -> None:
        self.is_paused = False

    def commit(self, offsets: list[TopicPartition], asynchronous: bool) -> None:
        assert not asynchronous
        if self.commit_failures:
            raise KafkaException(KafkaError(self.commit_failures.pop()))
        (one,) = offsets
        self.calls.append(f"commit {one.offset}")
        self.committed_offset = one.offset


class Recorder(Sink):
    """A sink that fails as it's told to, and shares the client's list of calls."""

    def __init__(self, client: Client, failures: Sequence[Exception] = ()) -> None:
        self.client = client
        self.failures = list(failures)
        self.setup_failures: list[Exception] = []
        self.began_at: list[int] = []

    def begin(self) -> None:
        self.began_at.append(len(self.client.calls))

    def setup(self) -> None:
        if self.setup_failures:
            raise self.setup_failures.pop(0)

    def recall(self, delivery: Delivery) -> None:
        self.client.calls.append(f"recall {delivery.result.step}")

    def write(self, batch: Sequence[Delivery]) -> None:
        self.client.calls.append("write " + ",".join(f"{one.result.step}" for one in batch))
        if self.failures:
            raise self.failures.pop(0)

    def flush(self) -> None:
        self.client.calls.append("flush")


def run(client: Client, sink: Sink | None = None, *, is_all: bool = False) -> SinkConsumer:
    feeding = SinkConsumer(client, "t", sink or Recorder(client), is_once=True, is_all=is_all, clock=lambda: client.now)  # type: ignore[arg-type]
    feeding.run()
    return feeding


def test_offsets_are_committed_after_the_flush() -> None:
    client = Client([value(1), value(2)])
    assert run(client).taken == 2
    assert client.calls == ["write 1,2", "flush", "commit 2"]


def test_what_was_committed_is_only_recalled() -> None:
    client = Client([value(1), value(2), value(3)], committed=2)
    run(client)
    assert client.calls == ["recall 1", "recall 2", "write 3", "flush", "commit 3"]


def test_nothing_is_written_or_committed_where_nothing_is_new() -> None:
    client = Client([value(1)], committed=1)
    run(client)
    assert client.calls == ["recall 1"]


def test_an_older_attempt_never_reaches_the_sink_even_after_a_restart() -> None:
    log = [value(1), value(1, attempt=2), value(2, attempt=1), value(7, run_id="other"), value(2, attempt=2)]
    client = Client(log, committed=2)
    assert run(client).ignored == 1
    assert client.calls == ["recall 1", "recall 1", "write 7,2", "flush", "commit 5"]


def test_tombstones_and_records_that_are_no_results_are_passed(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)  # whatever an earlier test has set
    client = Client([None, b"{}", b'{"type":"sample","step":1}', b"\xff", value(1)])
    assert run(client).unreadable == 3
    assert client.calls == ["write 1", "flush", "commit 5"]
    assert [one.getMessage() for one in caplog.records] == ["a record that is no result is skipped"] * 3


def test_fields_from_the_future_are_passed_on() -> None:
    future = value(1)[:-1] + b',"colour":"green"}'
    client = Client([future])
    seen: list[bytes] = []

    class Keeper(Recorder):
        def write(self, batch: Sequence[Delivery]) -> None:
            seen.extend(one.value for one in batch)

    run(client, Keeper(client))
    assert seen == [future]


def test_an_outage_is_waited_for_and_said_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    client = Client([value(1)])
    run(client, Recorder(client, [SinkOutageError("down"), OSError("refused"), SinkOutageError("down")] * 3))
    assert client.calls == ["write 1"] * 10 + ["flush", "commit 1"]
    told = [one.getMessage() for one in caplog.records if "tool" in one.getMessage()]
    assert told == ["the tool can't take results; trying on, nothing is lost", "the tool is back"]
    assert 90 < client.now < 150  # 0.5, 1, 2, ... up to 30 seconds apart
    assert not client.is_paused


def test_a_tool_that_is_away_at_the_start_is_waited_for() -> None:
    client = Client([value(1)])
    sink = Recorder(client)
    sink.setup_failures = [SinkOutageError("down")] * 2
    run(client, sink)
    assert client.calls == ["write 1", "flush", "commit 1"]


def test_what_a_tool_refuses_ends_the_loop_and_commits_nothing() -> None:
    client = Client([value(1)])
    with pytest.raises(SinkRefusedError):
        run(client, Recorder(client, [SinkRefusedError("wrong key")]))
    assert client.calls == ["write 1"]


def test_an_error_of_our_own_is_no_outage() -> None:
    client = Client([value(1)])
    with pytest.raises(ZeroDivisionError):
        run(client, Recorder(client, [ZeroDivisionError()]))


def test_a_reader_of_standard_output_that_goes_away_is_no_outage() -> None:
    client = Client([value(1)])
    with pytest.raises(BrokenPipeError):
        run(client, Recorder(client, [BrokenPipeError()]))


def test_a_stop_during_an_outage_commits_nothing() -> None:
    client = Client([value(1)])
    sink = Recorder(client, [SinkOutageError("down")] * 1000)
    feeding = SinkConsumer(client, "t", sink, clock=lambda: client.now)  # type: ignore[arg-type]
    client.at_poll = [lambda: None] * 20 + [feeding.stop]
    feeding.run()
    assert feeding.taken == 0
    assert "flush" not in client.calls
    assert client.committed_offset == -1001


def test_after_a_rebalance_during_an_outage_all_that_is_not_committed_comes_again() -> None:
    client = Client([value(1), value(2)], committed=1)
    client.at_poll = [lambda: None, client.rebalance]
    sink = Recorder(client, [SinkOutageError("down")] * 2)
    run(client, sink)
    assert client.calls == ["recall 1", "write 2", "recall 1", "write 2", "write 2", "flush", "commit 2"]
    assert sink.began_at == [0, 2]  # another process may have fed the tool in between


def test_what_was_consumed_while_partitions_were_taken_away_is_left_to_who_has_them_now() -> None:
    client = Client([value(1)])

    def revoke() -> None:
        client.on_revoke(client, [TopicPartition("t", 0)])
        client.place = None

    sink = Recorder(client)
    feeding = SinkConsumer(client, "t", sink, clock=lambda: client.now)  # type: ignore[arg-type]
    client.at_consume = [revoke]
    consume = client.consume

    def consume_until_idle(count: int, timeout: float) -> list[Message]:
        if client.now > 5:
            feeding.stop()
        return consume(count, timeout)

    client.consume = consume_until_idle  # type: ignore[method-assign]
    feeding.run()
    assert client.calls == ["write 1", "flush", "commit 1"]


def test_a_commit_that_fails_is_made_up_for() -> None:
    client = Client([value(1)])
    client.commit_failures = [KafkaError._TIMED_OUT]
    run(client)
    assert client.calls == ["write 1", "flush", "commit 1"]


def test_the_committed_offsets_are_asked_for_until_there_is_an_answer() -> None:
    client = Client([value(1), value(2)], committed=1)
    client.committed_failures = [KafkaError._TIMED_OUT, KafkaError.COORDINATOR_LOAD_IN_PROGRESS]
    run(client)
    assert client.calls == ["recall 1", "write 2", "flush", "commit 2"]


def test_a_topic_that_was_made_anew_is_read_as_new(caplog: pytest.LogCaptureFixture) -> None:
    client = Client([value(1), value(2)], committed=9)
    run(client)
    assert client.calls == ["recall 1", "recall 2", "write 1,2", "flush", "commit 2"]
    assert any("made anew" in one.getMessage() for one in caplog.records)


def test_a_tool_that_keeps_nothing_gets_everything_and_commits_nothing() -> None:
    class Forgetful(Recorder):
        is_lasting = False

    client = Client([value(1), value(2)], committed=1)
    run(client, Forgetful(client))
    assert client.calls == ["write 1,2", "flush"]


def test_all_results_can_be_had_again_and_the_group_stays_where_it_was() -> None:
    client = Client([value(1), value(2)], committed=1)
    run(client, is_all=True)
    assert client.calls == ["write 1,2", "flush"]


def test_passing_errors_of_kafka_are_said_once_and_others_end_the_loop(caplog: pytest.LogCaptureFixture) -> None:
    client = Client([value(1)])
    client.errors = [Message(0, error=KafkaError._TRANSPORT) for _ in range(3)]
    assert run(client).taken == 1
    assert len([one for one in caplog.records if one.getMessage().startswith("Kafka:")]) == 1
    client.errors = [Message(0, error=KafkaError.TOPIC_AUTHORIZATION_FAILED)]
    with pytest.raises(KafkaException):
        run(client)
