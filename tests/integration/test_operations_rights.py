"""A broker that lets nobody do what he wasn't given: each right that is missing is named, and so is what it is for."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
)

from stream_metrics.testing import close, sample
from support.brokers import PASSWORD, USER, Broker
from support.operations import Operated, operated
from support.topics import unique_name

EVERYWHERE = "*"


class Right(NamedTuple):
    kind: ResourceType
    name: str
    operation: AclOperation

    def binding(self, of: type[Any] = AclBinding) -> Any:
        user = f"User:{USER}"
        pattern, allow = ResourcePatternType.LITERAL, AclPermissionType.ALLOW
        return of(self.kind, self.name, pattern, user, EVERYWHERE, self.operation, allow)


class Guarded:
    """A sidecar whose user has all rights that the papers name, and those only.

    Attributes:
        sidecar: Not started.
        rights: By what a test calls them.
    """

    def __init__(self, broker: Broker, sidecar: Operated) -> None:
        self.sidecar = sidecar
        self._broker = broker
        made = sidecar.deployment
        topics = {"input": made.input_topic, "output": made.output_topic, "letters": made.dead_letter_topic}
        operations = [AclOperation.WRITE, AclOperation.DESCRIBE, AclOperation.DESCRIBE_CONFIGS]
        self.rights = {
            f"{operation.name} {what}": Right(ResourceType.TOPIC, topic, operation)
            for what, topic in topics.items()
            for operation in operations
        }
        self.rights["READ input"] = Right(ResourceType.TOPIC, made.input_topic, AclOperation.READ)
        self.rights["READ group"] = Right(ResourceType.GROUP, made.group, AclOperation.READ)
        for operation in (AclOperation.WRITE, AclOperation.DESCRIBE):
            self.rights[f"{operation.name} transactional id"] = Right(
                ResourceType.TRANSACTIONAL_ID, f"{made.group}-me", operation
            )
        self._given: list[Right] = []

    def give(self, *rights: Right) -> None:
        """The user has these rights too."""
        self._given += rights
        for future in self.sidecar.admin.create_acls([right.binding() for right in rights]).values():
            future.result(30)

    def take(self, *rights: Right) -> None:
        """The user hasn't these rights any more."""
        gone = {right.binding(AclBindingFilter) for right in rights}
        for future in self.sidecar.admin.delete_acls(list(gone)).values():
            future.result(30)

    def give_all_but(self, *missing: str) -> None:
        assert self.rights.keys() >= set(missing)
        self.give(*(right for name, right in self.rights.items() if name not in missing))

    def start(self, password: str = PASSWORD, **settings: Any) -> None:
        login = ["security.protocol=SASL_PLAINTEXT", "sasl.mechanism=PLAIN"]
        self.sidecar.start(
            bootstrap_servers=self._broker.secured_bootstrap,
            instance_id="me",
            kafka_config=[*login, f"sasl.username={USER}", f"sasl.password={password}"],
            **settings,
        )

    def refusal(self) -> str:
        """Returns the one line that says why it ended with exit code 3."""
        process = self.sidecar.process
        assert process.wait_until_ended(60) == 3, process.told()
        (line,) = (line for line in process.log() if line["level"] == "error")
        assert "Traceback" not in process.told()
        assert PASSWORD not in process.told()
        return str(line["message"])

    def close(self) -> None:
        self.take(*self._given)


@pytest.fixture
def guarded(stoppable_broker: Broker, tmp_path: Path) -> Iterator[Guarded]:
    with operated(stoppable_broker.bootstrap, tmp_path, close_grace=1) as sidecar:
        made = Guarded(stoppable_broker, sidecar)
        yield made
        made.close()


def _work(sidecar: Operated) -> None:
    """All that needs a right has been done: results, a dead letter, a timeout marker, commits."""
    sidecar.send(sample(1, 1.0), close(1), b"poison", close(2, expected_samples=1))
    sidecar.wait_for_results(2)
    sidecar.wait_for_letters(1)
    sidecar.wait_until_read()


def test_the_rights_that_the_papers_name_are_enough(guarded: Guarded) -> None:
    guarded.give_all_but()
    guarded.start()
    _work(guarded.sidecar)
    assert guarded.sidecar.process.terminate() == 0
    loud = [line["message"] for line in guarded.sidecar.process.log() if line["level"] != "info"]
    assert loud == ["a step waited too long: closing it as it is"]


