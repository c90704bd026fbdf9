r"""A log as JSON lines: what `dump` writes and `replay` and `produce` read. Pure, no Kafka.

    {"topic":"rollout-samples","partition":0,"offset":7,"timestamp":1764489600000,"key":"run-1","value":{"type":"sample"}}

- `key`, `value` and header values are text as a JSON string, other bytes as `{"base64": "..."}`, and null for none.
- A `value` that is one JSON object stands as it is, byte for byte, so that a log can be read and searched.
- `timestamp` is unix milliseconds, left out where there is none; `timestamp_type` is there only for `log_append`.
- `headers` is a list of `[name, value]`, left out where there are none.
- A line with a top-level `type` or without `value` is a bare event, the line itself being the value. So is a line that
  can't be read: whoever folds it makes it a dead letter. Its offset is its place in the file.
- In lines written by hand only `value` is needed.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Iterator
from typing import Annotated, Final, Literal

import msgspec

from stream_metrics.core.record import CREATE_TIME, LOG_APPEND_TIME, NO_TIMESTAMP, Headers, LogRecord, Record

_DEEPER: Final = 128
"""Nesting left free below the decoder's limit: a value is read back inside a line, and perhaps from a deeper stack."""


class _Base64(msgspec.Struct, forbid_unknown_fields=True):
    base64: str


_Content = str | _Base64 | None
_Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]


class _Line(msgspec.Struct, kw_only=True, omit_defaults=True):
    topic: str = ""
    partition: Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)] = 0
    offset: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)] | msgspec.UnsetType = msgspec.UNSET
    timestamp: _Int64 | None = None
    timestamp_type: Literal["create", "log_append"] = "create"
    key: _Content | msgspec.UnsetType = msgspec.UNSET
    headers: list[tuple[str, _Content]] | msgspec.UnsetType = msgspec.UNSET
    value: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    type: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


class _WrittenLine(msgspec.Struct, kw_only=True):
    topic: str
    partition: int
    offset: int
    timestamp: int | msgspec.UnsetType
    timestamp_type: str | msgspec.UnsetType
    key: _Content
    headers: list[tuple[str, _Content]] | msgspec.UnsetType
    value: msgspec.Raw


_decode_line = msgspec.json.Decoder(_Line).decode
_decode_text = msgspec.json.Decoder(str).decode
_decode_base64 = msgspec.json.Decoder(_Base64).decode
_decode_any = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode

_NOT_READABLE = (msgspec.MsgspecError, RecursionError, ValueError)


def read_lines(lines: Iterable[bytes]) -> Iterator[tuple[int, LogRecord]]:
    """Yields the record of each line with the line's number, from 1; blank lines count and yield nothing."""
    for number, line in enumerate(lines, 1):
        if line.strip():
            yield number, read_line(line, number)


def read_line(line: bytes, number: int) -> LogRecord:
    """Returns the record that a line stands for; never raises.

    Args:
        line: One line, with or without its end.
        number: The line's number in its file, from 1; gives the offset of a line that says none.
    """
    record = read_dumped(line, number)
    return record if record is not None else LogRecord(value=line.rstrip(b"\r\n"), offset=number - 1)


def read_dumped(line: bytes, number: int) -> LogRecord | None:
    """Returns the record of a line that `write_line` made, or None for a bare event or a line that can't be read."""
    try:
        parsed = _decode_line(line)
        if parsed.value is msgspec.UNSET or parsed.type is not msgspec.UNSET:
            return None
        return LogRecord(
            value=_value(bytes(parsed.value)),
            key=None if parsed.key is msgspec.UNSET else _content(parsed.key),
            headers=None
            if parsed.headers is msgspec.UNSET
            else [(name, _content(content)) for name, content in parsed.headers],
            partition=parsed.partition,
            offset=number - 1 if parsed.offset is msgspec.UNSET else parsed.offset,
            timestamp=_timestamp(parsed),
            topic=parsed.topic,
        )
    except _NOT_READABLE:
        return None


def write_line(record: Record) -> bytes:
    """Returns the line, with its end, that `read_line` makes an equal record of."""
    kind, unix_ms = record.timestamp()
    headers: Headers | None = record.headers()
    return (
        _encode(
            _WrittenLine(
                topic=record.topic(),
                partition=record.partition(),
                offset=record.offset(),
                timestamp=msgspec.UNSET if kind == NO_TIMESTAMP else unix_ms,
                timestamp_type="log_append" if kind == LOG_APPEND_TIME else msgspec.UNSET,
                key=_written(record.key()),
                headers=msgspec.UNSET if headers is None else [(name, _written(value)) for name, value in headers],
                value=_written_value(record.value()),
            )
        )
        + b"\n"
    )


def _timestamp(line: _Line) -> tuple[int, int]:
    if line.timestamp is None:
        return NO_TIMESTAMP, 0
    return (LOG_APPEND_TIME if line.timestamp_type == "log_append" else CREATE_TIME), line.timestamp


def _value(raw: bytes) -> bytes | None:
    first = raw[:1]
    if first == b"{":
        try:
            return _from_base64(_decode_base64(raw))
        except _NOT_READABLE:
            return raw
    if first == b'"':
        return _decode_text(raw).encode()
    return None if raw == b"null" else raw


def _content(content: _Content) -> bytes | None:
    if isinstance(content, _Base64):
        return _from_base64(content)
    return None if content is None else content.encode()


def _from_base64(content: _Base64) -> bytes:
    try:
        return base64.b64decode(content.base64, validate=True)
    except binascii.Error as error:
        raise ValueError(f"no base64: {error}") from None


def _written(content: bytes | None) -> _Content:
    if content is None:
        return None
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        return _Base64(base64=base64.b64encode(content).decode("ascii"))


def _written_value(value: bytes | None) -> msgspec.Raw:
    if value is not None and _stands_as_it_is(value):
        return msgspec.Raw(value)
    return msgspec.Raw(_encode(_written(value)))


def _stands_as_it_is(value: bytes) -> bool:
    """Tells whether a value is one JSON object on one line that the reader takes for nothing else."""
    if value[:1] != b"{" or value[-1:] != b"}" or b"\n" in value or b"\r" in value:
        return False
    try:
        parsed = _decode_any(b"[" * _DEEPER + value + b"]" * _DEEPER)
    except _NOT_READABLE:
        return False
    for _ in range(_DEEPER):
        if len(parsed) != 1:  # a value such as {}],[{} ends what it stands in
            return False
        parsed = parsed[0]
    return "base64" not in parsed
