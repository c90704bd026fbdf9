"""The wire contract: what producers write to the input topic and what the sidecar publishes.

Events are JSON objects or MessagePack maps: the first byte tells which. One event is told from another by `type`. The
rules:
- Unknown fields are skipped, unread and unchecked, so that producers may send more than is read.
- `null` stands for "absent" everywhere. Of a name given twice the last one counts.
- Bare `NaN`, `Infinity` and numbers past a double, as Python's json writes them, are accepted.
- Anything else that doesn't fit is an `EventError`: a sample is taken whole or not at all.
- Fields are only ever added, always optional; a meaning never changes and a name is never used again.
"""

from __future__ import annotations

import json
from typing import Annotated, Any, Final, Literal, NoReturn

import msgspec

MAX_INTEGER: Final = 2**53 - 1
"""Largest `step` and `attempt`: the integers that every JSON reader holds exactly."""

MAX_PRODUCERS: Final = 65_536
"""Most producers that may close one step: what a step remembers of its markers must be bounded."""

DEFAULT_RUN_ID: Final = "default"
DEFAULT_SCOPE: Final = "rollout"

Identifier = int | str
Step = Annotated[int, msgspec.Meta(ge=0, le=MAX_INTEGER)]
Count = Annotated[int, msgspec.Meta(ge=0, le=MAX_INTEGER)]
# Names end up in keys and results, which must stay far below the broker's limit for one record.
Name = Annotated[str, msgspec.Meta(max_length=512)]

CloseReason = Literal["closed", "timeout", "data_lost"]
ResultReason = Literal["closed", "timeout", "data_lost", "superseded", "evicted"]
DeadLetterReason = Literal["undecodable", "too_late", "superseded", "late"]


class EventError(ValueError):
    """The value is no event of this contract; the message says where and why. The caller makes it a dead letter."""


class Metadata(msgspec.Struct, gc=False, frozen=True):
    """What is read of a sample's `metadata`; all other names in it are skipped."""

    raw_reward: Any = None


class SampleFields(msgspec.Struct, gc=False, kw_only=True, omit_defaults=True):
    """One training sample without its step; what a `samples` event lists.

    Attributes:
        group_index: The prompt group; null is a value like any other.
        rollout_id: One execution of the policy on a prompt; 10 and "10" differ.
        position: The sample's place in the producer's list of the step; orders siblings and names the first sample.
        index: The rollout's key where `rollout_id` is null.
        sample_id: Stable over resends; a second one in the same window is dropped as a duplicate.
        reward: A number, a boolean, an object of named components, or null for none.
        metadata: Only `raw_reward` is read.
        response_length: Tokens the policy produced; `effective_response_length` counts instead where it is sent.
        status: `completed`, `truncated`, `aborted`, `failed` or another word.
        data_source: Data set or environment, for breakdowns.
        weight_versions: Versions of the weights that took part; null is none.
        values: Further numbers by name.
    """

    # In the order in which they mostly come: the decoder looks for a name behind the one before.
    group_index: Identifier | None = None
    index: int | None = None
    rollout_id: Identifier | None = None
    position: int | None = None
    sample_id: Identifier | None = None
    reward: float | bool | dict[str, Any] | None = None
    response_length: int | None = None
    status: str | None = None
    metadata: Metadata | None = None
    effective_response_length: int | None = None
    data_source: str | None = None
    weight_versions: list[Identifier | None] | None = None
    values: dict[str, Any] | None = None


class Sample(SampleFields, gc=False, kw_only=True, omit_defaults=True, tag_field="type", tag="sample"):
    """One training sample of a step."""

    run_id: Name | None = DEFAULT_RUN_ID
    step: Step
    scope: Name | None = DEFAULT_SCOPE
    attempt: Step | None = 0


class SampleBatch(msgspec.Struct, gc=False, kw_only=True, omit_defaults=True, tag_field="type", tag="samples"):
    """Several samples of one step in one record; taken whole or, if one can't be read, not at all."""

    step: Step
    samples: list[SampleFields]
    run_id: Name | None = DEFAULT_RUN_ID
    scope: Name | None = DEFAULT_SCOPE
    attempt: Step | None = 0


class StepClose(msgspec.Struct, gc=False, kw_only=True, omit_defaults=True, tag_field="type", tag="close"):
    """A close marker: no more samples of this step from this producer.

    Attributes:
        producer: Who closes; the step waits for `producers` distinct names.
        producers: How many close this step; the largest number said counts.
        expected_samples: How many samples this producer sent for the step.
        dropped: What it filtered, aborted or could not send: reason to count.
        reason: `closed` from producers; the sidecar itself writes `timeout` and `data_lost`.
        seen_offset: The sidecar's: the newest offset of the window when it wrote the marker.
    """

    step: Step
    run_id: Name | None = DEFAULT_RUN_ID
    scope: Name | None = DEFAULT_SCOPE
    attempt: Step | None = 0
    producer: Name | None = ""
    producers: Annotated[int, msgspec.Meta(ge=1, le=MAX_PRODUCERS)] | None = 1
    expected_samples: Count | None = None
    dropped: Annotated[dict[str, Count | None], msgspec.Meta(max_length=1024)] | None = None
    reason: CloseReason | None = "closed"
    seen_offset: int | None = None


Event = Sample | SampleBatch | StepClose


