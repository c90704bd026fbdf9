from __future__ import annotations

import math
from typing import Any

import pytest

from stream_metrics.core.columns import ABSENT_LENGTH, NO_POSITION, NO_VERSION, Columns
from stream_metrics.core.settings import FoldSettings
from stream_metrics.events import Metadata, Sample


def columns_of(*rows: list[Sample], **settings: Any) -> Columns:
    columns = Columns(FoldSettings(**settings))
    for row in rows:
        columns.extend(row)
    return columns


def sample(**fields: Any) -> Sample:
    return Sample(step=1, **fields)


def lengths_of_columns(columns: Columns) -> set[int]:
    by_sample = (columns.rollout, columns.reward, columns.raw_reward, columns.position, columns.length, columns.status)
    return {len(column) for column in (*by_sample, columns.oldest_version) if column is not None}


def test_no_sample_is_no_column() -> None:
    columns = columns_of([])
    assert len(columns) == 0
    assert columns.extend([]) == 0
    assert (columns.length, columns.status, columns.raw_reward, columns.values, columns.sources) == (None,) * 5


def test_rollouts_are_numbered_by_group_and_id() -> None:
    columns = columns_of(
        [
            sample(group_index=0, rollout_id=10),
            sample(group_index=1, rollout_id=10),
            sample(group_index=0, rollout_id="10"),
            sample(group_index=0, rollout_id=10, index=3),
            sample(group_index=0, index=10),
            sample(group_index="0", rollout_id=10),
            sample(rollout_id=10),
            sample(),
            sample(),
            sample(group_index=0, index=10),
        ]
    )
    assert columns.rollout.tolist() == [0, 1, 2, 0, 3, 4, 5, 6, 7, 3]
    assert columns.groups == {0: 0, 1: 1, "0": 2, None: 3}
    assert columns.rollout_group.tolist() == [0, 1, 0, 0, 2, 3, 3, 3]


def test_rollout_id_zero_and_index_zero_are_ids() -> None:
    columns = columns_of([sample(rollout_id=0), sample(index=0), sample(rollout_id=0), sample(index=0)])
    assert columns.rollout.tolist() == [0, 1, 0, 1]


def test_duplicates_are_left_out_in_a_row_and_over_rows() -> None:
    columns = Columns(FoldSettings())
    assert columns.extend([sample(sample_id=1), sample(sample_id=1), sample(sample_id="1"), sample()]) == 3
    assert not columns.has_new([sample(sample_id=1)])
    assert columns.has_new([sample(sample_id=1), sample()])
    assert columns.extend([sample(sample_id=1)]) == 0
    assert columns.extend([sample(sample_id=1, reward=5.0), sample(sample_id=2)]) == 1
    assert len(columns) == 4
    assert lengths_of_columns(columns) == {4}


@pytest.mark.parametrize(
    ("rewards", "kept"),
    [
        ([1, True, 0.5, False], [1.0, 1.0, 0.5, 0.0]),
        ([1.0, None, 2.0], [1.0, math.nan, 2.0]),
        ([1.0, "no", [1], 2.0], [1.0, math.nan, math.nan, 2.0]),
        ([1.0, math.nan, math.inf, -math.inf], [1.0, math.inf, math.inf, math.inf]),
        ([10**400, -(10**400), 1.0], [math.inf, math.inf, 1.0]),
        ([10**400, -(10**400)], [math.inf, math.inf]),  # their sum is a small integer
        ([1.0, 10**400], [1.0, math.inf]),
        ([1.7e308, 1.7e308, 1.0], [1.7e308, 1.7e308, 1.0]),  # each fits, their sum doesn't
        ([10**308] * 20, [1e308] * 20),
        ([2**63, 2**64], [2.0**63, 2.0**64]),
        ([True] * 3, [1.0] * 3),
    ],
)
@pytest.mark.parametrize("length", [1, 2, 100])
def test_a_reward_column_is_never_half_extended(rewards: list[Any], kept: list[float], length: int) -> None:
    columns = Columns(FoldSettings())
    samples = [sample(reward=reward) for reward in rewards]
    for start in range(0, len(samples), length):
        columns.extend(samples[start : start + length])
    assert [str(number) for number in columns.reward] == [str(number) for number in kept]
    columns = columns_of([sample(metadata=Metadata(raw_reward=reward)) for reward in rewards])
    assert columns.raw_reward is not None
    assert [str(number) for number in columns.raw_reward] == [str(number) for number in kept]
    assert columns.num_raw_rewards == len(rewards) - rewards.count(None)


def test_a_reward_object_is_read_by_its_key_and_kept_by_component() -> None:
    samples = [sample(reward={"a": 1.0, "b": 2}), sample(reward=0.5), sample(reward={"b": math.nan, "c": "text"})]
    columns = columns_of(samples, reward_key="a")
    assert [str(number) for number in columns.reward] == ["1.0", "0.5", "nan"]
    assert columns.components is not None
    assert {name: kept.value.tolist() for name, kept in columns.components.items()} == {"a": [1.0], "b": [2.0]}
    assert columns.components.nonfinite == 1
    assert [str(number) for number in columns_of(samples).reward] == ["nan", "0.5", "nan"]


