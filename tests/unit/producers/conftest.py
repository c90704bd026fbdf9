"""A Kafka client and a clock that do what a test says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from stream_metrics import events

_NAMES = (
    "STREAM_METRICS_ATTEMPT",
    "STREAM_METRICS_SPOOL_DIRECTORY",
    "TORCHELASTIC_RESTART_COUNT",
    "SLURM_RESTART_COUNT",
)


@pytest.fixture(autouse=True)
def _no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in _NAMES:
        monkeypatch.delenv(name, raising=False)


class Clock:
    """Stands still until it is told to go."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class FakeKafka:
    """Stands for a librdkafka producer and its broker.

    Attributes:
        log: Values that the broker has, in order.
        is_up: Whether it acknowledges; else records wait in the client.
        refuse: Says for a record's value, and all that are in flight with it, the error that its delivery ends in.
        is_full: Whether the client's queue refuses records.
        max_bytes: The client's own bound of a record.
        clients: How many clients were made.
    """

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.log: list[bytes] = []
        self.keys: list[bytes] = []
        self.is_up = True
        self.is_full = False
        self.refuse: Callable[[list[bytes]], KafkaError | None] = lambda values: None
        self.max_bytes = 1_000_000
        self.clients = 0

    def connect(self, on_error: Callable[[KafkaError], None]) -> FakeClient:
        self.clients += 1
        return FakeClient(self, on_error)

    @property
    def events(self) -> list[events.Event]:
        return [events.decode(value) for value in self.log]

    @property
    def samples(self) -> list[dict[str, Any]]:
        """All samples in order, whichever event they came in, as plain objects."""
        found = []
        for event in self.events:
            if isinstance(event, events.Sample):
                found.append(event)
            elif isinstance(event, events.SampleBatch):
                found.extend(event.samples)
        return [{name: getattr(one, name) for name in events.SampleFields.__struct_fields__} for one in found]

    @property
    def closes(self) -> list[events.StepClose]:
        return [event for event in self.events if isinstance(event, events.StepClose)]

    @property
    def kinds(self) -> list[str]:
        """`close` or the number of samples, per record."""
        return [
            "close" if isinstance(event, events.StepClose) else str(len(getattr(event, "samples", [event])))
            for event in self.events
        ]


class FakeClient:
    def __init__(self, kafka: FakeKafka, on_error: Callable[[KafkaError], None]) -> None:
        self.kafka = kafka
        self.on_error = on_error
        self.queue: list[tuple[bytes, bytes, Callable[[KafkaError | None, Any], None]]] = []

    def produce(self, topic: str, value: bytes, key: bytes, *, on_delivery: Callable[..., None]) -> None:
        if self.kafka.is_full:
            raise BufferError("Local: Queue full")
        if len(value) > self.kafka.max_bytes:
            raise KafkaException(KafkaError(KafkaError.MSG_SIZE_TOO_LARGE))
        self.queue.append((key, value, on_delivery))

    def poll(self, timeout: float) -> int:
        if not self.kafka.is_up:
            self.kafka.clock.now += timeout
            return 0
        flying, self.queue = self.queue, []
        error = self.kafka.refuse([value for _, value, _ in flying]) if flying else None
        for key, value, on_delivery in flying:
            if error is None:
                self.kafka.log.append(value)
                self.kafka.keys.append(key)
            on_delivery(error, None)
        return len(flying)

    def flush(self, timeout: float) -> int:
        self.poll(timeout)
        return len(self.queue)

    def purge(self, in_queue: bool = True, in_flight: bool = True, blocking: bool = True) -> None:
        flying, self.queue = self.queue, []
        for _, _, on_delivery in flying:
            on_delivery(KafkaError(KafkaError._PURGE_QUEUE), None)

    def __len__(self) -> int:
        return len(self.queue)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def kafka(clock: Clock) -> FakeKafka:
    return FakeKafka(clock)


@pytest.fixture(scope="session")
def make_kafka() -> Callable[[], FakeKafka]:
    """Makes brokers for tests that need one for each of many examples; its clock is its own."""
    return lambda: FakeKafka(Clock())
