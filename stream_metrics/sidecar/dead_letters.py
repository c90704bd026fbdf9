"""What a dead letter looks like: the record untouched, and headers that say where it was and what is wrong with it.

A record that wouldn't fit the dead-letter topic with those headers is cut: its hash and origin stay, so that it can be
found in the input topic, and the sidecar never gets stuck on it.
"""

from __future__ import annotations

import hashlib
from typing import Final

import msgspec

from stream_metrics.core.effects import SetAside

PREFIX: Final = "stream_metrics."
_ROOM_FOR_HEADERS: Final = 2_048
_MAX_MESSAGE: Final = 512

Headers = list[tuple[str, bytes | None]]


class DeadLetter(msgspec.Struct, frozen=True):
    """A record for the dead-letter topic."""

    key: bytes | None
    value: bytes | None
    headers: Headers


def dead_letter(effect: SetAside, max_bytes: int) -> DeadLetter:
    """Returns the dead letter of a record, at most `max_bytes` large.

    Args:
        effect: The record and the reason.
        max_bytes: What key, value and headers may take together.
    """
    record = effect.record
    key, value = record.key(), record.value()
    headers: Headers = [(name, one) for name, one in record.headers() or ()]
    kind, unix_ms = record.timestamp()
    origin: Headers = [
        (PREFIX + name, text.encode("utf-8", "backslashreplace"))
        for name, text in (
            ("topic", record.topic()),
            ("partition", str(record.partition())),
            ("offset", str(record.offset())),
            ("timestamp", str(unix_ms) if kind else ""),
            ("reason", effect.reason),
            ("error", effect.error),
            ("message", effect.message[:_MAX_MESSAGE]),
        )
    ]
    room = max(max_bytes - _ROOM_FOR_HEADERS, 0)
    if _size(key, value, headers) > room:
        whole = hashlib.sha256(value or b"").hexdigest()
        origin += [
            (PREFIX + "cut_from_bytes", str(len(value or b"")).encode()),
            (PREFIX + "value_sha256", whole.encode()),
        ]
        if _size(key, b"", headers) > room // 2:
            headers = []
            key = key[: room // 2] if key is not None else None
            origin.append((PREFIX + "headers_dropped", b"true"))
        value = (value or b"")[: max(room - _size(key, b"", headers), 0)]
    return DeadLetter(key, value, headers + origin)


def _size(key: bytes | None, value: bytes | None, headers: Headers) -> int:
    # Up to ten bytes of lengths for each header, as the record format has them.
    return len(key or b"") + len(value or b"") + sum(len(name.encode()) + len(one or b"") + 20 for name, one in headers)
