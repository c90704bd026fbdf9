"""Which topic of its name the input topic is, with an admin client that answers when the test says."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, Uuid

from stream_metrics.sidecar.input_topic import LOOK_SECONDS, InputTopic


class FakeAdmin:
    def __init__(self) -> None:
        self.asked: list[Future[Any]] = []
        self.polls = 0

    def poll(self, _: float) -> None:
        self.polls += 1

    def describe_topics(self, collection: Any, **_: Any) -> dict[str, Future[Any]]:
        self.asked.append(Future())
        return {"t": self.asked[-1]}

    def answer(self, topic_id: Any) -> None:
        self.asked[-1].set_result(SimpleNamespace(topic_id=topic_id))

    def fail(self, code: int = KafkaError._TIMED_OUT) -> None:
        self.asked[-1].set_exception(KafkaException(KafkaError(code)))


def _topic() -> tuple[InputTopic, FakeAdmin]:
    admin: Any = FakeAdmin()
    return InputTopic(lambda: admin, "t"), admin


@pytest.mark.parametrize(("given", "expected"), [(Uuid(1, 2), str(Uuid(1, 2))), (Uuid(0, 0), ""), (None, "")])
def test_a_topic_has_the_id_that_the_broker_gives_it_or_none(given: Any, expected: str) -> None:
    admin: Any = SimpleNamespace(describe_topics=lambda *_, **__: {"t": answered})
    answered: Future[Any] = Future()
    answered.set_result(SimpleNamespace(topic_id=given))
    assert InputTopic(lambda: admin, "t").id() == expected


def test_a_look_waits_for_no_answer_and_asks_now_and_then() -> None:
    topic, admin = _topic()
    assert topic.look(100.0) == "" and len(admin.asked) == 1
    assert topic.look(100.0 + 2 * LOOK_SECONDS) == "" and len(admin.asked) == 1
    admin.answer(Uuid(1, 2))
    assert topic.look(100.0 + 2 * LOOK_SECONDS) == str(Uuid(1, 2)) and len(admin.asked) == 1
    assert topic.look(100.0 + 2 * LOOK_SECONDS) == "" and len(admin.asked) == 2
    assert topic.look(100.0 + 2 * LOOK_SECONDS) == "" and len(admin.asked) == 2


def test_a_broker_that_does_not_answer_says_nothing_of_the_topic() -> None:
    topic, admin = _topic()
    topic.look(100.0)
    admin.fail()
    assert topic.look(101.0) == ""
    assert topic.look(100.0 + LOOK_SECONDS) == "" and len(admin.asked) == 2
    assert admin.polls == 3  # what it tells meanwhile must not pile up


def test_an_answer_from_before_a_takeover_is_not_looked_at() -> None:
    topic, admin = _topic()
    topic.look(100.0)
    old = admin.asked[0]
    ask = admin.describe_topics

    def answered(*_: Any, **__: Any) -> Any:
        made = ask(None)
        made["t"].set_result(SimpleNamespace(topic_id=Uuid(3, 4)))
        return made

    admin.describe_topics = answered
    assert topic.id() == str(Uuid(3, 4))
    old.set_result(SimpleNamespace(topic_id=Uuid(1, 2)))
    assert topic.look(101.0) == ""


def test_looks_that_nobody_answers_are_counted_until_somebody_does() -> None:
    topic, admin = _topic()

    def look(now: float, code: int | None) -> int:
        topic.look(now)
        if code is None:
            admin.answer(Uuid(1, 2))
        else:
            admin.fail(code)
        topic.look(now)
        return topic.silent_looks

    assert look(100.0, KafkaError._TIMED_OUT) == 1
    assert look(110.0, KafkaError._TRANSPORT) == 2
    assert look(120.0, KafkaError.UNKNOWN_TOPIC_OR_PART) == 0  # an answer
    assert look(130.0, KafkaError._TIMED_OUT) == 1
    assert look(140.0, None) == 0


def test_a_look_that_is_wanted_soon_asks_whenever_the_last_one_did() -> None:
    topic, admin = _topic()
    topic.look(100.0)
    admin.answer(Uuid(1, 2))
    topic.look(100.1)
    topic.look(100.2)
    assert len(admin.asked) == 1
    topic.look_soon()
    topic.look(100.3)
    assert len(admin.asked) == 2


def test_a_client_that_asks_nobody_any_more_is_replaced() -> None:
    admins: list[Any] = []

    def make() -> Any:
        admins.append(FakeAdmin())
        return admins[-1]

    topic = InputTopic(make, "t")
    topic.look(100.0)
    topic.begin_anew()
    topic.look(106.0)
    assert [len(admin.asked) for admin in admins] == [1, 1]
