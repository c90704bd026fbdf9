"""The transactional producer: results, dead letters, markers and offsets become visible together, or not at all.

What to do on an error follows from what is known of the transaction:
- retriable: the same call again, until it answers. Never an abort after a commit whose answer is unknown.
- abortable: abort; the caller keeps what it wanted to write and tries again in a new transaction.
- fatal: this producer is done. Its transaction's fate is in the committed offsets, so all begins anew from there.
"""

from __future__ import annotations

import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterable
from concurrent import futures
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, Final, cast

import msgspec
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from stream_metrics.sidecar import logs
from stream_metrics.sidecar.errors import (
    CLIENT_ERRORS,
    FencedError,
    KafkaRefusedError,
    Meaning,
    RestartError,
    StoppingError,
    client_error,
    meaning,
    refused,
)

ANY_PARTITION: Final = -1

CALL_SECONDS: Final = 1.0
"""How long a blocking call may hold up a signal: the client runs no Python handler while it waits."""

INIT_BUDGET_SECONDS: Final = 600.0

SAY_AFTER_SECONDS: Final = 5.0
"""A transaction that waits for so long is worth a line in the log."""

LATE_JOIN: Final = "the group took a request of ours that came late for another replica"

_GROUP_REFUSES: Final = (KafkaError.FENCED_INSTANCE_ID, KafkaError.UNKNOWN_MEMBER_ID, KafkaError.ILLEGAL_GENERATION)
"""What the group says of a member that was; the coordinator of the transaction has been asked before it."""

_FENCED: Final = (KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH)
_SERVE_TRIES: Final = 3

_BEGIN_SECONDS: Final = 0.01
"""It begins in a tenth of a millisecond, but where the call before it never came back it doesn't."""

Headers = list[tuple[str, bytes | None]]


class OutRecord(msgspec.Struct, frozen=True):
    """A record to write. Without a partition, `run_id` chooses it, so that a run's results stay in order."""

    topic: str
    key: bytes | None
    value: bytes | None
    headers: Headers | None = None
    partition: int | None = None
    run_id: str | None = None


class TooLargeError(Exception):
    """A record was larger than its topic takes; the transaction was aborted."""


class AbortedError(Exception):
    """The transaction was aborted; nothing of it is visible, and it can be tried again."""


