"""The simulation: the same for the same seed, and made so that what the demo is about can be seen."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

import pytest

from stream_metrics.demo.simulation import (
    GROUPS,
    MAX_SAMPLES_PER_ROLLOUT,
    ROLLOUTS_PER_GROUP,
    STEPS,
    direct_rewards,
    simulate_step,
)
from stream_metrics.testing import MemoryLog, close, sample

SEEDS = (0, 4, 2**40)


def of(group: int, rollout: int, *rewards: float | None) -> list[dict[str, Any]]:
    return [{"group_index": group, "rollout_id": rollout, "reward": reward} for reward in rewards]


def mean_gap(seed: int, steps: range) -> float:
    gaps = []
    for step in steps:
        by_sample, by_rollout = direct_rewards(simulate_step(seed, step).all_fields)
        gaps.append(by_sample - by_rollout)
    return sum(gaps) / len(gaps)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_step_is_the_same_for_the_same_seed_and_another_for_another(seed: int) -> None:
    assert simulate_step(seed, 3) == simulate_step(seed, 3)
    assert simulate_step(seed, 3) != simulate_step(seed + 1, 3)
    assert simulate_step(seed, 3) != simulate_step(seed, 4)


@pytest.mark.parametrize("seed", SEEDS)
def test_every_rollout_is_there_and_long_ones_are_several_samples(seed: int) -> None:
    fields = simulate_step(seed, 5).all_fields
    per_rollout = Counter((one["group_index"], one["rollout_id"]) for one in fields)
    assert len(per_rollout) == GROUPS * ROLLOUTS_PER_GROUP
    assert 2 <= max(per_rollout.values()) <= MAX_SAMPLES_PER_ROLLOUT


@pytest.mark.parametrize("seed", SEEDS)
def test_samples_come_in_the_order_they_are_done_so_that_siblings_are_mixed(seed: int) -> None:
    samples = simulate_step(seed, 2).samples
    assert [one.done_at for one in samples] == sorted(one.done_at for one in samples)
    rollouts = [(one.fields["group_index"], one.fields["rollout_id"]) for one in samples]
    changes = sum(before != after for before, after in itertools.pairwise(rollouts))
    assert changes > len(set(rollouts))


@pytest.mark.parametrize("seed", SEEDS)
def test_the_mean_over_samples_reads_too_low_at_first_and_too_high_at_the_end(seed: int) -> None:
    assert mean_gap(seed, range(5)) < -0.1
    assert mean_gap(seed, range(STEPS - 5, STEPS)) > 0.04


@pytest.mark.parametrize("seed", SEEDS)
def test_the_rollouts_get_better(seed: int) -> None:
    rewards = [direct_rewards(simulate_step(seed, step).all_fields)[1] for step in range(STEPS)]
    assert sum(rewards[-5:]) / 5 > sum(rewards[:5]) / 5 + 0.25


@pytest.mark.parametrize("seed", SEEDS)
def test_some_are_late_aborted_truncated_or_filtered(seed: int) -> None:
    steps = [simulate_step(seed, step) for step in range(STEPS)]
    statuses = Counter(one["status"] for step in steps for one in step.all_fields)
    assert statuses.keys() == {"completed", "aborted", "truncated"}
    assert any(step.late for step in steps)
    assert not all(step.late for step in steps)
    assert any(step.dropped for step in steps)


def test_a_run_goes_on_when_it_has_learned_all() -> None:
    assert simulate_step(0, 10**6).samples


@pytest.mark.parametrize(
    ("samples", "by_sample", "by_rollout"),
    [
        (of(0, 1, 1.0, 1.0, 1.0) + of(0, 2, 0.0), 0.75, 0.5),
        (of(0, 1, 0.0, 1.0) + of(0, 2, 1.0), 2 / 3, 0.75),
        (of(0, 10, 1.0, 1.0) + of(1, 10, 0.0), 2 / 3, 0.5),
        (of(0, 1, 1.0, 1.0) + of(0, 2, None), 1.0, 1.0),
        (of(0, 1, None), 0.0, 0.0),
        ([], 0.0, 0.0),
    ],
)
def test_direct_rewards_are_those_of_the_worked_examples(
    samples: list[dict[str, Any]], by_sample: float, by_rollout: float
) -> None:
    assert direct_rewards(samples) == (by_sample, by_rollout)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_fold_finds_the_same_as_the_direct_computation(seed: int) -> None:
    log = MemoryLog()
    for number in range(0, STEPS, 5):
        for fields in simulate_step(seed, number).all_fields:
            log.append(sample(number, **fields))
        log.append(close(number))
    results = log.fold().results
    assert [one.step for one in results] == list(range(0, STEPS, 5))
    for result in results:
        fields = simulate_step(seed, result.step).all_fields
        by_sample, by_rollout = direct_rewards(fields)
        assert result.metrics["rollout/num_training_samples"] == len(fields)
        assert result.metrics["rollout/raw_reward"] == pytest.approx(by_sample, rel=0, abs=1e-12)
        assert result.metrics["rollout/episode_raw_reward"] == pytest.approx(by_rollout, rel=0, abs=1e-12)
