"""The loop that feeds a sink: consume, write, flush, then commit.

Each start reads the topic from its beginning: what lies below the committed offset the sink only recalls. So it knows
which attempt of a run is the newest and which steps the tool has, without a store of its own; the topic is compacted.

A rebalance only sets a note. What was consumed around it is thrown away, uncommitted, and comes again: the partitions
are assigned outside the client's callback, which loses records where it raises.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from typing import Any, Final

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, TopicPartition

from stream_metrics.events import EventError, decode_result
from stream_metrics.sinks.base import Delivery, Sink, SinkOutageError

OWN_CONFIG: Final[dict[str, Any]] = {
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "enable.partition.eof": True,
    "auto.offset.reset": "earliest",
    "isolation.level": "read_committed",
    "partition.assignment.strategy": "range",  # all is given anew at a rebalance, which is all the loop knows
    "session.timeout.ms": 10_000,  # a sink that was killed is replaced after that; it alone reads its partitions
    "fetch.wait.max.ms": 100,
}
"""What the loop needs of its consumer, beside the group."""

_BATCH: Final = 500
_POLL_SECONDS: Final = 0.2
_ASK_SECONDS: Final = 10.0
_FIRST_BACKOFF_SECONDS: Final = 0.5
_MAX_BACKOFF_SECONDS: Final = 30.0
_REFUSALS: Final = frozenset(
    {
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.SASL_AUTHENTICATION_FAILED,
        KafkaError.FENCED_INSTANCE_ID,
        KafkaError.INCONSISTENT_GROUP_PROTOCOL,
        KafkaError._AUTHENTICATION,
    }
)

_log = logging.getLogger(__name__)


class _AbandonedError(Exception):
    """A rebalance or a stop came while the tool was away: what it didn't take comes again."""


