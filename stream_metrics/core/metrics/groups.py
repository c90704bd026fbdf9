"""Prompt groups: what there is to learn from, and how many are solved.

A group here is a `group_index` that isn't null. A rollout without a usable reward is in no group's n.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from stream_metrics.core.exact import exact_mean
from stream_metrics.core.metrics.metric import Metric
from stream_metrics.core.named import OTHER
from stream_metrics.core.view import StepView


def zero_std_count(view: StepView) -> dict[str, int] | None:
    """Groups whose samples all have one reward, by that reward.

    Samples without a usable reward don't count. The `max_names` rewards that most groups have are named, the lower one
    first among equals; the rest are under `other`.

    Formula: |{g : all rewards of the samples of g are equal and round to r}|, r with one decimal.
    Unit: groups.
    Cost: O(samples).
    Source: the metrics of this name in miles.
    Appears: with a group, for each r that there is.
    """
    by_reward = sorted(view.flat_counts.items(), key=lambda item: (-item[1], item[0]))
    named, rest = by_reward[: view.settings.max_names], by_reward[view.settings.max_names :]
    made = {f"zero_std/count_{reward}": count for reward, count in sorted(named)}
    if rest:
        made[f"zero_std/count_{OTHER}"] = sum(count for _, count in rest)
    return made


def zero_std_all_zero_percentage(view: StepView) -> float | None:
    """Share of groups whose samples all have the reward 0: too hard.

    Formula: zero_std/count_0.0 / |groups|.
    Unit: share, 0 to 1.
    Cost: O(samples).
    Source: the metric of this name in miles, which calls a share a percentage.
    Appears: with a group.
    """
    return view.flat_counts.get(0.0, 0) / view.num_groups if view.num_groups else None


def zero_std_all_one_percentage(view: StepView) -> float | None:
    """Share of groups whose samples all have the reward 1: too easy.

    Formula: zero_std/count_1.0 / |groups|.
    Unit: share, 0 to 1.
    Cost: O(samples).
    Source: the metric of this name in miles, which calls a share a percentage.
    Appears: with a group.
    """
    return view.flat_counts.get(1.0, 0) / view.num_groups if view.num_groups else None


def episode_zero_std_ratio(view: StepView) -> float | None:
    """Share of groups that give GRPO no gradient, since all their rollouts earn the same.

    Formula: |{g : n(g) ≥ 2 and all x(r) of g are equal}| / |{g : n(g) ≥ 2}|, n(g) the scored rollouts of g.
    Unit: share, 0 to 1.
    Cost: O(rollouts).
    Source: own; Shao et al. 2024, "DeepSeekMath", for the advantage that a group's spread makes.
    Appears: with a group of two or more scored rollouts.
    """
    is_large = view.group_sizes >= 2
    count = int(np.count_nonzero(is_large))
    return int(np.count_nonzero(view.is_level[is_large])) / count if count else None


def episode_reward_std_within_group(view: StepView) -> float | None:
    """How far the rollouts of one prompt lie apart.

    Formula: mean over groups g with n(g) ≥ 1 of the population standard deviation of x(r) over the rollouts of g.
    Unit: reward.
    Cost: O(rollouts).
    Source: own.
    Appears: with a scored rollout in a group.
    """
    return exact_mean(view.group_stds[view.group_sizes > 0]) if view.group_sizes.any() else None


def passrate(view: StepView) -> dict[str, float]:
    """Chance that at least one of k rollouts of a prompt passes, for k = 1, 2, 4, … up to the largest group.

    A rollout passes if x(r) ≥ `pass_threshold`. Counting samples instead of rollouts would break it under compaction.

    Formula: mean over groups g with n(g) ≥ k of 1 − C(n − c, k) / C(n, k), c the rollouts of g that pass.
    Unit: share, 0 to 1.
    Cost: O(rollouts).
    Source: Chen et al. 2021, "Evaluating Large Language Models Trained on Code", the unbiased estimator.
    Appears: with a scored rollout in a group.
    """
    has_some = view.group_sizes > 0
    largest = int(view.group_sizes.max(initial=0))
    alike, counts = np.unique(
        view.group_sizes[has_some] * (largest + 1) + view.group_passes[has_some], return_counts=True
    )
    groups = [(*divmod(code, largest + 1), count) for code, count in zip(alike.tolist(), counts.tolist(), strict=True)]
    made = {}
    k = 1
    while k <= largest:
        total = sum(count for n, _, count in groups if n >= k)
        shares = math.fsum(pass_at_k(n, c, k) * count for n, c, count in groups if n >= k)
        made[f"passrate/pass@{k}"] = min(1.0, shares / total)
        k *= 2
    return made


def pass_at_k(n: int, c: int, k: int) -> float:
    """Returns 1 − C(n − c, k) / C(n, k), to 1e-12, with min(c, k) factors, for 0 ≤ c ≤ n and 1 ≤ k ≤ n."""
    if n - c < k:
        return 1.0
    fewer, more = min(c, k), max(c, k)
    return 1.0 - math.prod((n - more - i) / (n - i) for i in range(fewer))


def solve_none_ratio(view: StepView) -> float | None:
    """Share of groups in which no rollout passes.

    Formula: |{g : c(g) = 0}| / |{g : n(g) ≥ 1}|.
    Unit: share, 0 to 1.
    Cost: O(rollouts).
    Source: own.
    Appears: with a scored rollout in a group.
    """
    has_some = view.group_sizes > 0
    count = int(np.count_nonzero(has_some))
    return int(np.count_nonzero(view.group_passes[has_some] == 0)) / count if count else None


def solve_all_ratio(view: StepView) -> float | None:
    """Share of groups in which every rollout passes.

    Formula: |{g : c(g) = n(g)}| / |{g : n(g) ≥ 1}|.
    Unit: share, 0 to 1.
    Cost: O(rollouts).
    Source: own.
    Appears: with a scored rollout in a group.
    """
    has_some = view.group_sizes > 0
    count = int(np.count_nonzero(has_some))
    is_solved = view.group_passes[has_some] == view.group_sizes[has_some]
    return int(np.count_nonzero(is_solved)) / count if count else None


METRICS: Final = (
    Metric("zero_std/count_<r>", zero_std_count),
    Metric("zero_std/all_zero_percentage", zero_std_all_zero_percentage),
    Metric("zero_std/all_one_percentage", zero_std_all_one_percentage),
    Metric("episode_zero_std_ratio", episode_zero_std_ratio),
    Metric("episode_reward_std_within_group", episode_reward_std_within_group),
    Metric("passrate/pass@<k>", passrate),
    Metric("solve_none_ratio", solve_none_ratio),
    Metric("solve_all_ratio", solve_all_ratio),
)