def test_without_the_right_to_see_configurations_it_works_and_says_so(guarded: Guarded) -> None:
    guarded.give_all_but("DESCRIBE_CONFIGS input", "DESCRIBE_CONFIGS output", "DESCRIBE_CONFIGS letters")
    guarded.start()
    _work(guarded.sidecar)
    said = guarded.sidecar.process.said("can't read the configuration of topic")
    made = guarded.sidecar.deployment
    assert {line["topic"] for line in said} == {made.input_topic, made.output_topic, made.dead_letter_topic}


@pytest.mark.parametrize(
    ("missing", "expected"),
    [
        ("READ input", ["READ", "{input}"]),
        ("WRITE input", ["WRITE", "{input}", "timeout markers"]),
        ("WRITE output", ["WRITE", "{output}"]),
        ("WRITE letters", ["WRITE", "{letters}"]),
        ("READ group", ["read the consumer group", "{group}"]),
        ("WRITE transactional id", ["write and describe the transactional id", "{group}-me"]),
    ],
)
def test_a_missing_right_is_named_with_what_it_is_for(guarded: Guarded, missing: str, expected: list[str]) -> None:
    guarded.give_all_but(missing)
    guarded.start()
    message = guarded.refusal()
    made = guarded.sidecar.deployment
    names = {"input": made.input_topic, "output": made.output_topic, "letters": made.dead_letter_topic}
    for part in expected:
        assert part.format(**names, group=made.group) in message


@pytest.mark.parametrize(
    "lost", ["READ input", "WRITE output", "WRITE letters", "READ group", "WRITE transactional id"]
)
def test_a_right_lost_while_running_ends_it_with_what_it_needs(guarded: Guarded, lost: str) -> None:
    guarded.give_all_but()
    guarded.start()
    sidecar = guarded.sidecar
    _work(sidecar)
    guarded.take(guarded.rights[lost])
    sidecar.send(sample(3, 1.0), close(3), b"poison")
    message = guarded.refusal()
    assert "this needs the right to" in message or f"no right to WRITE topic '{guarded.rights[lost].name}'" in message
    guarded.give(guarded.rights[lost])
    guarded.start()
    sidecar.wait_for_results(3)  # nothing is lost, and nothing came twice
    sidecar.wait_for_letters(2)


def test_a_right_lost_to_write_timeout_markers_ends_it(guarded: Guarded) -> None:
    guarded.give_all_but()
    guarded.start()
    _work(guarded.sidecar)
    guarded.take(guarded.rights["WRITE input"])
    guarded.sidecar.send(close(3, expected_samples=1))
    assert guarded.sidecar.deployment.input_topic in guarded.refusal()


def test_topics_that_it_may_not_create_are_named(guarded: Guarded) -> None:
    guarded.give_all_but()
    missing = unique_name("missing")
    guarded.give(*(Right(ResourceType.TOPIC, missing, one) for one in (AclOperation.READ, AclOperation.WRITE)))
    guarded.start(input_topic=missing, create_topics=True)
    assert f"can't create topic {missing!r}" in guarded.refusal()
    guarded.give(Right(ResourceType.BROKER, "kafka-cluster", AclOperation.CREATE))
    guarded.start(input_topic=missing, create_topics=True)
    guarded.sidecar.process.wait_for("partitions assigned")


def test_a_topic_that_it_may_not_even_see_is_waited_for_by_name(guarded: Guarded) -> None:
    guarded.give_all_but("READ input", "WRITE input", "DESCRIBE input", "DESCRIBE_CONFIGS input")
    guarded.start()
    line = guarded.sidecar.process.wait_for("waiting for missing topics")
    assert guarded.sidecar.deployment.input_topic in line["message"]
    guarded.give(*(right for name, right in guarded.rights.items() if name.endswith("input")))
    _work(guarded.sidecar)


def test_a_wrong_password_is_said_and_not_shown(guarded: Guarded) -> None:
    guarded.give_all_but()
    guarded.start(password="wrong-one")
    message = guarded.refusal()
    assert "Invalid username or password" in message
    assert "wrong-one" not in guarded.sidecar.process.told()
