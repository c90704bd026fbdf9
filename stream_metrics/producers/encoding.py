"""From what a trainer holds to the bytes of the wire contract, for one sample at a time.

The rules:
- A sample is any mapping or any object with the contract's names as attributes; missing names are null.
- Numbers of other libraries (numpy, torch, Decimal, ...) become Python's. Non-finite ones travel as bare `NaN` and
  `Infinity`, as Python's json writes them: msgspec would make them null, and the sidecar could no longer tell them
  from missing.
- What decides the result (ids, rewards) is taken right or the sample is refused with the field's name. What only
  describes (status, lengths, versions) is left out where it can't be read.
- Of `metadata` only `raw_reward` travels, and names asked for: the rest may be huge, or not serialisable at all.
"""

from __future__ import annotations

import json
import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from typing import Any, Final
from uuid import UUID

import msgspec

from stream_metrics.events import MAX_INTEGER

MAX_IDENTIFIER_CHARACTERS: Final = 4096
"""Longest text id: a longer one is a mistake (a whole prompt, say) that would fill the sidecar's memory."""

_INT64: Final = 2**63
_encode = msgspec.json.Encoder().encode


class UnencodableSampleError(ValueError):
    """The sample can't travel. Callers count it and tell its field; `field` is the name, `why` the reason."""

    def __init__(self, field: str, why: str) -> None:
        super().__init__(f"{field}: {why}")
        self.field = field
        self.why = why


def sample_fields(sample: Any, *, metadata_keys: Sequence[str] = ()) -> dict[str, Any]:
    """Returns the sample's fields as plain JSON values under the contract's names, null ones left out.

    Args:
        sample: A mapping, or an object read by attribute.
        metadata_keys: Names in `metadata` to send beside `raw_reward`.

    Raises:
        UnencodableSampleError: An id or a reward is of no kind that the contract knows.
    """
    get = _reader(sample)
    made: dict[str, Any] = {}
    for name in ("group_index", "rollout_id", "sample_id"):
        value = get(name)
        if value is not None:
            made[name] = value if type(value) is int and -_INT64 <= value < _INT64 else identifier(value, name)
    for name in ("position", "index"):
        value = get(name)
        if value is not None:
            made[name] = integer(value, name)
    reward = get("reward")
    if reward is not None:
        made["reward"] = _components(reward) if isinstance(reward, Mapping) else number(reward, "reward")
    metadata = get("metadata")
    if metadata is not None:
        taken = _metadata(metadata, metadata_keys)
        if taken:
            made["metadata"] = taken
    for name in ("response_length", "effective_response_length"):
        length = _count(get(name))
        if length is not None:
            made[name] = length
    status = get("status")
    if status is not None:
        made["status"] = status_name(status)
    data_source = get("data_source")
    if data_source is not None:
        made["data_source"] = str(data_source)
    versions = get("weight_versions")
    if versions is not None:
        kept = _versions(versions)
        if kept:
            made["weight_versions"] = kept
    values = get("values")
    if isinstance(values, Mapping):  # of a mapping's own method `values` nothing is meant
        components = _components(values)
        if components:
            made["values"] = components
    return made


def encode_fields(fields: Mapping[str, Any]) -> bytes:
    """Returns one JSON object, with bare `NaN` and `Infinity` for non-finite numbers.

    Raises:
        UnencodableSampleError: A text can't be written as UTF-8.
    """
    try:
        if not _has_nonfinite(fields):
            return _encode(fields)
        text = json.dumps(fields, ensure_ascii=False, separators=(",", ":"))
        return text.encode("utf-8")
    except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError) as error:
        raise UnencodableSampleError(_culprit(fields), str(error) or type(error).__name__) from None


def number(value: Any, field: str) -> int | float | bool:
    """Returns the number that `value` is, of whichever library; bool stays bool, an integer past a double is infinite.

    Raises:
        UnencodableSampleError: It is no single number.
    """
    if type(value) is float or type(value) is bool:
        return value
    if isinstance(value, int):
        if -MAX_INTEGER <= value <= MAX_INTEGER:
            return bool(value) if isinstance(value, bool) else int(value)
        try:
            return float(value)
        except OverflowError:
            return math.inf if value > 0 else -math.inf
    if isinstance(value, float):
        return float(value)
    if isinstance(value, str | bytes) or value is None:
        raise UnencodableSampleError(field, f"{type(value).__name__} instead of a number")
    try:
        item = value.item() if hasattr(value, "item") else float(value)
    except (TypeError, ValueError, OverflowError, RuntimeError) as error:
        raise UnencodableSampleError(field, f"{type(value).__name__} is no single number ({error})") from None
    if not isinstance(item, int | float):
        raise UnencodableSampleError(field, f"{type(value).__name__} is no number")
    return number(item, field)


