"""The topics before the first record, with an admin client that answers as the test says."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AclOperation

from stream_metrics.config import Settings
from stream_metrics.sidecar import logs, topics
from stream_metrics.sidecar.errors import KafkaRefusedError, StoppingError
from stream_metrics.sidecar.topics import Topics

ALL = ("rollout-samples", "rollout-metrics", "rollout-dead-letters")
LONG_MS = str(7 * 24 * 3_600_000)


class FakeAdmin:
    """A cluster with some topics.

    Attributes:
        config: From topic to its settings; also which topics there are.
        rights: From topic to what we may do.
        refuse_create: Error code that creating a topic gives.
        list_errors: Error codes that the next listings give.
        told_errors: Errors that the client tells of beside them.
    """

    def __init__(self) -> None:
        self.config: dict[str, dict[str, str]] = {
            "rollout-samples": {"cleanup.policy": "delete", "retention.ms": LONG_MS, "retention.bytes": "-1"},
            "rollout-metrics": {"cleanup.policy": "compact"},
            "rollout-dead-letters": {"cleanup.policy": "delete", "max.message.bytes": "5000"},
        }
        self.rights = {topic: {AclOperation.READ, AclOperation.WRITE} for topic in ALL}
        self.refuse_create: int | None = None
        self.list_errors: list[int] = []
        self.told_errors: list[KafkaError] = []
        self.tell: Callable[[KafkaError], None] = lambda _: None
        self.made: dict[str, tuple[int, dict[str, str]]] = {}

    def list_topics(self, timeout: float) -> Any:
        if self.list_errors:
            raise KafkaException(KafkaError(self.list_errors.pop(0)))
        return SimpleNamespace(topics={topic: SimpleNamespace(error=None) for topic in self.config})

    def poll(self, _: float) -> None:
        for error in self.told_errors:
            self.tell(error)

    def create_topics(self, new: list[Any], **_: Any) -> dict[str, Future[None]]:
        for one in new:
            if self.refuse_create is None:
                self.config[one.topic] = dict(one.config)
                self.made[one.topic] = (one.num_partitions, dict(one.config))
        return {one.topic: _answer(None, self.refuse_create) for one in new}

    def describe_topics(self, collection: Any, **_: Any) -> dict[str, Future[Any]]:
        return {topic: _answer(SimpleNamespace(authorized_operations=list(self.rights[topic]))) for topic in ALL}

    def describe_configs(self, resources: list[Any], **_: Any) -> dict[Any, Future[Any]]:
        entries = {name: SimpleNamespace(value=value) for name, value in self.config.get(resources[0].name, {}).items()}
        return {resources[0]: _answer(entries)}


def _answer(value: Any, code: int | None = None) -> Future[Any]:
    future: Future[Any] = Future()
    if code is None:
        future.set_result(value)
    else:
        future.set_exception(KafkaException(KafkaError(code)))
    return future


@pytest.fixture
def admin(monkeypatch: pytest.MonkeyPatch) -> FakeAdmin:
    fake = FakeAdmin()

    def make(config: dict[str, Any], **_: Any) -> FakeAdmin:
        fake.tell = config["error_cb"]
        return fake

    monkeypatch.setattr(topics, "AdminClient", make)
    return fake


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    lines: list[str] = []

    def say(message: str, **fields: Any) -> None:
        lines.append(" ".join([message, *(f"{name}={value}" for name, value in fields.items())]))

    for level in ("info", "warning", "error"):
        monkeypatch.setattr(logs, level, say)
    return lines


def _topics(
    is_stopping: Callable[[], bool] = lambda: False,
    pause: Callable[[float], None] = lambda _: None,
    **settings: Any,
) -> Topics:
    return Topics(Settings(**settings), is_stopping, lambda: None, pause)


def test_good_topics_are_taken_without_a_word(admin: FakeAdmin, said: list[str]) -> None:
    _topics().prepare()
    assert said == []


def test_missing_topics_are_waited_for_and_named_once(admin: FakeAdmin, said: list[str]) -> None:
    later = {topic: admin.config.pop(topic) for topic in ("rollout-metrics", "rollout-samples")}
    waits: list[float] = []

    def pause(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 5:
            admin.config.update(later)

    _topics(pause=pause).prepare()
    assert said == [
        "waiting for missing topics: rollout-samples, rollout-metrics; create them, or run with --create-topics",
        f"the topics are there topics={','.join(ALL)}",
    ]
    assert len(waits) == 5


def test_a_stop_ends_the_wait(admin: FakeAdmin, said: list[str]) -> None:
    admin.config.clear()
    with pytest.raises(StoppingError):
        _topics(is_stopping=lambda: bool(said)).prepare()


def test_a_broker_that_is_away_is_waited_for_and_said_once(admin: FakeAdmin, said: list[str]) -> None:
    admin.list_errors = [KafkaError._TRANSPORT] * 4
    _topics(bootstrap_servers="broker:1").prepare()
    assert [line.startswith("waiting for the broker at broker:1") for line in said] == [True, False]


def test_wrong_credentials_are_not_waited_out(admin: FakeAdmin, said: list[str]) -> None:
    admin.list_errors = [KafkaError._AUTHENTICATION]
    with pytest.raises(KafkaRefusedError, match="asking localhost:9092 for the topics"):
        _topics().prepare()


def test_missing_topics_are_created_as_they_must_be(admin: FakeAdmin, said: list[str]) -> None:
    admin.config.clear()
    _topics(create_topics=True, input_partitions=7).prepare()
    assert admin.made == {
        "rollout-samples": (7, {"cleanup.policy": "delete"}),
        "rollout-metrics": (1, {"cleanup.policy": "compact"}),
        "rollout-dead-letters": (1, {"cleanup.policy": "delete"}),
    }


@pytest.mark.parametrize(
    "code",
    [KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.CLUSTER_AUTHORIZATION_FAILED, KafkaError.POLICY_VIOLATION],
)
def test_a_topic_that_may_not_be_created_is_named(admin: FakeAdmin, said: list[str], code: int) -> None:
    del admin.config["rollout-metrics"]
    admin.refuse_create = code
    with pytest.raises(KafkaRefusedError, match="'rollout-metrics'"):
        _topics(create_topics=True).prepare()


def test_brokers_that_are_still_too_few_for_a_topic_are_waited_for_and_said_once(
    admin: FakeAdmin, said: list[str]
) -> None:
    del admin.config["rollout-metrics"]
    admin.refuse_create = KafkaError.INVALID_REPLICATION_FACTOR
    waits: list[float] = []

    def pause(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 5:
            admin.refuse_create = None

    _topics(create_topics=True, pause=pause).prepare()
    assert [line.split(":")[0] for line in said] == [
        "can't create topic 'rollout-metrics' yet",
        "created topic topic=rollout-metrics partitions=1 cleanup.policy=compact",
    ]
    assert min(waits[:5]) >= 1


@pytest.mark.parametrize(
    ("topic", "lacks", "expected"),
    [
        ("rollout-samples", AclOperation.READ, "no right to READ topic 'rollout-samples'"),
        ("rollout-samples", AclOperation.WRITE, "timeout markers are written to it"),
        ("rollout-metrics", AclOperation.WRITE, "no right to WRITE topic 'rollout-metrics'"),
        ("rollout-dead-letters", AclOperation.WRITE, "no right to WRITE topic 'rollout-dead-letters'"),
    ],
)
def test_a_right_that_lacks_is_named_before_the_first_record(
    admin: FakeAdmin, said: list[str], topic: str, lacks: AclOperation, expected: str
) -> None:
    admin.rights[topic].discard(lacks)
    with pytest.raises(KafkaRefusedError, match=expected):
        _topics().prepare()


def test_reading_the_output_topics_needs_no_right(admin: FakeAdmin, said: list[str]) -> None:
    admin.rights["rollout-metrics"] = admin.rights["rollout-dead-letters"] = {AclOperation.WRITE}
    _topics().prepare()


@pytest.mark.parametrize("policy", ["compact", "compact,delete"])
def test_a_compacted_input_topic_is_refused_by_name(admin: FakeAdmin, said: list[str], policy: str) -> None:
    admin.config["rollout-samples"]["cleanup.policy"] = policy
    with pytest.raises(KafkaRefusedError, match=r"'rollout-samples' is compacted \(cleanup.policy=" + policy):
        _topics().prepare()


def test_a_retention_that_can_drop_open_steps_is_said_by_name(admin: FakeAdmin, said: list[str]) -> None:
    admin.config["rollout-samples"]["retention.ms"] = "60000"
    _topics(idle_timeout_seconds=3_600.0, close_grace_seconds=60.0).prepare()
    (line,) = said
    assert "topic=rollout-samples retention_ms=60000 advised_ms=7320000" in line


@pytest.mark.parametrize("retention_ms", ["-1", LONG_MS])
def test_a_long_retention_is_not_worth_a_word(admin: FakeAdmin, said: list[str], retention_ms: str) -> None:
    admin.config["rollout-samples"]["retention.ms"] = retention_ms
    _topics().prepare()
    assert said == []


def test_an_input_topic_bounded_in_bytes_is_said_by_name(admin: FakeAdmin, said: list[str]) -> None:
    admin.config["rollout-samples"]["retention.bytes"] = "1000"
    _topics().prepare()
    (line,) = said
    assert "topic=rollout-samples retention_bytes=1000" in line


def test_an_output_topic_that_is_not_compacted_is_said_by_name(admin: FakeAdmin, said: list[str]) -> None:
    admin.config["rollout-metrics"]["cleanup.policy"] = "delete"
    _topics().prepare()
    (line,) = said
    assert "not compacted" in line and "topic=rollout-metrics" in line


def test_the_largest_dead_letter_is_what_its_topic_says(admin: FakeAdmin, said: list[str]) -> None:
    assert _topics().dead_letter_max_bytes() == 5_000
    del admin.config["rollout-dead-letters"]["max.message.bytes"]
    assert _topics().dead_letter_max_bytes() == 1_048_588


def test_a_broker_that_does_not_take_the_password_ends_the_wait_with_its_reason(admin: FakeAdmin) -> None:
    admin.list_errors = [KafkaError._TRANSPORT]
    admin.told_errors = [
        KafkaError(KafkaError._AUTHENTICATION, "SASL authentication error: Invalid password (after 3ms in state UP)"),
        KafkaError(KafkaError._ALL_BROKERS_DOWN, "1/1 brokers are down"),
    ]
    with pytest.raises(KafkaRefusedError, match="Invalid password"):
        _topics().prepare()


def test_why_a_broker_is_not_reached_is_said_once_however_long_each_try_took(admin: FakeAdmin, said: list[str]) -> None:
    admin.list_errors = [KafkaError._TRANSPORT] * 3
    took = iter(range(9))

    def tell(_: float) -> None:
        admin.tell(KafkaError(KafkaError._SSL, f"SSL handshake failed: unknown CA (after {next(took)}ms in state UP)"))

    admin.poll = tell  # type: ignore[method-assign]
    _topics().prepare()
    assert said[0] == "waiting for the broker at localhost:9092: SSL handshake failed: unknown CA"
    assert len(said) == 2  # and that the topics are there
