from __future__ import annotations

import enum
import math
import uuid
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy
import pytest

from stream_metrics import events
from stream_metrics.producers.encoding import UnencodableSampleError, encode_fields, sample_fields


def sent(sample: Any, **options: Any) -> events.Sample:
    """Returns the sample as the sidecar reads it."""
    value = b'{"type":"sample","step":1,' + encode_fields({"sample_id": 0, **sample_fields(sample, **options)})[1:]
    event = events.decode(value)
    assert isinstance(event, events.Sample)
    return event


class Scalar:
    """A zero-dimensional tensor, as torch has it: no number itself, but with `item`."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def item(self) -> Any:
        if isinstance(self._value, list):
            raise RuntimeError("a Tensor with 3 elements cannot be converted to Scalar")
        return self._value


class Status(enum.Enum):
    TRUNCATED = "truncated"
    FAILED = 4


def test_an_object_and_a_mapping_give_the_same_fields() -> None:
    @dataclass
    class Sample:
        group_index: int = 3
        rollout_id: str = "r"
        reward: float = 0.5

    assert sample_fields(Sample()) == sample_fields({"group_index": 3, "rollout_id": "r", "reward": 0.5})


def test_null_fields_are_left_out() -> None:
    assert sample_fields({"group_index": None, "reward": None, "metadata": None, "values": None}) == {}


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_nonfinite_numbers_arrive_as_such_and_not_as_missing(value: float) -> None:
    for got in (
        sent({"reward": value}).reward,
        sent({"reward": {"score": value}}).reward["score"],  # type: ignore[index]
        sent({"metadata": {"raw_reward": value}}).metadata.raw_reward,  # type: ignore[union-attr]
        sent({"values": {"turns": value}}).values["turns"],  # type: ignore[index]
    ):
        assert isinstance(got, float)
        assert not math.isfinite(got)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (numpy.float32(0.5), 0.5),
        (numpy.float64(0.25), 0.25),
        (numpy.int64(3), 3),
        (numpy.array(2.0), 2.0),
        (Scalar(0.75), 0.75),
        (Decimal("0.125"), 0.125),
        (7, 7),
    ],
)
def test_numbers_of_other_libraries_are_numbers(value: Any, expected: float) -> None:
    assert sent({"reward": value}).reward == expected
    assert sent({"metadata": {"raw_reward": value}}).metadata.raw_reward == expected  # type: ignore[union-attr]


@pytest.mark.parametrize("value", [True, numpy.bool_(True), Scalar(True)])
def test_a_bool_stays_a_bool(value: Any) -> None:
    assert sent({"reward": value}).reward is True


def test_an_integer_past_a_double_is_infinite() -> None:
    assert sent({"reward": 10**400}).reward == math.inf
    assert sent({"reward": -(10**400)}).reward == -math.inf


@pytest.mark.parametrize(
    ("sample", "field"),
    [
        ({"reward": "0.5"}, "reward"),
        ({"reward": Scalar([1, 2, 3])}, "reward"),
        ({"reward": [1.0]}, "reward"),
        ({"reward": object()}, "reward"),
        ({"group_index": (1, 2)}, "group_index"),
        ({"group_index": 1.5}, "group_index"),
        ({"rollout_id": True}, "rollout_id"),
        ({"rollout_id": b"r"}, "rollout_id"),
        ({"rollout_id": "r" * 5000}, "rollout_id"),
        ({"index": "1"}, "index"),
        ({"index": 2**63}, "index"),
        ({"sample_id": [1]}, "sample_id"),
        ({"position": None, "index": 1.25}, "index"),
    ],
)
def test_what_cannot_be_an_id_or_a_reward_is_refused_by_name(sample: dict[str, Any], field: str) -> None:
    with pytest.raises(UnencodableSampleError) as caught:
        sample_fields(sample)
    assert caught.value.field == field


@pytest.mark.parametrize("name", ["rollout_id", "status", "data_source"])
def test_a_text_that_is_no_unicode_is_refused_by_name(name: str) -> None:
    with pytest.raises(UnencodableSampleError) as caught:
        encode_fields(sample_fields({name: "\ud800"}))
    assert caught.value.field == name


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (numpy.int32(5), 5),
        (Scalar(6), 6),
        (7.0, 7),
        (uuid.UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        (2**70, str(2**70)),
        ("x", "x"),
    ],
)
def test_ids_become_int_or_text(value: Any, expected: int | str) -> None:
    assert sent({"rollout_id": value, "group_index": value}).rollout_id == expected


def test_of_metadata_only_the_raw_reward_is_sent() -> None:
    huge = {"raw_reward": 1.0, "prompt": "x" * 10_000_000, "lock": object()}
    assert len(encode_fields(sample_fields({"metadata": huge}))) < 100


def test_metadata_that_is_asked_for_is_sent_and_a_stand_in_for_what_cannot_be() -> None:
    fields = sample_fields({"metadata": {"turns": 3, "lock": object(), "x": 1}}, metadata_keys=("turns", "lock", "y"))
    assert fields["metadata"] == {"turns": 3, "lock": "<object>"}
    assert encode_fields(fields) == b'{"metadata":{"turns":3,"lock":"<object>"}}'


def test_a_raw_reward_that_is_no_number_is_a_missing_reward_and_stays_present() -> None:
    assert sent({"metadata": {"raw_reward": object()}}).metadata.raw_reward == "<object>"  # type: ignore[union-attr]


def test_metadata_may_be_an_object() -> None:
    class Metadata:
        raw_reward = 0.5

    assert sent({"metadata": Metadata()}).metadata == events.Metadata(raw_reward=0.5)


def test_components_that_are_no_numbers_stay_out() -> None:
    assert sent({"reward": {"score": 1, "text": "good", 3: Scalar(2)}}).reward == {"score": 1, "3": 2}


@pytest.mark.parametrize(
    ("status", "expected"), [(Status.TRUNCATED, "truncated"), (Status.FAILED, "failed"), ("ABORTED", "aborted")]
)
def test_a_status_is_a_lower_case_word(status: Any, expected: str) -> None:
    assert sent({"status": status}).status == expected


def test_what_only_describes_is_left_out_where_it_cannot_be_read() -> None:
    odd = {"response_length": "many", "effective_response_length": 2.5, "weight_versions": 1.5, "values": [1]}
    assert sample_fields({**odd, "reward": 1.0}) == {"reward": 1.0}


def test_versions_may_be_one_or_many() -> None:
    assert sent({"weight_versions": "7"}).weight_versions == ["7"]
    assert sent({"weight_versions": [numpy.int64(1), "2"]}).weight_versions == [1, "2"]
    assert sent({"weight_versions": [None, 1]}).weight_versions == [1]


def test_a_method_called_values_is_no_field() -> None:
    class Odd:
        def values(self) -> list[int]:
            return [1]

    assert sample_fields(Odd()) == {}
