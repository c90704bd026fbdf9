"""Topics of a real broker: making them, writing records, and reading all that a reader may see."""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from confluent_kafka import (
    OFFSET_BEGINNING,
    TIMESTAMP_NOT_AVAILABLE,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, NewTopic

from support.waiting import DEADLINE_SECONDS, wait_until

_QUIET = {"log_level": 0}


@dataclass(frozen=True)
class Record:
    """A record as it lies in the log. `timestamp_ms` is null where the log has none."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int | None
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


@dataclass(frozen=True)
class NewRecord:
    """A record to write."""

    value: bytes | None
    key: bytes | None = None
    partition: int | None = None
    headers: Sequence[tuple[str, bytes | None]] = ()
    timestamp_ms: int | None = None

    def send(self, producer: Producer, topic: str) -> None:
        """The record is in the producer's queue."""
        place: dict[str, Any] = {}
        if self.partition is not None:
            place["partition"] = self.partition
        if self.timestamp_ms is not None:
            place["timestamp"] = self.timestamp_ms
        producer.produce(topic, value=self.value, key=self.key, headers=list(self.headers), **place)


def unique_name(prefix: str = "test") -> str:
    """Returns a name that no other test has: for topics, groups and transactional ids."""
    return f"{prefix}-{uuid.uuid4().hex[:12]}"


def create_topic(
    bootstrap: str, prefix: str = "test", partitions: int = 1, config: Mapping[str, str] | None = None
) -> str:
    """Returns the name of a new empty topic, whose partitions all have a leader."""
    name = unique_name(prefix)
    admin = AdminClient({"bootstrap.servers": bootstrap, **_QUIET})
    made = admin.create_topics([NewTopic(name, partitions, config=dict(config or {}))], request_timeout=30)
    made[name].result(DEADLINE_SECONDS)

    def has_leaders() -> bool:
        topic = admin.list_topics(name, timeout=10).topics[name]
        return len(topic.partitions) == partitions and all(part.leader >= 0 for part in topic.partitions.values())

    wait_until(has_leaders, f"leaders of {name}")
    return name


def produce(bootstrap: str, topic: str, records: Iterable[NewRecord | bytes]) -> None:
    """All records are in the topic, acknowledged, in order per partition, outside any transaction."""
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 0, **_QUIET})
    producer.list_topics(topic, timeout=30)  # connected now: else the client asks for its producer id 500 ms later
    _send(producer, topic, records)


def produce_transaction(
    bootstrap: str,
    topic: str,
    records: Iterable[NewRecord | bytes],
    *,
    commit: bool,
    transactional_id: str | None = None,
) -> None:
    """All records are in the topic, in one transaction that is committed or aborted."""
    producer = Producer(
        {"bootstrap.servers": bootstrap, "transactional.id": transactional_id or unique_name("txn"), **_QUIET}
    )
    producer.list_topics(topic, timeout=30)  # as in `produce`
    producer.init_transactions(DEADLINE_SECONDS)
    producer.begin_transaction()
    _send(producer, topic, records)
    if commit:
        producer.commit_transaction(DEADLINE_SECONDS)
    else:
        producer.abort_transaction(DEADLINE_SECONDS)


def read_topic(
    bootstrap: str, topic: str, *, is_committed: bool = True, deadline_seconds: float = DEADLINE_SECONDS
) -> list[Record]:
    """Returns what a reader sees of the topic from its start to its end at the time of the call.

    The end is taken as a read_uncommitted reader sees it: where a transaction is open below it, a read_committed one
    would take an earlier place for the end. So this waits until open transactions have ended.

    Raises:
        AssertionError: The end was not reached in time, for example because of a transaction that stays open.
    """
    ends = _ends(bootstrap, topic)
    records: list[Record] = []
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": unique_name("reader"),
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 10,  # the event for the end comes after an empty fetch, which waits this long
            "isolation.level": "read_committed" if is_committed else "read_uncommitted",
            **_QUIET,
        }
    )
    try:
        consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in ends])
        deadline = time.monotonic() + deadline_seconds
        while ends:
            message = consumer.poll(0.1)
            if time.monotonic() > deadline:
                raise AssertionError(f"{topic}: not read to its end within {deadline_seconds:g} s; missing: {ends}")
            if message is None:
                continue
            error = message.error()
            partition = message.partition()
            end = ends.get(partition, 0)
            next_offset = message.offset()  # of the end-of-partition event: markers and aborted records lie below it
            if error is None:
                if message.offset() < end:
                    records.append(_record(message))
                next_offset += 1
            elif error.code() != KafkaError._PARTITION_EOF:
                raise KafkaException(error)
            if next_offset >= end:
                ends.pop(partition, None)
        return records
    finally:
        consumer.close()


def read_values(bootstrap: str, topic: str, **how: Any) -> list[bytes | None]:
    """Returns the values that `read_topic` would see."""
    return [record.value for record in read_topic(bootstrap, topic, **how)]


def _send(producer: Producer, topic: str, records: Iterable[NewRecord | bytes]) -> None:
    failures: list[KafkaError] = []

    def delivered(error: KafkaError | None, message: Message) -> None:
        if error is not None:
            failures.append(error)  # never raised in here: a raising callback makes a good commit look failed

    for record in records:
        made = record if isinstance(record, NewRecord) else NewRecord(record)
        while True:
            try:
                made.send(producer, topic)
                break
            except BufferError:
                producer.poll(0.1)
    left = producer.flush(DEADLINE_SECONDS)
    if left or failures:
        raise AssertionError(f"{topic}: {left} records not delivered in time, {len(failures)} refused: {failures[:3]}")


def _ends(bootstrap: str, topic: str) -> dict[int, int]:
    """Returns the end of each partition that holds anything, transactions that are still open included."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": unique_name("ends"),
            "isolation.level": "read_uncommitted",
            **_QUIET,
        }
    )
    try:
        known = consumer.list_topics(topic, timeout=30).topics[topic]
        if known.error is not None:
            raise KafkaException(known.error)
        ends: dict[int, int] = {}
        for partition in known.partitions:
            low, high = wait_until(lambda: watermarks(consumer, topic, partition), f"the end of {topic}")  # noqa: B023
            if low < high:
                ends[partition] = high
        return ends
    finally:
        consumer.close()


_LEADERLESS = (KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.LEADER_NOT_AVAILABLE, KafkaError._UNKNOWN_PARTITION)


def watermarks(consumer: Consumer, topic: str, partition: int) -> tuple[int, int] | None:
    """Returns the first offset and the end; None while the partition has no leader, or one that has just started."""
    try:
        return consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=30)
    except KafkaException as error:
        if error.args[0].code() in _LEADERLESS:
            with contextlib.suppress(KafkaException):
                consumer.list_topics(topic, timeout=10)  # this call alone doesn't make the client look for a new leader
            return None
        raise


def _record(message: Message) -> Record:
    kind, timestamp = message.timestamp()
    return Record(
        topic=message.topic(),
        partition=message.partition(),
        offset=message.offset(),
        timestamp_ms=None if kind == TIMESTAMP_NOT_AVAILABLE else timestamp,
        key=message.key(),
        value=message.value(),
        headers=tuple(message.headers() or ()),
    )