class LogPlace(msgspec.Struct, frozen=True, kw_only=True):
    """Where a result's step lies in the input log."""

    topic: str
    partition: int
    first_offset: int
    close_offset: int


class StepMetrics(msgspec.Struct, kw_only=True, tag_field="type", tag="step_metrics"):
    """The published result of one step.

    Attributes:
        complete: All producers closed and all expected samples are in.
        reason: What closed the step first.
        correction: True for a result that replaces an earlier one of the same attempt, because of late events.
        late_samples: Samples that came after the close and are counted in.
        opened_unix_ms: Record timestamp of the step's first event, null where the log has none.
        closed_unix_ms: Record timestamp of the event that closed it, null where the log has none.
        metrics: `<scope>/...` to a finite number, and `<scope>/step`.
    """

    schema: int = 1
    run_id: str
    scope: str
    step: int
    attempt: int
    complete: bool
    reason: ResultReason
    correction: bool
    late_samples: int
    opened_unix_ms: int | None
    closed_unix_ms: int | None
    log: LogPlace
    metrics: dict[str, int | float]

    def key(self) -> bytes:
        """The record key: the JSON array `[run_id, scope, step]`, so that compaction keeps a step's newest result."""
        return msgspec.json.encode([self.run_id, self.scope, self.step])


_decode_json = msgspec.json.Decoder(Event).decode
_decode_msgpack = msgspec.msgpack.Decoder(Event).decode
_decode_result = msgspec.json.Decoder(StepMetrics).decode
_encode_json = msgspec.json.Encoder().encode

NOT_DECODED: Final = (msgspec.MsgspecError, RecursionError, ValueError, TypeError)
"""All that msgspec's decoders raise."""

decode_fast = _decode_json
decode_fast_msgpack = _decode_msgpack
"""Decode strict JSON and MessagePack only, and raise `NOT_DECODED`. For hot loops, which fall back to `decode`."""

_MSGPACK_MAPS: Final = frozenset((*range(0x80, 0x90), 0xDE, 0xDF))
"""What a map of MessagePack begins with; no text in JSON can."""


def decode(value: bytes) -> Event:
    """Returns the event that a record's value holds.

    What kind it is, the value itself says: a header is the easier thing to get wrong, and takes as long to read.

    Raises:
        EventError: The value is no event.
    """
    try:
        return _decode_msgpack(value) if _is_msgpack(value) else _decode_json(value)
    except NOT_DECODED as error:
        failure = error
    if not _is_msgpack(value) and _may_hold_nonfinite(value, failure):
        return _decode_lenient(value, failure)
    raise EventError(_reason(failure)) from None


def decode_result(value: bytes) -> StepMetrics:
    """Returns the result that an output record's value holds.

    Raises:
        EventError: The value is no result.
    """
    try:
        return _decode_result(value)
    except NOT_DECODED as error:
        raise EventError(_reason(error)) from None


def encode(event: Event | StepMetrics) -> bytes:
    """Returns the JSON form of an event or a result; defaults are left out of events.

    Non-finite floats become null, since JSON has none.

    Raises:
        EventError: A text of it can't be written as UTF-8.
    """
    try:
        return _encode_json(event)
    except NOT_DECODED as error:
        raise EventError(_reason(error)) from None


def json_schemas() -> dict[str, Any]:
    """Returns the JSON Schemas of all events and of the result, by their `type`."""
    kinds = (Sample, SampleBatch, StepClose, StepMetrics)
    _, components = msgspec.json.schema_components(kinds, ref_template="#/$defs/{name}")
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "stream_metrics events",
        "oneOf": [{"$ref": f"#/$defs/{kind.__name__}"} for kind in kinds],
        "$defs": components,
    }


def _is_msgpack(value: bytes) -> bool:
    return len(value) > 0 and value[0] in _MSGPACK_MAPS


def _may_hold_nonfinite(value: bytes, failure: Exception) -> bool:
    return b"NaN" in value or b"Infinity" in value or "out of range" in str(failure)


def _decode_lenient(value: bytes, failure: Exception) -> Event:
    """Decodes what Python's json writes; as strict as the fast decoder in all but non-finite numbers."""
    try:
        parsed = json.loads(bytes(value).decode("utf-8"), parse_int=_parse_int, object_pairs_hook=_object)
        event: Event = msgspec.convert(parsed, Event)  # type: ignore[arg-type,call-overload,unused-ignore]
        return event
    except NOT_DECODED as error:
        raise EventError(_reason(failure if isinstance(error, json.JSONDecodeError) else error)) from None


def _parse_int(digits: str) -> int | float:
    # An integer past a double is the same kind of number as 1e400, and past 4,300 digits Python refuses to make it.
    return int(digits) if len(digits) <= 308 else float(digits)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    for name, item in pairs:
        _check_text(name)
        _check_text(item)
        if name == "type" and item != made["type"]:
            _refuse("the name 'type' is given twice")
    return made


def _check_text(item: Any) -> None:
    if isinstance(item, str):
        item.encode("utf-8")  # raises UnicodeEncodeError, a ValueError, on a lone surrogate
    elif isinstance(item, list):  # objects within were checked when they were made
        for one in item:
            _check_text(one)


def _refuse(message: str) -> NoReturn:
    raise EventError(message)


def _reason(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "nested too deeply"
    return str(error) or type(error).__name__
