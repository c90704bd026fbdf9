"""What becomes of a transaction whose client doesn't answer."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from collections.abc import Iterable, Iterator
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from stream_metrics.sidecar import transactions
from stream_metrics.sidecar.errors import FencedError, KafkaRefusedError, RestartError, StoppingError
from stream_metrics.sidecar.transactions import AbortedError, OutRecord, Transactions
from support.waiting import wait_until


class FakeProducer:
    """A client that answers at once, but for what a test says.

    Attributes:
        hang: While set, `send_offsets_to_transaction` doesn't return.
        is_broker_there: Whether the broker answers.
        errors: From a call's name to the errors that it gives next.
        calls: What was called.
    """

    def __init__(self, _: dict[str, Any], **__: Any) -> None:
        self.hang: threading.Event | None = None
        self.is_broker_there = True
        self.errors: dict[str, list[KafkaError]] = {}
        self.calls: list[str] = []

    def init_transactions(self, _: float) -> None:
        self._answer("init")

    def begin_transaction(self) -> None:
        self._answer("begin")

    def flush(self, _: float) -> int:
        return 0

    def poll(self, _: float) -> int:
        return 0

    def produce(self, *_: Any, **__: Any) -> None:
        self._answer("produce")

    def send_offsets_to_transaction(self, *_: Any) -> None:
        if self.hang is not None:
            self.hang.wait(20)
        self._answer("send")

    def commit_transaction(self, _: float) -> None:
        self._answer("commit")

    def abort_transaction(self, _: float) -> None:
        self._answer("abort")

    def purge(self) -> None:
        self.calls.append("purge")

    def list_topics(self, timeout: float) -> Any:
        if not self.is_broker_there:
            raise KafkaException(KafkaError(KafkaError._TRANSPORT))
        return SimpleNamespace(brokers={1: "there"})

    def _answer(self, name: str) -> None:
        self.calls.append(name)
        if self.errors.get(name):
            raise KafkaException(self.errors[name].pop(0))


RECORD = OutRecord("t", b"key", b"value")
NO_MEMBER = KafkaError(KafkaError.UNKNOWN_MEMBER_ID, "unknown member", False, False, True)
CONSUMER: Any = SimpleNamespace(consumer_group_metadata=lambda: "group")
FENCED_MEMBER = KafkaError(KafkaError.FENCED_INSTANCE_ID, "fenced", False, False, True)
FENCED_PRODUCER = KafkaError(KafkaError._FENCED, "fenced", True)


class Bench:
    def __init__(self) -> None:
        self.is_stopping = False
        self.turns = 0
        self.transactions = Transactions({}, "id", 0.5, lambda: self.is_stopping, self._turn)
        self.producer: FakeProducer = self.transactions._producer  # type: ignore[assignment]  # by the fixture

    def run(self, records: Iterable[OutRecord] = ()) -> None:
        self.transactions.run(records, [TopicPartition("t", 0, 1)], CONSUMER)

    def _turn(self) -> None:
        self.turns += 1


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    monkeypatch.setattr(transactions, "Producer", FakeProducer)
    made = Bench()
    monkeypatch.setattr(transactions, "AdminClient", lambda _: made.producer)
    yield made
    if made.producer.hang is not None:
        made.producer.hang.set()
    made.transactions.close()


def test_a_transaction_begins_adds_offsets_and_commits(bench: Bench) -> None:
    bench.run()
    bench.run()
    assert bench.producer.calls == ["begin", "send", "commit"] * 2


def test_records_are_made_while_the_offsets_are_on_their_way_and_written_once_they_are_there(bench: Bench) -> None:
    on_their_way = bench.producer.hang = threading.Event()

    def made() -> Iterator[OutRecord]:
        yield RECORD
        assert bench.producer.calls == ["begin"]
        on_their_way.set()

    bench.run(made())
    assert bench.producer.calls == ["begin", "send", "produce", "commit"]


def test_offsets_that_the_client_wants_to_be_sent_again_are_sent_again(bench: Bench) -> None:
    bench.producer.errors["send"] = [KafkaError(KafkaError._TIMED_OUT, "slow", False, True)] * 2
    bench.run([RECORD])
    assert bench.producer.calls.count("send") == 3
    assert bench.producer.calls[-1] == "commit"


def test_where_the_offsets_are_refused_nothing_is_written(bench: Bench) -> None:
    bench.producer.errors["send"] = [NO_MEMBER]
    with pytest.raises(AbortedError, match="unknown member"):
        bench.run([RECORD])
    assert bench.producer.calls == ["begin", "send", "abort"]


def test_a_call_that_never_returns_holds_up_no_stop(bench: Bench) -> None:
    bench.producer.hang = threading.Event()
    bench.is_stopping = True
    began = time.monotonic()
    with pytest.raises(StoppingError):
        bench.run()
    assert time.monotonic() - began < 5


def test_a_call_that_never_returns_ends_once_the_broker_has_given_the_transaction_up(bench: Bench) -> None:
    bench.producer.hang = threading.Event()
    began = time.monotonic()
    with pytest.raises(RestartError) as caught:
        bench.run()
    assert 0.5 <= time.monotonic() - began < 10
    assert caught.value.is_replaced_perhaps  # so long a sleep may have been another replica's chance
    assert bench.turns >= 3  # the probes saw it alive meanwhile


def test_while_the_broker_is_away_it_is_waited_for(bench: Bench) -> None:
    bench.producer.hang = threading.Event()
    bench.producer.is_broker_there = False
    ended: list[BaseException] = []

    def run() -> None:
        try:
            bench.run()
        except RestartError as error:
            ended.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(1.5)
    assert thread.is_alive()
    bench.producer.is_broker_there = True
    thread.join(10)
    assert len(ended) == 1


def test_a_long_wait_is_said_once_and_so_is_its_end(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(transactions, "SAY_AFTER_SECONDS", 0.05)
    monkeypatch.setattr(transactions.logs, "warning", lambda message, **_: said.append(message))
    monkeypatch.setattr(transactions.logs, "info", lambda message, **_: said.append(message))
    bench.run()
    assert said == []
    bench.producer.is_broker_there = False
    bench.producer.hang = threading.Event()
    thread = threading.Thread(target=bench.run)
    thread.start()
    wait_until(lambda: said and bench.turns > 10, "it waits on")
    bench.producer.hang.set()
    thread.join(20)
    assert said == ["a transaction waits for the broker's answer", "the transaction has gone through"]


def test_an_answer_that_is_an_error_is_handled_like_that_of_any_call(bench: Bench) -> None:
    passes = KafkaError(KafkaError.COORDINATOR_LOAD_IN_PROGRESS, "loading", False, True)
    bench.producer.errors["send"] = [passes, passes]
    bench.run()
    assert bench.producer.calls == ["begin", "send", "send", "send", "commit"]
    bench.producer.errors["send"] = [KafkaError(KafkaError.ILLEGAL_GENERATION, "old", False, False, True)]
    with pytest.raises(AbortedError):
        bench.run()
    assert bench.producer.calls[-1] == "abort"


@pytest.mark.parametrize("call", ["begin", "send", "commit"])
@pytest.mark.parametrize(
    "code",
    [KafkaError.UNKNOWN_PRODUCER_ID, KafkaError.TRANSACTION_COORDINATOR_FENCED, KafkaError.INVALID_TXN_STATE],
)
def test_an_error_that_ends_a_transaction_alone_is_aborted_and_the_next_one_goes_through(
    bench: Bench, code: int, call: str
) -> None:
    bench.producer.errors[call] = [KafkaError(code, "abortable", False, False, True)]
    with pytest.raises(AbortedError):
        bench.run()
    assert bench.producer.calls[-1] == "abort"
    bench.run()
    assert bench.producer.calls[-1] == "commit"


@pytest.mark.parametrize("code", [KafkaError.CONCURRENT_TRANSACTIONS, KafkaError.NOT_COORDINATOR])
def test_a_coordinator_that_is_busy_or_has_moved_is_asked_again(bench: Bench, code: int) -> None:
    for call in ("begin", "send", "commit"):
        bench.producer.errors[call] = [KafkaError(code, "passes", False, True)] * 2
    bench.run()
    assert bench.producer.calls == [*["begin"] * 3, *["send"] * 3, *["commit"] * 3]


def test_a_commit_without_an_answer_is_asked_again_and_never_aborted(bench: Bench) -> None:
    bench.producer.errors["commit"] = [KafkaError(KafkaError._TIMED_OUT, "resume", False, True)] * 3
    bench.run()
    assert bench.producer.calls == ["begin", "send", *["commit"] * 4]


def test_a_stop_ends_the_wait_for_the_coordinator(bench: Bench) -> None:
    waits = KafkaError(KafkaError._TIMED_OUT, "resume", False, True)
    bench.producer.errors["init"] = [waits] * 3
    bench.transactions.init()
    assert bench.producer.calls == ["init"] * 4
    bench.producer.errors["init"] = [waits]
    bench.is_stopping = True
    with pytest.raises(StoppingError):
        bench.transactions.init()


def test_the_wait_for_the_coordinator_is_bounded_and_says_what_to_look_at(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transactions, "INIT_BUDGET_SECONDS", 0.5)
    bench.producer.errors["init"] = [KafkaError(KafkaError._TIMED_OUT, "no coordinator", False, True)] * 1_000_000
    with pytest.raises(KafkaRefusedError, match=r"no coordinator.*has its transaction topic enough replicas"):
        bench.transactions.init()
    assert len(bench.producer.calls) > 1


def test_a_member_that_the_group_takes_for_replaced_begins_anew_where_its_transactional_id_is_still_its_own(
    bench: Bench,
) -> None:
    bench.producer.errors["send"] = [FENCED_MEMBER]
    with pytest.raises(RestartError):
        bench.run()
    assert bench.producer.calls == ["begin", "send", "abort"]


def test_a_member_that_the_group_takes_for_replaced_ends_where_another_has_its_transactional_id(bench: Bench) -> None:
    bench.producer.errors = {"send": [FENCED_MEMBER], "abort": [FENCED_PRODUCER]}
    with pytest.raises(FencedError):
        bench.run()


@pytest.mark.parametrize(
    ("errors", "is_ours"),
    [
        ({"send": [FENCED_MEMBER]}, True),
        ({}, True),  # the group takes offsets of who is no member, and they are aborted
        ({"send": [FENCED_PRODUCER], "abort": [FENCED_PRODUCER]}, False),
        ({"send": [FENCED_MEMBER], "abort": [FENCED_PRODUCER]}, False),
        ({"send": [KafkaError(KafkaError._STATE, "no transaction")]}, None),  # so nobody was asked
        ({"begin": [FENCED_PRODUCER]}, None),  # by whoever, and long ago
    ],
)
def test_a_transactional_id_is_ours_while_the_coordinator_lets_us_abort(
    bench: Bench, errors: dict[str, list[KafkaError]], is_ours: bool | None
) -> None:
    bench.producer.errors = {name: list(given) for name, given in errors.items()}
    assert bench.transactions.is_ours("t", CONSUMER) is is_ours
    assert "commit" not in bench.producer.calls


def test_a_broker_that_does_not_answer_leaves_the_transactional_id_in_doubt(bench: Bench) -> None:
    bench.producer.hang = threading.Event()
    assert bench.transactions.is_ours("t", CONSUMER) is None


def test_who_was_slow_to_be_given_its_identity_may_have_fenced_itself_once(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request for the identity that comes late, behind one that was sent after it, looks like another replica's."""
    monkeypatch.setattr(transactions, "CALL_SECONDS", 0.0)
    bench.producer.errors["init"] = [KafkaError(KafkaError._TIMED_OUT, "resume", False, True)]
    bench.transactions.init()
    bench.producer.errors["send"] = [FENCED_PRODUCER]
    with pytest.raises(RestartError) as caught:
        bench.run()
    assert caught.value.is_replaced_perhaps
    bench.run()
    bench.producer.errors["send"] = [FENCED_PRODUCER]
    with pytest.raises(FencedError):
        bench.run()


def test_a_producer_that_failed_is_free_once_it_is_dropped() -> None:
    def fail() -> weakref.ref[Transactions]:
        transactions = Transactions(
            {"bootstrap.servers": "127.0.0.1:1", "log_level": 0}, "a", 10.0, lambda: False, lambda: None
        )
        with suppress(RestartError):
            transactions.run([], [], None)  # type: ignore[arg-type]  # neither begins nor aborts: it isn't initialised
        transactions.close()
        return weakref.ref(transactions)

    is_alive = fail()
    gc.collect()
    assert is_alive() is None
