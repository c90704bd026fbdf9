"""Which topic of its name the input topic is.

A topic that is deleted and made again keeps its name and begins again at offset 0. Once it has grown beyond the next
offset of a consumer, that reads on as if nothing had been. Only the topic's id tells.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Final

from confluent_kafka import KafkaException, TopicCollection, Uuid
from confluent_kafka.admin import AdminClient

CALL_SECONDS: Final = 1.0
LOOK_SECONDS: Final = 5.0
SILENT_LOOKS: Final = 2
"""So many looks in a row that nobody answers are no hiccup: a broker that is silent without hanging up."""

_NO_ID: Final = str(Uuid(0, 0))


class InputTopic:
    """Asks for the id of a topic.

    Args:
        make_admin: Makes a client of the cluster.
        name: Of the topic.

    Attributes:
        silent_looks: How many looks in a row nobody has answered.
    """

    def __init__(self, make_admin: Callable[[], AdminClient], name: str) -> None:
        self.name = name
        self.silent_looks = 0
        self._make_admin = make_admin
        self._admin = make_admin()
        self._answer: Future[Any] | None = None
        self._asked_at = float("-inf")

    def id(self) -> str:
        """Returns the topic's id, empty where the broker gives topics none.

        Raises:
            KafkaException: The topic isn't there, or nobody answers.
        """
        self._answer = None  # what was asked before is older than this
        return _id(self._ask().result())

    def look_soon(self) -> None:
        """The next look asks, whenever the last one did: something is odd about the topic."""
        self._asked_at = float("-inf")

    def begin_anew(self) -> None:
        """Looks with a new client: one that was told of no brokers asks nobody any more."""
        self.silent_looks = 0
        self._answer = None
        self._admin = self._make_admin()

    def look(self, now: float) -> str:
        """Returns the id once in `LOOK_SECONDS`, else an empty text; never waits, so it is of some moments ago.

        Args:
            now: Monotonic seconds.
        """
        self._admin.poll(0)  # while the broker is away the client has much to tell, which would pile up
        answer, self._answer = self._answer, None
        if answer is None:
            if now - self._asked_at >= LOOK_SECONDS:
                self._asked_at = now
                self._answer = self._ask()
        elif not answer.done():
            self._answer = answer
        elif (error := answer.exception()) is None:
            self.silent_looks = 0
            return _id(answer.result())
        else:  # it may be gone, which is noticed elsewhere
            self._hear(error)
        return ""

    def _hear(self, error: BaseException) -> None:
        is_answer = isinstance(error, KafkaException) and error.args[0].code() >= 0  # the client's own are below
        self.silent_looks = 0 if is_answer else self.silent_looks + 1

    def _ask(self) -> Future[Any]:
        asked = self._admin.describe_topics(TopicCollection([self.name]), request_timeout=CALL_SECONDS)
        return asked[self.name]


def made_anew(topic: str, topic_id: str, known_id: str, offset: int) -> str:
    """Returns what is said of a topic that isn't the one whose records below an offset were folded."""
    return (
        f"{topic} was made anew: its id is {topic_id}, and {known_id} was read up to offset {offset}. Use another "
        "--group-id to fold what is there now, or go on from there with --accept-changed-replay where it is a copy"
    )


def _id(description: Any) -> str:
    text = str(description.topic_id or "")
    return "" if text == _NO_ID else text
