"""What the policy earned: the reward by rollout and by sample, and how it is spread."""

from __future__ import annotations

from typing import Final

from stream_metrics.core.exact import exact_mean, exact_std
from stream_metrics.core.metrics.metric import Metric
from stream_metrics.core.view import StepView


def episode_raw_reward(view: StepView) -> float:
    """The reward: every rollout has one vote, however many samples compaction made of it. 0.0 without a usable reward.

    Formula: mean over scored rollouts r of x(r), where x(r) is the mean of the rewards of the samples of r (or their
    sum, last, first or highest, by the setting `rollout_reward`).
    Unit: reward.
    Cost: O(samples), about 50 ns each.
    Source: the metric of this name in miles.
    """
    return view.mean_score


def raw_reward(view: StepView) -> float:
    """What per-sample logging shows: every sample has one vote. 0.0 without a usable reward.

    Formula: mean over samples with a usable reward.
    Unit: reward.
    Cost: O(samples).
    Source: `rollout/raw_reward` in miles and slime.
    """
    return view.mean_reward


def weighting_gap(view: StepView) -> float:
    """What weighting by samples adds to the reward.

    Formula: raw_reward − episode_raw_reward.
    Unit: reward.
    Cost: O(samples).
    Source: own.
    """
    return view.mean_reward - view.mean_score


def group_mean_reward(view: StepView) -> float:
    """The reward with one vote a group; parts from `episode_raw_reward` where groups differ in size.

    The samples without a group are one group. Groups without a scored rollout stay out; 0.0 if all do.

    Formula: mean over groups g of (mean over scored rollouts r of g of x(r)).
    Unit: reward.
    Cost: O(rollouts).
    Source: own.
    """
    return exact_mean(view.all_group_means[view.all_group_sizes > 0])


def episode_raw_reward_std(view: StepView) -> float | None:
    """Population standard deviation of the reward over rollouts.

    Formula: sqrt(mean over scored rollouts r of (x(r) − episode_raw_reward)²).
    Unit: reward.
    Cost: O(rollouts).
    Source: numpy.std with ddof 0.
    Appears: with a scored rollout.
    """
    return exact_std(view.scores) if len(view.scores) else None


def episode_raw_reward_min(view: StepView) -> float | None:
    """Lowest reward of a rollout.

    Formula: min over scored rollouts r of x(r).
    Unit: reward.
    Cost: O(rollouts).
    Source: own.
    Appears: with a scored rollout.
    """
    return float(view.sorted_scores[0]) if len(view.scores) else None


def episode_raw_reward_max(view: StepView) -> float | None:
    """Highest reward of a rollout.

    Formula: max over scored rollouts r of x(r).
    Unit: reward.
    Cost: O(rollouts).
    Source: own.
    Appears: with a scored rollout.
    """
    return float(view.sorted_scores[-1]) if len(view.scores) else None


def episode_raw_reward_median(view: StepView) -> float | None:
    """Median reward of a rollout.

    Formula: 50th percentile of x(r) over scored rollouts, linear interpolation.
    Unit: reward.
    Cost: O(rollouts).
    Source: numpy.percentile, method "linear".
    Appears: with a scored rollout.
    """
    return view.score_percentile(50) if len(view.scores) else None


def episode_raw_reward_p10(view: StepView) -> float | None:
    """Reward that a tenth of the rollouts stay below.

    Formula: 10th percentile of x(r) over scored rollouts, linear interpolation.
    Unit: reward.
    Cost: O(rollouts).
    Source: numpy.percentile, method "linear".
    Appears: with a scored rollout.
    """
    return view.score_percentile(10) if len(view.scores) else None


def episode_raw_reward_p90(view: StepView) -> float | None:
    """Reward that a tenth of the rollouts are above.

    Formula: 90th percentile of x(r) over scored rollouts, linear interpolation.
    Unit: reward.
    Cost: O(rollouts).
    Source: numpy.percentile, method "linear".
    Appears: with a scored rollout.
    """
    return view.score_percentile(90) if len(view.scores) else None


METRICS: Final = (
    Metric("episode_raw_reward", episode_raw_reward),
    Metric("raw_reward", raw_reward),
    Metric("weighting_gap", weighting_gap),
    Metric("group_mean_reward", group_mean_reward),
    Metric("episode_raw_reward_std", episode_raw_reward_std),
    Metric("episode_raw_reward_min", episode_raw_reward_min),
    Metric("episode_raw_reward_max", episode_raw_reward_max),
    Metric("episode_raw_reward_median", episode_raw_reward_median),
    Metric("episode_raw_reward_p10", episode_raw_reward_p10),
    Metric("episode_raw_reward_p90", episode_raw_reward_p90),
)
