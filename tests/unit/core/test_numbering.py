"""Rollouts and groups have the same numbers however they are looked up: by table or by dictionaries."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from stream_metrics.core import numbering
from stream_metrics.core.numbering import Numbering, RolloutKey
from stream_metrics.events import Sample

Pair = tuple[Any, Any]


def numbers_of(pairs: list[Pair]) -> tuple[list[int], list[int], dict[Any, int]]:
    """Returns what must come out: the rollout of each sample, the group of each rollout, the number of each group."""
    rollouts: dict[Pair, int] = {}
    groups: dict[Any, int] = {}
    numbers = [rollouts.setdefault(pair, len(rollouts)) for pair in pairs]
    rollout_group = [groups.setdefault(group, len(groups)) for group, _ in rollouts]
    return numbers, rollout_group, groups


def assert_numbered(pairs: list[Pair], rng: random.Random, *, as_rows: bool) -> Numbering:
    """Numbers them, cut anywhere, and compares."""
    made, numbers, start = Numbering(), [], 0
    while start < len(pairs):
        part = pairs[start : start + rng.choice([1, 5, 40])]
        start += len(part)
        if as_rows and all(type(one) is int and -(2**63) <= one < 2**63 for pair in part for one in pair):
            rows = np.array(part, dtype=np.int64)
            numbers += made.take_integers(rows[:, 0].copy(), rows[:, 1].copy())
        else:
            numbers += made.take([Sample(step=1, group_index=group, rollout_id=rollout) for group, rollout in part])
    assert (numbers, made.rollout_group.tolist(), made.groups) == numbers_of(pairs)
    return made


def close_together(rng: random.Random, first: int) -> Pair:
    rollout = first + rng.randrange(300)
    return rollout // 8, rollout


ODD: list[Pair] = [(0, "text"), ("text", 5), (None, 5), (7, 2**63), (2**63, 7), (0, 10**12), (0, -(2**63)), (99, 3)]


@pytest.mark.parametrize("as_rows", [True, False])
@pytest.mark.parametrize("odd", [None, *ODD], ids=str)
def test_a_table_gives_the_numbers_that_dictionaries_give(
    monkeypatch: pytest.MonkeyPatch, odd: Pair | None, as_rows: bool
) -> None:
    monkeypatch.setattr(numbering, "_WORTH_A_TABLE", 64)
    for seed in range(20):
        rng = random.Random(seed)
        first = rng.choice([0, -150, 10**15, 2**63 - 300, -(2**63)])
        pairs = [close_together(rng, first) for _ in range(600)]
        if odd is not None:
            pairs.insert(rng.randrange(601), odd)
            pairs.append(odd)
        assert_numbered(pairs, rng, as_rows=as_rows)


@pytest.mark.parametrize("order", [1, -1])
def test_rollouts_that_count_up_or_down_stay_in_the_table(order: int) -> None:
    pairs = [(number // 8, number) for number in range(5_000)][::order]
    made = assert_numbered(pairs, random.Random(1), as_rows=True)
    assert made._table is not None


def test_many_rollouts_get_a_table_and_odd_ones_take_it_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numbering, "_WORTH_A_TABLE", 64)
    many = [(number // 8, number) for number in range(100)]
    assert assert_numbered(many[:63], random.Random(1), as_rows=False)._table is None
    assert assert_numbered(many, random.Random(1), as_rows=False)._table is not None
    assert assert_numbered([*many, (1, "x"), *many], random.Random(1), as_rows=False)._table is None
    assert assert_numbered([(99, 3), *many], random.Random(1), as_rows=False)._table is None  # 3 has two groups
    assert assert_numbered([(0, 10**12), *many], random.Random(1), as_rows=False)._table is None


def test_rollouts_known_by_another_thing_than_their_id_have_no_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numbering, "_WORTH_A_TABLE", 4)
    made = Numbering()
    samples = [Sample(step=1, index=0), Sample(step=1), *(Sample(step=1, rollout_id=number) for number in range(9))]
    assert [*made.take(samples), *made.take(samples)] == [*range(11), 0, 11, *range(2, 11)]
    assert made._table is None


def test_keys_come_out_of_a_table_too() -> None:
    made = Numbering()
    made.take_integers(np.array([3, 3, 1]), np.array([7, 8, 9]))
    assert made.keys() == [RolloutKey("rollout", 3, 7), RolloutKey("rollout", 3, 8), RolloutKey("rollout", 1, 9)]
    assert made.take([Sample(step=1, group_index=1, rollout_id=9)]).tolist() == [2]