def test_optional_columns_are_made_by_the_first_sample_that_has_them() -> None:
    late = sample(
        metadata=Metadata(raw_reward=1.0), position=4, response_length=9, status="aborted", weight_versions=[3]
    )
    columns = columns_of([sample(), sample()], [late], [sample()], rollout_reward="last")
    assert lengths_of_columns(columns) == {4}
    assert columns.length is not None
    assert columns.length.tolist() == [ABSENT_LENGTH, ABSENT_LENGTH, 9, ABSENT_LENGTH]
    assert columns.position is not None
    assert columns.position.tolist() == [NO_POSITION, NO_POSITION, 4, NO_POSITION]
    assert columns.oldest_version is not None
    assert columns.oldest_version.tolist() == [NO_VERSION, NO_VERSION, 3, NO_VERSION]
    assert columns.status == bytearray([0, 0, 3, 0])


def test_positions_are_kept_only_for_rules_that_ask_for_them() -> None:
    assert columns_of([sample(position=1)]).position is None


def test_the_first_sample_is_the_one_with_the_lowest_position() -> None:
    with_raw = Metadata(raw_reward=0.0)
    cases: list[tuple[list[Sample], bool]] = [
        ([sample(metadata=with_raw), sample()], True),
        ([sample(), sample(metadata=with_raw)], False),
        ([sample(metadata=with_raw), sample(position=5)], False),  # one that carries a position goes first
        ([sample(position=5), sample(position=-1, metadata=with_raw)], True),
        ([sample(position=5, metadata=with_raw), sample(position=5)], True),  # of two with the same the one before
        ([sample(position=5), sample(position=5, metadata=with_raw)], False),
        ([sample(position=2**80), sample(position=2**70, metadata=with_raw)], True),
        ([sample(metadata=Metadata()), sample(metadata=with_raw)], False),
    ]
    for samples, has_raw in cases:
        assert columns_of(samples).first_has_raw_reward is has_raw, samples
        assert columns_of(*([one] for one in samples)).first_has_raw_reward is has_raw, samples


def test_integers_past_64_bits_are_taken_without_an_error() -> None:
    big = 2**70
    columns = columns_of(
        [
            sample(position=big, response_length=big, weight_versions=[big], index=big),
            sample(position=-big, response_length=-big, weight_versions=[-big], rollout_id=big, group_index=big),
            sample(effective_response_length=big, response_length=1),
            sample(response_length=2**63, weight_versions=["9" * 5000]),
        ],
        rollout_reward="first",
    )
    assert lengths_of_columns(columns) == {4}
    assert columns.length is not None
    assert columns.length.tolist() == [-1, -1, -1, -1]
    assert columns.position is not None
    assert columns.position.tolist() == [NO_POSITION - 1, -(2**63), NO_POSITION, NO_POSITION]
    assert columns.num_invalid_versions == 3


def test_a_length_is_taken_alike_whatever_comes_beside_it() -> None:
    lengths = [-(2**63), 1 - 2**63, -1, 2**53, 2**63 - 1, 2**63, -(2**63) - 1]
    for length in lengths:
        alone = columns_of([sample(response_length=length)], [sample()]).length
        together = columns_of([sample(response_length=length), sample()]).length
        assert alone == together


def test_the_effective_length_counts_where_it_is_sent() -> None:
    columns = columns_of(
        [sample(response_length=9, effective_response_length=0), sample(response_length=8), sample(response_length=-3)]
    )
    assert columns.length is not None
    assert columns.length.tolist() == [0, 8, -3]


@pytest.mark.parametrize(
    ("versions", "oldest", "mixed", "invalid"),
    [
        ([3], 3, 0, 0),
        ([4, 3, 4], 3, 1, 0),
        (["4", "004"], 4, 1, 0),
        (["10", 9], 9, 1, 0),
        (["step_3"], NO_VERSION, 0, 0),
        (["step_3", "step_4"], NO_VERSION, 1, 0),
        (["²", ""], NO_VERSION, 1, 0),
        ([-1], NO_VERSION, 0, 1),
        ([-1, 5], 5, 1, 1),
        ([2**53 - 1], 2**53 - 1, 0, 0),
        ([2**53], NO_VERSION, 0, 1),
        (["0" * 400 + "7"], 7, 0, 0),
        ([1, None], 1, 0, 0),
        ([None, 2, 1, None], 1, 1, 0),
        ([None], NO_VERSION, 0, 0),
    ],
)
def test_the_oldest_of_a_sample_s_weight_versions(versions: list[Any], oldest: int, mixed: int, invalid: int) -> None:
    columns = columns_of([sample(weight_versions=versions), sample(weight_versions=[])])
    assert columns.oldest_version is not None
    assert columns.oldest_version.tolist() == [oldest, NO_VERSION]
    assert (columns.num_mixed_versions, columns.num_invalid_versions) == (mixed, invalid)


def test_a_million_samples_stay_small() -> None:
    count = 100_000
    samples = [
        sample(group_index=0, rollout_id=0, reward=1.0, response_length=5, status="completed", weight_versions=[1])
        for _ in range(100)
    ]
    columns = Columns(FoldSettings())
    for _ in range(count // 100):
        columns.extend(samples)
    kept = (columns.rollout, columns.reward, columns.length, columns.oldest_version)
    size = sum(column.buffer_info()[1] * column.itemsize for column in kept if column is not None)
    assert columns.status is not None
    assert (size + len(columns.status)) / count <= 64