class _Aside:
    """A thread for the call that doesn't keep to its timeout, so that stops, probes and deadlines don't wait for it.

    While the coordinator is away `send_offsets_to_transaction` takes as long as a transaction may be old, and where the
    connection breaks at a bad moment it never returns, broker or not. The thread is then lost with its producer.
    """

    def __init__(self) -> None:
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        threading.Thread(target=self._work, name="transactions", daemon=True).start()

    def call(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        """Returns the answer to come once the call has begun: who goes on at once keeps its thread from beginning."""
        answer: Future[Any] = Future()
        has_begun = threading.Event()

        def call() -> None:
            has_begun.set()
            try:
                answer.set_result(function(*arguments))
            except BaseException as error:
                answer.set_exception(error)

        self._calls.put(call)
        has_begun.wait(_BEGIN_SECONDS)
        return answer

    def close(self) -> None:
        """The thread ends once it is back from its call."""
        self._calls.put(None)

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            call()


class Transactions:
    """The producer of one replica.

    Args:
        config: Client settings common to all clients of the sidecar.
        transactional_id: Identity that a replacement of this replica shares.
        timeout_seconds: Age at which the broker aborts a transaction.
        is_stopping: Tells whether a stop was asked for.
        turn: Called while waiting, to show that the loop is alive.
    """

    def __init__(
        self,
        config: dict[str, Any],
        transactional_id: str,
        timeout_seconds: float,
        is_stopping: Callable[[], bool],
        turn: Callable[[], None],
    ) -> None:
        self.transactional_id = transactional_id
        self._config = config
        self._timeout_seconds = timeout_seconds
        self._is_stopping = is_stopping
        self._turn = turn
        self._begun_at = 0.0
        self._was_init_slow = False
        self._is_wait_said = False
        self._too_large: list[str] = []
        self._partitions: dict[str, int] = {}
        self._aside = _Aside()
        self._producer = Producer(
            {
                "linger.ms": 0,
                "compression.type": "lz4",
                "message.max.bytes": 10_000_000,
                # At first, then doubled: the first request of a transaction may meet the end of the one before.
                "retry.backoff.ms": 2,
                **config,
                "transactional.id": transactional_id,
                "transaction.timeout.ms": int(timeout_seconds * 1000),
            },
            logger=logs.CLIENT_LOGGER,
        )

    def init(self) -> None:
        """Takes the identity over: ends what a predecessor left open, and fences it.

        Raises:
            KafkaRefusedError: Not allowed, or no answer within the budget.
        """
        began = time.monotonic()
        is_said = False
        while True:
            try:
                self._call(self._producer.init_transactions, CALL_SECONDS, tries=1)
                self._was_init_slow = time.monotonic() - began > CALL_SECONDS
                return
            except CLIENT_ERRORS as error:
                kafka_error = client_error(error)
                if time.monotonic() - began > INIT_BUDGET_SECONDS:
                    raise KafkaRefusedError(
                        f"no transactions for {self.transactional_id!r} within {INIT_BUDGET_SECONDS:.0f} s: "
                        f"{kafka_error.str()}; is the broker up, and has its transaction topic enough replicas?"
                    ) from None
                if not is_said and time.monotonic() - began > 3 * CALL_SECONDS:
                    logs.warning(
                        "waiting for the transaction coordinator",
                        transactional_id=self.transactional_id,
                        error=kafka_error.str(),
                    )
                    is_said = True

    def run(self, records: Iterable[OutRecord], offsets: list[TopicPartition], consumer: Consumer) -> None:
        """Writes records and commits offsets in one transaction; returns when it is committed.

        Args:
            records: What to write; made as they are asked for, while the offsets are on their way.
            offsets: What to commit; may be none.
            consumer: Who read up to there.

        Raises:
            AbortedError: Nothing is visible; try again later.
            TooLargeError: As above, and a record must be made smaller first.
            RestartError: The producer is done for; begin anew from the committed offsets.
            FencedError: Another live replica has this identity.
            KafkaRefusedError: A right is missing.
            StoppingError: A stop was asked for and the broker doesn't answer.
        """
        producer = self._producer
        self._begun_at = time.monotonic()
        self._is_wait_said = False
        failure = _failure(self._call, producer.begin_transaction)
        if failure is None and offsets:
            offsets_are_sent = self._send(offsets, consumer)
            # Made meanwhile and no more: given records at that moment, the client has ended the process.
            records = list(records)
            failure = _failure(self._call, offsets_are_sent)
        if failure is None:
            failure = _failure(self._write, records)
        if failure is None:
            failure = _failure(self._call, producer.commit_transaction, CALL_SECONDS)
        if failure is not None:
            self._abort(failure)
        self._was_init_slow = False
        if self._is_wait_said:
            logs.info("the transaction has gone through", after_seconds=round(time.monotonic() - self._begun_at, 1))

    def is_ours(self, topic: str, consumer: Consumer) -> bool | None:
        """Returns whether nobody has taken the transactional id over, asked after the group refused our instance id.

        The group takes a join of ours that arrives late for another replica. The transaction coordinator knows better:
        a replica takes the transactional id over before it joins, and who had it before can't even abort any more.
        It is None where that can't be told: nobody answers, or our producer was of no use before.

        Args:
            topic: Any that has a partition 0; its offset makes the coordinator hear of a transaction to abort.
            consumer: The group's member that was.
        """
        self._begun_at = time.monotonic()
        self._is_wait_said = False
        try:
            self._call(self._producer.begin_transaction)
        except (*CLIENT_ERRORS, RestartError):
            return None
        try:
            try:
                self._call(self._send([TopicPartition(topic, 0, 0)], consumer))
            except CLIENT_ERRORS as error:
                if client_error(error).code() not in _GROUP_REFUSES:
                    raise
            self._call(self._producer.abort_transaction, CALL_SECONDS)
        except CLIENT_ERRORS as error:
            return False if self._is_another_replica(client_error(error)) else None
        except RestartError:
            return None
        return True

    def partition_of(self, topic: str, run_id: str) -> int:
        """Returns the partition that holds a run's results."""
        count = self._partitions.get(topic)
        if count is None:
            metadata = self._call(self._producer.list_topics, topic, CALL_SECONDS)
            count = self._partitions[topic] = max(1, len(metadata.topics[topic].partitions))
        return zlib.crc32(run_id.encode()) % count

    def serve(self) -> None:
        """Lets the client run its callbacks, so that its events don't pile up.

        Raises:
            RestartError: The producer is done for.
        """
        try:
            self._producer.poll(0)
        except CLIENT_ERRORS as error:
            self._raise_lost(client_error(error))

    def close(self) -> None:
        """Throws away what is queued; an open transaction is the broker's to abort, or the replacement's."""
        self._aside.close()
        self._producer.purge()

    def _write(self, records: Iterable[OutRecord]) -> None:
        for record in records:
            self._produce(record)
        while _served(self._producer.flush, CALL_SECONDS / 4):
            self._wait()

    def _produce(self, record: OutRecord) -> None:
        partition = record.partition
        if partition is None and record.run_id is not None:
            partition = self.partition_of(record.topic, record.run_id)
        while True:
            try:
                self._producer.produce(
                    record.topic,
                    value=record.value,
                    key=record.key,
                    headers=cast(list[tuple[str, str | bytes | None]], record.headers or []),
                    partition=ANY_PARTITION if partition is None else partition,
                    on_delivery=self._on_delivery,
                )
                return
            except BufferError:
                _served(self._producer.poll, CALL_SECONDS / 10)
                self._wait()

    def _send(self, offsets: list[TopicPartition], consumer: Consumer) -> Callable[[], None]:
        """Has the offsets on their way, and returns what waits for them; called again, it sends them again."""
        group = consumer.consumer_group_metadata()

        def send() -> Future[Any]:
            return self._aside.call(self._producer.send_offsets_to_transaction, offsets, group, CALL_SECONDS)

        on_their_way = [send()]

        def send_offsets() -> None:
            answer = on_their_way.pop() if on_their_way else send()
            while not futures.wait([answer], CALL_SECONDS / 10).done:
                self._wait()
            answer.result()

        return send_offsets

    def _on_delivery(self, error: KafkaError | None, message: Any) -> None:
        # Must not raise: the client would then report a committed transaction as failed.
        if error is not None and error.code() == KafkaError.MSG_SIZE_TOO_LARGE:
            self._too_large.append(message.topic())

    def _abort(self, error: KafkaError) -> None:
        """Ends a failed transaction and raises what the caller has to do."""
        if meaning(error) is Meaning.LOST or error.fatal():
            self._raise_lost(error)
        too_large, self._too_large = self._too_large, []
        aborting = _failure(self._call, self._producer.abort_transaction, CALL_SECONDS)
        if aborting is not None:
            self._raise_lost(aborting)
        if meaning(error) is Meaning.FENCED:
            raise RestartError(LATE_JOIN)  # see is_ours: another replica would have kept us from aborting
        if meaning(error) is Meaning.REFUSED:
            raise refused(error, f"transacting as {self.transactional_id!r}")
        if too_large or error.code() == KafkaError.MSG_SIZE_TOO_LARGE:
            raise TooLargeError(", ".join(sorted(set(too_large))))
        raise AbortedError(error.str())

    def _raise_lost(self, error: KafkaError) -> None:
        if self._is_another_replica(error):
            raise FencedError(self._fenced_message()) from None
        is_fenced = error.code() in _FENCED
        raise RestartError(f"the producer is done for: {error.str()}", is_replaced_perhaps=is_fenced) from None

    def _is_another_replica(self, error: KafkaError) -> bool:
        """Being fenced within the transaction's time is another replica's doing; after it, the broker's.

        Or our own, in the first transaction after the broker was slow to give us the identity: the client has then
        asked again, and what it had asked before may come last.
        """
        age = time.monotonic() - self._begun_at
        return error.code() in _FENCED and age < self._timeout_seconds and not self._was_init_slow

    def _fenced_message(self) -> str:
        return (
            f"another live replica runs as {self.transactional_id!r} and took over: "
            "give each replica of the group its own --instance-id"
        )

    def _call(self, function: Callable[..., Any], *arguments: Any, tries: int | None = None) -> Any:
        """Calls the client, the same call again while the error says so, and looks for a stop in between."""
        while True:
            try:
                return function(*arguments)
            except CLIENT_ERRORS as error:
                kafka_error = client_error(error)
                if not kafka_error.retriable():
                    if meaning(kafka_error) is Meaning.REFUSED and not kafka_error.txn_requires_abort():
                        raise refused(kafka_error, f"transacting as {self.transactional_id!r}") from None
                    raise
                if tries is not None:
                    tries -= 1
                    if tries <= 0:
                        self._wait()
                        raise
                logs.debug("again", call=function.__name__, error=kafka_error.str())
            self._wait()

    def _wait(self) -> None:
        self._turn()
        if self._is_stopping():
            raise StoppingError
        age = time.monotonic() - self._begun_at if self._begun_at else 0.0
        if age > SAY_AFTER_SECONDS and not self._is_wait_said:
            self._is_wait_said = True  # the clients' own words come only where they are polled, and they aren't now
            logs.warning("a transaction waits for the broker's answer", transactional_id=self.transactional_id)
        if age > self._timeout_seconds and broker_answers(self._config):
            # The broker has given the transaction up and is there again, so what the client waits for may never come.
            raise RestartError("a transaction has taken too long", is_replaced_perhaps=True)


def broker_answers(config: dict[str, Any]) -> bool:
    """Returns whether a broker is there, as a new client finds it.

    One that has been told of no brokers, as a single broker does for a moment when it was cut off and is back, forgets
    those it had and asks nobody any more.
    """
    plain = {name: value for name, value in config.items() if name != "error_cb"}
    try:
        return bool(AdminClient({**plain, "log_level": 0}).list_topics(timeout=CALL_SECONDS).brokers)
    except CLIENT_ERRORS:
        return False


def _failure(function: Callable[..., Any], *arguments: Any) -> KafkaError | None:
    """Returns what the client says has failed, None where nothing has, and leaves no exception under way.

    An error that the client raises while another exception is handled refers to it, unseen by the garbage collector:
    that exception, the frames it went through and the clients in them would stay for good.
    """
    try:
        function(*arguments)
    except CLIENT_ERRORS as error:
        return client_error(error)
    return None


def _served(function: Callable[..., Any], *arguments: Any) -> Any:
    """Calls what may run the client's callbacks, and returns or raises what it is documented to.

    Of a fatal error the client raises a `KafkaError` in whatever call serves its events: no exception, so that only a
    bare `except` catches it. Where a delivery callback has run behind it, it is a `SystemError` for having raised
    nothing. That comes once: the same call again answers as documented.
    """
    for _ in range(_SERVE_TRIES):
        try:
            return function(*arguments)
        except:  # noqa: E722
            if type(sys.exc_info()[1]) not in (KafkaError, SystemError):
                raise
    raise RestartError(f"the client doesn't answer {getattr(function, '__name__', function)} as documented")
