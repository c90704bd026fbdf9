"""Kafka clients of the commands that run to an end, and one way to say that the broker doesn't let them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer

from stream_metrics.config import Problem, Settings, SettingsError

Client = TypeVar("Client", Producer, Consumer)

ANSWER_SECONDS: Final = 10.0
"""How long a command waits for the broker's answer to one question."""

_HINTS: Final = {
    KafkaError._AUTHENTICATION: "check the credentials in --kafka-config",
    KafkaError.TOPIC_AUTHORIZATION_FAILED: "the user lacks permission on the topic",
    KafkaError.CLUSTER_AUTHORIZATION_FAILED: "the user lacks permission on the cluster",
    KafkaError.MSG_SIZE_TOO_LARGE: "raise max.message.bytes of the topic",
}


class KafkaRefusedError(Exception):
    """The broker, the topic or a permission ends the command; exit code 3."""


class Complaints:
    """Keeps the client's last complaint, which says more than the time-out that follows it."""

    def __init__(self) -> None:
        self.last = ""

    def __call__(self, error: KafkaError) -> None:
        if error.code() != KafkaError._ALL_BROKERS_DOWN or not self.last:
            self.last = error.str()

    def told(self, error: KafkaError) -> str:
        """Returns what happened, why, and what may help."""
        text = explain(error)
        return f"{text} (the client says: {self.last})" if self.last and self.last not in text else text


def explain(error: KafkaError) -> str:
    """Returns an error as text, with what may help."""
    hint = _HINTS.get(error.code())
    return f"{error.str()}; {hint}" if hint else error.str()


def make_producer(settings: Settings, own: dict[str, Any], complaints: Complaints) -> Producer:
    """Returns a producer with the settings' client properties and our own, which win.

    Raises:
        SettingsError: The client refuses a property.
    """
    return _made(Producer, settings, own, complaints)


def make_consumer(settings: Settings, own: dict[str, Any], complaints: Complaints) -> Consumer:
    """Returns a consumer with the settings' client properties and our own, which win.

    Raises:
        SettingsError: The client refuses a property.
    """
    return _made(Consumer, settings, own, complaints)


def partitions_of(client: Producer | Consumer, topic: str, complaints: Complaints) -> list[int]:
    """Returns the partitions of a topic, in order.

    Raises:
        KafkaRefusedError: No broker answers, or there is no such topic.
    """
    try:
        # All topics, since asking for one by name makes it on brokers that create topics by themselves.
        found = client.list_topics(timeout=ANSWER_SECONDS).topics.get(topic)
    except KafkaException as error:
        client.poll(0)  # brings the complaints
        raise KafkaRefusedError(f"no answer from the broker: {complaints.told(error.args[0])}") from None
    if found is None:
        raise KafkaRefusedError(f"there is no topic {topic!r}, or no permission to see it")
    if found.error is not None:
        raise KafkaRefusedError(f"topic {topic!r}: {explain(found.error)}")
    return sorted(found.partitions)


def _made(
    client: Callable[[dict[str, Any]], Client], settings: Settings, own: dict[str, Any], complaints: Complaints
) -> Client:
    # log_level 2: complaints are reported by us, once, and not by the library on standard error.
    config = {"log_level": 2, **settings.client_config(), **own, "error_cb": complaints}
    try:
        return client(config)
    except KafkaException as error:
        raise SettingsError([Problem("kafka-config", error.args[0].str())]) from None
