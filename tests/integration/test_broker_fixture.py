"""The test broker and its helpers do what the other tests take for granted."""

from __future__ import annotations

import threading

import pytest
from confluent_kafka import Producer

from support.brokers import Broker
from support.topics import (
    NewRecord,
    create_topic,
    produce,
    produce_transaction,
    read_topic,
    read_values,
    unique_name,
)


def test_a_committed_transaction_is_seen_by_a_read_committed_reader(broker: Broker) -> None:
    topic = create_topic(broker.bootstrap, partitions=2)
    produce_transaction(
        broker.bootstrap, topic, [NewRecord(b"a", partition=0), NewRecord(b"b", partition=1)], commit=True
    )
    assert sorted(read_values(broker.bootstrap, topic)) == [b"a", b"b"]


def test_aborted_data_is_seen_by_a_read_uncommitted_reader_only(broker: Broker) -> None:
    topic = create_topic(broker.bootstrap)
    produce(broker.bootstrap, topic, [b"plain"])
    produce_transaction(broker.bootstrap, topic, [b"aborted"], commit=False)
    assert read_values(broker.bootstrap, topic) == [b"plain"]
    assert read_values(broker.bootstrap, topic, is_committed=False) == [b"plain", b"aborted"]


def test_a_record_comes_back_as_it_was_written(broker: Broker) -> None:
    topic = create_topic(broker.bootstrap, partitions=3)
    written = NewRecord(
        None, key=b"\xff", partition=2, headers=[("h", b"1"), ("h", None)], timestamp_ms=1_700_000_000_000
    )
    produce(broker.bootstrap, topic, [written])
    (read,) = read_topic(broker.bootstrap, topic)
    assert (read.topic, read.partition, read.offset, read.timestamp_ms) == (topic, 2, 0, 1_700_000_000_000)
    assert (read.key, read.value, read.headers) == (b"\xff", None, (("h", b"1"), ("h", None)))


def test_an_empty_topic_is_read_to_its_end(broker: Broker) -> None:
    assert read_topic(broker.bootstrap, create_topic(broker.bootstrap)) == []


def test_reading_waits_for_a_transaction_that_is_open_below_the_end(broker: Broker) -> None:
    topic = create_topic(broker.bootstrap)
    holder = Producer(
        {"bootstrap.servers": broker.bootstrap, "transactional.id": unique_name("holder"), "log_level": 0}
    )
    holder.init_transactions(30)
    holder.begin_transaction()
    holder.produce(topic, b"held")
    holder.flush(30)
    produce_transaction(broker.bootstrap, topic, [b"newer"], commit=True)
    with pytest.raises(AssertionError, match="not read to its end"):
        read_topic(broker.bootstrap, topic, deadline_seconds=1)

    release = threading.Timer(0.5, holder.commit_transaction, (30,))
    release.start()
    try:
        assert read_values(broker.bootstrap, topic) == [b"held", b"newer"]
    finally:
        release.join()


@pytest.mark.chaos
@pytest.mark.parametrize("end", ["stop", "kill"])
def test_a_broker_that_ended_starts_again_with_the_same_port_and_data(stoppable_broker: Broker, end: str) -> None:
    topic = create_topic(stoppable_broker.bootstrap)
    produce_transaction(stoppable_broker.bootstrap, topic, [b"kept"], commit=True)
    getattr(stoppable_broker, end)()
    stoppable_broker.start()
    assert read_values(stoppable_broker.bootstrap, topic) == [b"kept"]


@pytest.mark.chaos
def test_a_paused_broker_goes_on(stoppable_broker: Broker) -> None:
    topic = create_topic(stoppable_broker.bootstrap)
    stoppable_broker.pause()
    with pytest.raises(AssertionError, match="not delivered"):
        _produce_within(stoppable_broker.bootstrap, topic, seconds=1)
    stoppable_broker.unpause()
    produce(stoppable_broker.bootstrap, topic, [b"after"])
    assert read_values(stoppable_broker.bootstrap, topic)[-1] == b"after"


def _produce_within(bootstrap: str, topic: str, seconds: float) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "message.timeout.ms": int(seconds * 1000), "log_level": 0})
    failures: list[object] = []
    producer.produce(topic, b"lost", on_delivery=lambda error, _: failures.append(error) if error else None)
    producer.flush(seconds * 5)
    assert not failures, f"not delivered: {failures}"
