"""Fills the board from the output and the dead-letter topic, on a thread of its own, while somebody looks.

A plain read_committed consumer that joins no group and commits nothing. It rests in proportion to what it worked, since
the aggregation shares the interpreter with it; and once nobody has looked for a while it lets go of broker and memory.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from typing import Any, Final, cast

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, TopicPartition

from stream_metrics.config import Settings
from stream_metrics.core.record import Headers
from stream_metrics.web.board import MAX_LETTERS, Board

LETTER_PREFIX: Final = "stream_metrics."
"""How the headers begin that the sidecar adds to a dead letter."""

_BATCH: Final = 200
_POLL_SECONDS: Final = 0.25
_REST: Final = 2.0
"""Seconds of rest for each second of work, so that at most a third of a core goes into the page."""

_MAX_REST_SECONDS: Final = 0.1
_RETRY_SECONDS: Final = 2.0
_ASK_SECONDS: Final = 5.0
_LOOK_AGAIN_SECONDS: Final = 30.0
IDLE_SECONDS: Final = 120.0
"""How long what was read is kept when nobody looks."""

_LETTER_OFFSETS: Final = 2 * MAX_LETTERS
"""A letter alone in its transaction takes two offsets."""

_PASSING: Final = frozenset({KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._TIMED_OUT})

_OWN_CONFIG: Final[dict[str, Any]] = {
    "group.id": "stream-metrics-page",  # the client wants one even where no group is joined
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "auto.offset.reset": "earliest",
    "isolation.level": "read_committed",
    "enable.partition.eof": True,
    "fetch.wait.max.ms": 250,
    "fetch.queue.backoff.ms": 20,  # the default second is what filling would wait for, again and again
    # Memory: the aggregation's is what counts.
    "queued.min.messages": 1_000,
    "queued.max.messages.kbytes": 4_096,
    "fetch.message.max.bytes": 1_048_576,
}


class _AnewError(Exception):
    """The topics are not what they were: all is read again."""


class Reader:
    """Reads on a thread of its own until stopped.

    Args:
        settings: How to reach the broker, and the topics.
        board: What is filled.
        num_viewers: Tells how many look.
        clock: Tells seconds.
    """

    def __init__(
        self,
        settings: Settings,
        board: Board,
        num_viewers: Callable[[], int],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client_config = settings.client_config()
        self._output_topic = settings.output_topic
        self._dead_letter_topic = settings.dead_letter_topic
        self._board = board
        self._num_viewers = num_viewers
        self._clock = clock
        self._wanted = threading.Event()
        self._stopping = threading.Event()
        self._complaint = ""
        self._thread = threading.Thread(target=self._run, name="page-reader", daemon=True)
        self._thread.start()

    def want(self) -> None:
        """Somebody looks: it is read, if it wasn't."""
        self._wanted.set()

    def stop(self) -> None:
        """Asks for an end; doesn't wait for it."""
        self._stopping.set()
        self._wanted.set()

    def join(self, seconds: float) -> None:
        self._thread.join(seconds)

    def _run(self) -> None:
        while self._wanted.wait() and not self._stopping.is_set():
            try:
                self._read()
            except KafkaException as error:
                self._pause(error.args[0].str())
            except _AnewError as error:
                self._pause(str(error))
            except:  # noqa: E722 - the page is never worth the sidecar, and the client raises more than exceptions
                self._pause(f"can't be read: {sys.exc_info()[1]}")

    def _pause(self, trouble: str) -> None:
        self._board.clear()
        self._board.tell(share=0.0, trouble=trouble)
        self._stopping.wait(_RETRY_SECONDS)

    def _read(self) -> None:
        """Reads until nobody has looked for a while, or a stop."""
        self._complaint = ""
        config = {"log_level": 0, **self._client_config, **_OWN_CONFIG, "error_cb": self._complain}
        consumer = Consumer(config)
        try:
            self._follow(consumer)
        finally:
            consumer.close()

    def _follow(self, consumer: Consumer) -> None:
        places = self._places(consumer)
        consumer.assign(places)
        unread = {(place.topic, place.partition) for place in places}
        looked_at = wanted_at = self._clock()
        has_been_filled = False
        while not self._stopping.is_set():
            first = consumer.poll(_POLL_SECONDS)
            began = time.thread_time()
            if first is not None:
                self._take([first, *consumer.consume(_BATCH - 1, 0)], unread)
            if not unread:
                has_been_filled = True
            share = None if has_been_filled else self._share(consumer, places, unread)
            self._board.tell(share=share, trouble=self._complaint)
            now = self._clock()
            if self._num_viewers():
                wanted_at = now
            elif now - wanted_at > IDLE_SECONDS:
                self._forget()
                return
            if now - looked_at > (_RETRY_SECONDS if self._complaint else _LOOK_AGAIN_SECONDS):
                looked_at = now
                self._look_again(consumer, places)
            if first is not None:
                self._stopping.wait(min(_REST * (time.thread_time() - began), _MAX_REST_SECONDS))

    def _look_again(self, consumer: Consumer, places: list[TopicPartition]) -> None:
        """Notes that the broker answers; while it is away, what has been read stays.

        Raises:
            _AnewError: The topics have other partitions than before.
        """
        try:
            found = _names(self._partitions(consumer))
        except KafkaException as error:
            if error.args[0].code() in _PASSING:
                return
            raise
        self._complaint = ""
        if found != _names(places):
            raise _AnewError("partitions were added")

    def _forget(self) -> None:
        self._wanted.clear()
        self._board.clear()
        if self._num_viewers():  # one came meanwhile
            self._wanted.set()

    def _places(self, consumer: Consumer) -> list[TopicPartition]:
        """Returns where to read from: all of the results, and the end of the dead letters."""
        places = self._partitions(consumer)
        for place in places:
            place.offset = OFFSET_BEGINNING
            if place.topic == self._dead_letter_topic:
                low, high = consumer.get_watermark_offsets(place, timeout=_ASK_SECONDS)
                place.offset = max(low, high - _LETTER_OFFSETS)
        return places

    def _partitions(self, consumer: Consumer) -> list[TopicPartition]:
        """Returns the partitions of both topics.

        Raises:
            _AnewError: One isn't there, or may not be seen.
        """
        # All topics, since asking for one by name makes it on brokers that create topics by themselves.
        known = consumer.list_topics(timeout=_ASK_SECONDS).topics
        places = []
        for name in (self._output_topic, self._dead_letter_topic):
            topic = known.get(name)
            if topic is None or topic.error is not None:
                why = f": {topic.error.str()}" if topic is not None and topic.error is not None else ""
                raise _AnewError(f"topic {name!r} isn't there, or may not be read{why}")
            places += [TopicPartition(name, partition) for partition in sorted(topic.partitions)]
        return places

    def _take(self, messages: list[Message], unread: set[tuple[str, int]]) -> None:
        results = []
        for message in messages:
            error = message.error()
            topic = message.topic()
            if error is not None:
                self._hear(message, error, unread)
            elif topic == self._output_topic:
                value = message.value()
                if value is not None:
                    results.append(value)
            else:
                kind, unix_ms = message.timestamp()
                headers = cast(Headers, message.headers() or ())
                self._board.take_letter(headers, unix_ms if kind else None, LETTER_PREFIX)
        if results:
            self._board.take_results(results)
        if self._complaint and any(message.error() is None for message in messages):
            self._complaint = ""

    def _hear(self, message: Message, error: KafkaError, unread: set[tuple[str, int]]) -> None:
        if error.code() == KafkaError._PARTITION_EOF:
            unread.discard((message.topic() or "", message.partition() or 0))
            self._complaint = ""
        elif error.code() in _PASSING:
            self._complaint = error.str()
        else:
            raise KafkaException(error)

    def _complain(self, error: KafkaError) -> None:
        # Called inside poll(); must not raise, or a record is lost.
        if error.code() == KafkaError._ALL_BROKERS_DOWN or not self._complaint:
            self._complaint = f"Kafka: {error.str()}"

    def _share(self, consumer: Consumer, places: list[TopicPartition], unread: set[tuple[str, int]]) -> float:
        """Returns how much of the topics has been read, in percent steps: each one is told to all viewers."""
        done = total = 0
        for place in consumer.position(places):
            _, high = consumer.get_watermark_offsets(place, cached=True)
            total += max(high, 1)
            is_read = (place.topic, place.partition) not in unread
            done += max(high, 1) if is_read else min(max(place.offset, 0), max(high, 0))
        return min(round(done / total, 2), 0.99) if total else 0.99


def _names(places: list[TopicPartition]) -> set[tuple[str, int]]:
    return {(place.topic, place.partition) for place in places}