def identifier(value: Any, field: str) -> int | str:
    """Returns the id as the contract's int or str; a UUID becomes its text, and so does an integer past 64 bits.

    Raises:
        UnencodableSampleError: It is neither.
    """
    if isinstance(value, str):
        if len(value) > MAX_IDENTIFIER_CHARACTERS:
            raise UnencodableSampleError(field, f"text of {len(value)} characters, over {MAX_IDENTIFIER_CHARACTERS}")
        return str(value)
    if isinstance(value, UUID):
        return str(value)
    if isinstance(value, bool):
        raise UnencodableSampleError(field, "bool instead of an int or a str")
    whole = _whole(value)
    if whole is None:
        raise UnencodableSampleError(field, f"{type(value).__name__} instead of an int or a str")
    return whole if -_INT64 <= whole < _INT64 else str(whole)


def integer(value: Any, field: str) -> int:
    """Returns the 64-bit integer that `value` is.

    Raises:
        UnencodableSampleError: It is none.
    """
    if type(value) is int and 0 <= value < _INT64:
        return value
    whole = None if isinstance(value, bool) else _whole(value)
    if whole is None or not -_INT64 <= whole < _INT64:
        raise UnencodableSampleError(field, f"{type(value).__name__} instead of a 64-bit int")
    return whole


def step_number(value: Any, field: str = "step") -> int:
    """Returns the step (or attempt) as an int of the contract's range.

    Raises:
        UnencodableSampleError: It is no integer from 0 to 2^53 - 1.
    """
    whole = integer(value, field)
    if not 0 <= whole <= MAX_INTEGER:
        raise UnencodableSampleError(field, f"{whole} is not from 0 to 2^53 - 1")
    return whole


def status_name(status: Any) -> str:
    """Returns the lower-case word of a status: an Enum's value where that is a text, else its name."""
    if isinstance(status, Enum):
        status = status.value if isinstance(status.value, str) else status.name
    return str(status).lower()


def _reader(source: Any) -> Callable[[str], Any]:
    return source.get if isinstance(source, Mapping) else lambda name: getattr(source, name, None)


def _whole(value: Any) -> int | None:
    if isinstance(value, float):
        return int(value) if value.is_integer() else None
    try:
        return operator.index(value)
    except TypeError:
        pass
    if isinstance(value, str | bytes) or not hasattr(value, "item"):
        return None
    try:
        item = value.item()
    except (TypeError, ValueError, RuntimeError):
        return None
    return _whole(item) if isinstance(item, int | float) and not isinstance(item, bool) else None


def _count(value: Any) -> int | None:
    if type(value) is int and 0 <= value < _INT64:
        return value
    whole = None if value is None or isinstance(value, bool) else _whole(value)
    return whole if whole is not None and -_INT64 <= whole < _INT64 else None


def _components(components: Mapping[Any, Any]) -> dict[str, Any]:
    """Keeps the numbers under their names; a component that is none counts as missing at the sidecar, so it stays
    out.
    """
    made: dict[str, Any] = {}
    for name, value in components.items():
        try:
            made[str(name)] = number(value, str(name))
        except UnencodableSampleError:
            continue
    return made


def _metadata(metadata: Any, keys: Iterable[str]) -> dict[str, Any]:
    get = _reader(metadata)
    made: dict[str, Any] = {}
    raw_reward = get("raw_reward")
    if raw_reward is not None:
        try:
            made["raw_reward"] = number(raw_reward, "metadata.raw_reward")
        except UnencodableSampleError:
            # That it is there decides for the whole step where rewards are read, so a text stands for it: a missing
            # reward, as it would be had it come in its own form.
            made["raw_reward"] = f"<{type(raw_reward).__name__}>"
    for name in keys:
        value = get(name)
        if value is not None and name != "raw_reward":
            made[name] = value if _is_encodable(value) else f"<{type(value).__name__}>"
    return made


def _versions(versions: Any) -> list[int | str]:
    if isinstance(versions, str | int):
        versions = [versions]
    if type(versions) is list and all(type(version) is str for version in versions):
        return list(versions)
    try:
        return [identifier(version, "weight_versions") for version in versions if version is not None]
    except (TypeError, UnencodableSampleError):
        return []


def _has_nonfinite(fields: Mapping[str, Any]) -> bool:
    reward = fields.get("reward")
    if reward is not None and not (math.isfinite(reward) if type(reward) is float else _is_finite(reward)):
        return True
    metadata = fields.get("metadata")
    # What was asked for is of any form, so only Python's json knows whether it holds a NaN; `raw_reward` alone is
    # common.
    if metadata is not None and (len(metadata) > 1 or not _is_finite(metadata)):
        return True
    values = fields.get("values")
    return values is not None and not _is_finite(values)


def _is_finite(value: Any) -> bool:
    if type(value) is dict:
        return all(_is_finite(item) for item in value.values())
    return not isinstance(value, float) or math.isfinite(value)


def _culprit(fields: Mapping[str, Any]) -> str:
    for name, value in fields.items():
        if name == "metadata":
            for inner, item in value.items():
                if not _is_encodable(item):
                    return f"metadata.{inner}"
        elif not _is_encodable(value):
            return name
    return "sample"


def _is_encodable(value: Any) -> bool:
    try:
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except (TypeError, ValueError, OverflowError, RecursionError):
        return False
    return True
