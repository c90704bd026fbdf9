"""A dead letter is the record untouched, with its origin; and never larger than its topic takes."""

from __future__ import annotations

import contextlib
import hashlib
import os
from pathlib import Path

import pytest
from confluent_kafka import Producer

from stream_metrics.core.effects import SetAside
from stream_metrics.core.record import CREATE_TIME, NO_TIMESTAMP, LogRecord
from stream_metrics.sidecar.dead_letters import PREFIX, DeadLetter, dead_letter

MEGABYTE = 1_048_588


def _letter(record: LogRecord, max_bytes: int = MEGABYTE, message: str = "wrong") -> DeadLetter:
    return dead_letter(SetAside(record, "undecodable", "EventError", message), max_bytes)


def _origin(letter: DeadLetter) -> dict[str, str]:
    return {
        name.removeprefix(PREFIX): (value or b"").decode("utf-8")
        for name, value in letter.headers
        if name.startswith(PREFIX)
    }


def _bytes(letter: DeadLetter) -> int:
    """As the record format counts: lengths are varints of up to 5 bytes, the record itself has some 21 more."""
    headers = sum(len(name.encode()) + len(value or b"") + 10 for name, value in letter.headers)
    return len(letter.key or b"") + len(letter.value or b"") + headers + 70


def test_key_value_and_headers_are_untouched_and_the_origin_comes_after_them() -> None:
    headers = [("h", None), ("h", b""), ("h", b"\xff\x00"), ("", b"no name"), ("ключ", b"x")]
    record = LogRecord(
        value=b"\x00\xffvalue",
        key=b"\xfe\x00",
        headers=headers,  # type: ignore[arg-type]  # a list of the same pairs
        partition=3,
        offset=41,
        timestamp=(CREATE_TIME, 1_700_000_000_123),
        topic="in",
    )
    letter = _letter(record)
    assert (letter.key, letter.value) == (b"\xfe\x00", b"\x00\xffvalue")
    assert letter.headers[: len(headers)] == headers
    assert _origin(letter) == {
        "topic": "in",
        "partition": "3",
        "offset": "41",
        "timestamp": "1700000000123",
        "reason": "undecodable",
        "error": "EventError",
        "message": "wrong",
    }


@pytest.mark.parametrize("key", [None, b""])
@pytest.mark.parametrize("value", [b"", b"x"])
def test_no_key_and_an_empty_key_stay_what_they_are(key: bytes | None, value: bytes) -> None:
    letter = _letter(LogRecord(value=value, key=key, topic="in"))
    assert (letter.key, letter.value) == (key, value)


def test_a_record_without_a_timestamp_says_so() -> None:
    assert _origin(_letter(LogRecord(value=b"x", timestamp=(NO_TIMESTAMP, -1))))["timestamp"] == ""


def test_a_message_that_is_no_text_can_still_be_written() -> None:
    letter = _letter(LogRecord(value=b"x"), message="lone \ud800 " + "x" * 10_000)
    assert _origin(letter)["message"].startswith(r"lone \ud800 ")
    assert len(_origin(letter)["message"]) < 1_000


def test_a_letter_that_fits_is_not_cut() -> None:
    value = b"x" * (MEGABYTE - 2_048)
    assert _letter(LogRecord(value=value)).value == value
    assert "cut_from_bytes" not in _origin(_letter(LogRecord(value=value)))


def test_a_value_too_large_is_cut_and_leaves_its_hash() -> None:
    value = bytes(range(256)) * 8_192
    letter = _letter(LogRecord(value=value, key=b"k", headers=[("h", b"1")], topic="in", offset=7))
    assert letter.value is not None and value.startswith(letter.value) and len(letter.value) > MEGABYTE - 5_000
    assert letter.key == b"k" and letter.headers[0] == ("h", b"1")
    origin = _origin(letter)
    assert origin["cut_from_bytes"] == str(len(value))
    assert origin["value_sha256"] == hashlib.sha256(value).hexdigest()
    assert (origin["topic"], origin["offset"]) == ("in", "7")


@pytest.mark.parametrize("max_bytes", [4_096, 8_192, 100_000, MEGABYTE])
@pytest.mark.parametrize(
    "record",
    [
        LogRecord(value=b"v" * 3_000_000),
        LogRecord(value=b"v", key=b"k" * 3_000_000),
        LogRecord(value=b"v" * 3_000_000, key=b"k" * 3_000_000, headers=[("h", b"x" * 3_000_000)]),
        LogRecord(value=b"", headers=[("h", b"x" * 3_000_000)]),
        LogRecord(value=b"v", headers=[("h" * 100, b"")] * 30_000),
        LogRecord(value=b"v" * 1_000, headers=[("é" * 1_000, None)] * 1_000),
    ],
    ids=["value", "key", "all", "header", "many headers", "header names"],
)
def test_no_letter_is_larger_than_its_topic_takes(record: LogRecord, max_bytes: int) -> None:
    letter = _letter(record, max_bytes, message="é" * 10_000)
    assert _bytes(letter) <= max_bytes
    assert _origin(letter)["cut_from_bytes"] == str(len(record.value() or b""))


def test_headers_that_alone_are_too_large_are_dropped_and_it_is_said() -> None:
    letter = _letter(LogRecord(value=b"v", key=b"k", headers=[("h", b"x" * 2_000_000)]))
    assert (letter.key, letter.value) == (b"k", b"v")
    assert _origin(letter)["headers_dropped"] == "true"
    assert all(name.startswith(PREFIX) for name, _ in letter.headers)


def test_a_client_whose_queue_is_full_keeps_nothing_of_the_letters_that_it_refuses() -> None:
    """Older clients kept the headers: a kilobyte of each."""
    nobody = Producer({"bootstrap.servers": "127.0.0.1:1", "queue.buffering.max.messages": 1, "log_level": 0})
    letter = _letter(LogRecord(value=b"x", topic="in"), message="wrong " * 80)

    def refused(count: int) -> int:
        for _ in range(count):
            with contextlib.suppress(BufferError):
                nobody.produce("letters", value=letter.value, headers=letter.headers)  # type: ignore[arg-type]
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    before = refused(5_000)
    assert refused(40_000) - before < 10 * 2**20
    nobody.purge()