class SinkConsumer:
    """Feeds one sink from the output topic until it is stopped.

    Args:
        consumer: Made with `OWN_CONFIG`; the caller closes it.
        topic: The output topic.
        sink: A sink; the caller closes it.
        is_once: End once all that was there is taken.
        is_all: Take all results of the topic, whatever was taken before, and commit nothing.
        clock: Tells seconds.
    """

    def __init__(
        self,
        consumer: Consumer,
        topic: str,
        sink: Sink,
        *,
        is_once: bool = False,
        is_all: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._consumer = consumer
        self._topic = topic
        self._sink = sink
        self._is_once = is_once
        self._is_committing = type(sink).is_lasting and not is_all
        self._clock = clock
        self._is_stopping = False
        self._given: list[int] | None = None  # partitions of a rebalance not acted on yet
        self._committed: dict[int, int] | None = None  # by partition; None: nothing is assigned
        self._uncommitted: dict[int, int] = {}
        self._ended: set[int] = set()
        self._begun_anew: set[int] = set()
        self._rebalances = 0
        self._attempts: dict[tuple[str, str], int] = {}
        self._last_error: int | None = None
        self.taken = 0
        """Results that the tool took."""
        self.ignored = 0
        """Results of an older attempt than the newest one."""
        self.unreadable = 0
        """Records that are no results."""

    def stop(self) -> None:
        """`run` returns soon. May be called from a signal handler."""
        self._is_stopping = True

    def run(self) -> None:
        """Returns once stopped or, if asked to, at the end of the topic.

        Raises:
            KafkaException: Kafka refuses for good.
            SinkRefusedError: The tool does.
        """
        self._consumer.subscribe([self._topic], on_assign=self._on_assign, on_revoke=self._on_revoke)
        try:
            self._insist("be set up", self._sink.setup)
            while not self._is_stopping and not (self._is_once and self._is_at_end()):
                self._turn()
        except _AbandonedError:
            _log.warning("stopped while the tool was away; what it didn't take comes at the next start")

    def _is_at_end(self) -> bool:
        return self._committed is not None and self._ended >= self._committed.keys() and not self._uncommitted

    def _turn(self) -> None:
        messages = self._consumer.consume(_BATCH, timeout=_POLL_SECONDS)
        if self._given is not None:
            self._begin(self._given)
        elif self._committed is None:  # taken away, or not given yet
            for message in messages:
                self._hear(message.error())
        else:
            self._take(messages, self._committed)

    def _begin(self, partitions: list[int]) -> None:
        """Partitions are assigned from their beginning, and it's known where they are new; else the next turn tries."""
        committed = dict.fromkeys(partitions, 0)
        if self._is_committing and partitions:
            asked = [TopicPartition(self._topic, partition) for partition in partitions]
            try:
                answers = self._consumer.committed(asked, timeout=_ASK_SECONDS)
            except KafkaException as error:
                self._hear(error.args[0])
                return
            for answer in answers:
                if answer.error is not None:
                    self._hear(answer.error)
                    return
                if answer.partition not in self._begun_anew:
                    committed[answer.partition] = max(0, answer.offset)
        starts = [TopicPartition(self._topic, partition, OFFSET_BEGINNING) for partition in partitions]
        self._consumer.assign(starts)
        self._consumer.resume(starts)  # an outage may have paused them
        self._committed = committed
        self._given = None
        self._uncommitted.clear()
        self._ended.clear()
        self._attempts.clear()
        self._sink.begin()
        _log.info("reading", extra={"fields": {"topic": self._topic, "partitions": len(partitions)}})

    def _take(self, messages: Iterable[Message], committed: dict[int, int]) -> None:
        batch = self._read(messages, committed)
        if batch:
            rebalances = self._rebalances
            try:
                self._insist("take results", lambda: self._give(batch), rebalances)
            except _AbandonedError:
                if self._is_stopping:
                    raise
                return
            self.taken += len(batch)
        self._commit(committed)

    def _give(self, batch: list[Delivery]) -> None:
        self._sink.write(batch)
        self._sink.flush()

    def _read(self, messages: Iterable[Message], committed: dict[int, int]) -> list[Delivery]:
        """Returns the new results among the messages, and notes how far they go."""
        batch = []
        for message in messages:
            error = message.error()
            partition, offset = message.partition(), message.offset()
            if error is not None and error.code() != KafkaError._PARTITION_EOF:
                self._hear(error)
            elif partition is None or offset is None:  # for the types alone: every record has a place
                continue
            elif error is not None:
                self._end(partition, offset, committed)
            else:
                self._last_error = None
                self._ended.discard(partition)
                self._pass(partition, offset + 1, committed)
                delivery = self._delivery(message, partition, offset)
                if delivery is None:
                    continue
                if offset < committed[partition]:
                    self._sink.recall(delivery)
                else:
                    batch.append(delivery)
        return batch

    def _end(self, partition: int, end: int, committed: dict[int, int]) -> None:
        if end < committed[partition]:
            _log.warning(
                "the topic ends before the committed offset, so it was made anew: all of it is new",
                extra={"fields": {"partition": partition, "end": end, "committed": committed[partition]}},
            )
            self._begun_anew.add(partition)
            self._given = list(committed)
            return
        self._pass(partition, end, committed)
        self._ended.add(partition)

    def _pass(self, partition: int, next_offset: int, committed: dict[int, int]) -> None:
        if next_offset > max(committed[partition], self._uncommitted.get(partition, 0)):
            self._uncommitted[partition] = next_offset

    def _delivery(self, message: Message, partition: int, offset: int) -> Delivery | None:
        """Returns what a record brings, unless it's no result or one that a newer attempt has overtaken."""
        value = message.value()
        if value is None:
            return None
        try:
            result = decode_result(value)
        except EventError as error:
            self.unreadable += 1
            fields = {"partition": partition, "offset": offset, "error": str(error)}
            _log.warning("a record that is no result is skipped", extra={"fields": fields})
            return None
        key = (result.run_id, result.scope)
        if result.attempt < self._attempts.get(key, 0):
            self.ignored += 1
            return None
        self._attempts[key] = result.attempt
        return Delivery(result, value, partition, offset, max(0, message.timestamp()[1]))

    def _insist(self, what: str, action: Callable[[], None], rebalances: int | None = None) -> None:
        """The action is done, however long the tool is away; partitions rest meanwhile, and the group hears of us.

        Raises:
            _AbandonedError: A stop was asked for, or there was another rebalance than the number given.
        """
        backoff = _FIRST_BACKOFF_SECONDS
        began = self._clock()
        has_failed = False
        while True:
            try:
                action()
                break
            except BrokenPipeError:
                raise
            except (SinkOutageError, OSError) as error:
                if not has_failed:
                    fields = {"error": str(error) or type(error).__name__}
                    _log.warning("the tool can't %s; trying on, nothing is lost", what, extra={"fields": fields})
                    has_failed = True
                self._wait(backoff, rebalances)
                backoff = min(2 * backoff, _MAX_BACKOFF_SECONDS)
        if has_failed:
            _log.info("the tool is back", extra={"fields": {"away_seconds": self._clock() - began}})
            self._consumer.resume(self._consumer.assignment())

    def _wait(self, seconds: float, rebalances: int | None) -> None:
        until = self._clock() + seconds
        while True:
            if self._is_stopping or rebalances not in (None, self._rebalances):
                raise _AbandonedError
            left = until - self._clock()
            if left <= 0:
                return
            self._consumer.pause(self._consumer.assignment())
            message = self._consumer.poll(min(_POLL_SECONDS, left))
            if message is not None and message.error() is None:  # a paused partition gave one all the same
                self._given = list(self._committed or ())
                raise _AbandonedError
            if message is not None:
                self._hear(message.error())

    def _commit(self, committed: dict[int, int]) -> None:
        if self._is_committing and self._uncommitted:
            offsets = [TopicPartition(self._topic, part, offset) for part, offset in self._uncommitted.items()]
            try:
                self._consumer.commit(offsets=offsets, asynchronous=False)
            except KafkaException as error:
                self._hear(error.args[0])  # the next turn's commit, or a rebalance, settles it
                return
        committed.update(self._uncommitted)
        self._uncommitted.clear()

    def _hear(self, error: KafkaError | None) -> None:
        """An error is said once; what will not pass ends the loop."""
        if error is None or error.code() == KafkaError._PARTITION_EOF:
            return
        if error.fatal() or error.code() in _REFUSALS:
            raise KafkaException(error)
        if error.code() != self._last_error:
            self._last_error = error.code()
            _log.warning("Kafka: %s", error.str())

    # Both only take notes, and assign nothing: the client loses records where a callback raises.
    def _on_assign(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._note_rebalance()
        self._given = [partition.partition for partition in partitions]
        consumer.assign([])

    def _on_revoke(self, _consumer: Consumer, _partitions: list[TopicPartition]) -> None:
        self._note_rebalance()
        self._given = None

    def _note_rebalance(self) -> None:
        self._rebalances += 1
        self._committed = None
