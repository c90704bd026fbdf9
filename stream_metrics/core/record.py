"""One record of an input log, as the fold sees it: Kafka's own message, or a line of a file.

`Record` has the methods of `confluent_kafka.Message`, so that a consumed message is folded with no copy. The client's
type stubs say Optional where a message without error always has a value; the shell casts once, where it consumes.
"""

from __future__ import annotations

from typing import Final, Protocol

NO_TIMESTAMP: Final = 0
CREATE_TIME: Final = 1
LOG_APPEND_TIME: Final = 2

Headers = list[tuple[str, bytes | None]]


class Record(Protocol):
    """What the fold reads of a record."""

    def topic(self) -> str:
        """Returns the name of the topic; empty where the log has none."""

    def partition(self) -> int:
        """Returns the number of the partition."""

    def offset(self) -> int:
        """Returns the record's offset in its partition."""

    def timestamp(self) -> tuple[int, int]:
        """Returns the type (0 not available, 1 create time, 2 log append time) and the unix time in milliseconds."""

    def key(self) -> bytes | None:
        """Returns the key."""

    def headers(self) -> Headers | None:
        """Returns the headers in order, or None for no headers."""

    def value(self) -> bytes | None:
        """Returns the value; None for a tombstone, which is not the same as an empty value."""


class LogRecord:
    """A `Record` that was not consumed from Kafka.

    Args:
        value: The value; None for a tombstone.
        key: The key.
        headers: Names and values in order; None for no headers.
        partition: The number of the partition.
        offset: The offset in the partition.
        timestamp: Type and unix milliseconds; type 0 where there is none.
        topic: The name of the topic; empty where there is none.
    """

    __slots__ = ("_headers", "_key", "_offset", "_partition", "_timestamp", "_topic", "_value")

    def __init__(
        self,
        *,
        value: bytes | None,
        key: bytes | None = None,
        headers: Headers | None = None,
        partition: int = 0,
        offset: int = 0,
        timestamp: tuple[int, int] = (NO_TIMESTAMP, 0),
        topic: str = "",
    ) -> None:
        self._value = value
        self._key = key
        self._headers = headers
        self._partition = partition
        self._offset = offset
        self._timestamp = timestamp
        self._topic = topic

    def topic(self) -> str:
        return self._topic

    def partition(self) -> int:
        return self._partition

    def offset(self) -> int:
        return self._offset

    def timestamp(self) -> tuple[int, int]:
        return self._timestamp

    def key(self) -> bytes | None:
        return self._key

    def headers(self) -> Headers | None:
        return self._headers

    def value(self) -> bytes | None:
        return self._value

    def __repr__(self) -> str:
        return f"LogRecord({self._topic}[{self._partition}]@{self._offset} key={self._key!r} value={self._value!r})"
