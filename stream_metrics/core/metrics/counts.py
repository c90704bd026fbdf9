"""How much there is, and what is odd about it."""

from __future__ import annotations

from typing import Final

import numpy as np

from stream_metrics.core.metrics.metric import Metric, Number
from stream_metrics.core.view import StepView


def num_training_samples(view: StepView) -> int:
    """Samples in the window, duplicates left out.

    Formula: |samples|.
    Unit: samples.
    Cost: O(1).
    Source: the metric of this name in miles.
    """
    return view.num_samples


def num_rollouts(view: StepView) -> int:
    """Distinct rollout keys.

    Formula: |{rollout key of s}| over samples s.
    Unit: rollouts.
    Cost: O(1).
    Source: own.
    """
    return view.num_rollouts


def num_scored_rollouts(view: StepView) -> int:
    """Rollouts with a usable reward: at least one sample has a finite one.

    Formula: |{r : r has a reward}|.
    Unit: rollouts.
    Cost: O(samples).
    Source: own.
    """
    return len(view.scores)


def num_groups(view: StepView) -> int:
    """Distinct `group_index` values; null is one like any other.

    Formula: |{group_index of s}| over samples s.
    Unit: groups.
    Cost: O(1).
    Source: own.
    """
    return view.num_all_groups


def samples_per_rollout_mean(view: StepView) -> float:
    """How many samples compaction makes of a rollout; 0.0 without rollouts.

    Formula: |samples| / |rollouts|.
    Unit: samples.
    Cost: O(1).
    Source: own.
    """
    return view.num_samples / view.num_rollouts if view.num_rollouts else 0.0


def samples_per_rollout_max(view: StepView) -> int:
    """Samples of the rollout that has most; 0 without rollouts.

    Formula: max over rollouts r of |samples of r|.
    Unit: samples.
    Cost: O(samples).
    Source: own.
    """
    return int(view.samples_per_rollout.max(initial=0))


def compacted_rollout_ratio(view: StepView) -> float:
    """Share of rollouts with more than one sample; 0.0 without rollouts.

    Formula: |{r : |samples of r| > 1}| / |rollouts|.
    Unit: share, 0 to 1.
    Cost: O(samples).
    Source: own.
    """
    if not view.num_rollouts:
        return 0.0
    return int(np.count_nonzero(view.samples_per_rollout > 1)) / view.num_rollouts


def disagreeing_rollouts(view: StepView) -> int:
    """Rollouts whose samples' usable rewards are not all equal: where there are many, look at the setting for rollouts.

    Formula: |{r : max reward of r ≠ min reward of r}|.
    Unit: rollouts.
    Cost: O(samples).
    Source: own.
    """
    some, is_equal = view.agreeing
    return int(np.count_nonzero(~np.isnan(some) & ~is_equal))


def missing_rewards(view: StepView) -> int:
    """Samples that lack the chosen reward; they are in no mean.

    Formula: |{s : s has no reward that is a number}|.
    Unit: samples.
    Cost: O(samples).
    Source: own.
    """
    return 0 if view.is_all_usable else int(np.count_nonzero(np.isnan(view.rewards)))


def nonfinite_rewards(view: StepView) -> int:
    """Samples whose reward is NaN, infinite or past a double, and rollouts whose sum is; they are in no mean.

    Formula: |{s : reward of s is a number, but not finite}| + |{r : sum over r is not finite}|.
    Unit: samples (and rollouts, under the rule `sum`).
    Cost: O(samples).
    Source: own.
    """
    if view.is_all_usable and view.is_all_scored:
        return 0
    return int(np.count_nonzero(np.isinf(view.rewards)) + np.count_nonzero(np.isinf(view.rollout_rewards)))


def mixed_reward_sources(view: StepView) -> int:
    """1 if some samples carry `metadata.raw_reward` and others don't, else 0.

    Formula: [0 < |{s : s has metadata.raw_reward}| < |samples|].
    Unit: flag.
    Cost: O(1).
    Source: own.
    """
    return int(0 < view.columns.num_raw_rewards < view.num_samples)


def duplicate_samples(view: StepView) -> int:
    """Samples dropped because their `sample_id` had been seen in the window.

    Formula: |samples received| − |samples|.
    Unit: samples.
    Cost: O(1).
    Source: own.
    """
    return view.window.duplicates


def invalid_response_lengths(view: StepView) -> int | None:
    """Samples with a negative length or one past 2^53 − 1; they are in no length metric.

    Formula: |{s : length of s is not in 0 … 2^53 − 1}|.
    Unit: samples.
    Cost: O(samples).
    Source: own.
    Appears: where it isn't 0.
    """
    return view.num_invalid_lengths or None


def invalid_weight_versions(view: StepView) -> int | None:
    """Samples with a weight version that is negative or past 2^53 − 1; that version is no number.

    Formula: |{s : a numeric version of s is not in 0 … 2^53 − 1}|.
    Unit: samples.
    Cost: O(samples).
    Source: own.
    Appears: where it isn't 0.
    """
    return view.num_invalid_versions or None


def invalid_values(view: StepView) -> int | None:
    """Numbers in `values` that are none, or not finite; null is no number sent.

    Formula: |{(s, name) : values[name] of s is not null and not a finite number}|.
    Unit: values.
    Cost: O(1).
    Source: own.
    Appears: where it isn't 0.
    """
    values = view.columns.values
    return (values.invalid + values.nonfinite if values else 0) or None


def nonfinite_reward_components(view: StepView) -> int | None:
    """Numbers in reward objects that aren't finite. What is no number at all isn't counted: objects hold texts too.

    Formula: |{(s, component) : reward[component] of s is a number, but not finite}|.
    Unit: components.
    Cost: O(1).
    Source: own.
    Appears: where it isn't 0.
    """
    components = view.columns.components
    return (components.nonfinite if components else 0) or None


def folded_names(view: StepView) -> int | None:
    """How often a name found no place of its own, because `max_names` others of its kind come first, and is in `other`.

    Formula: values and components sent, samples with a data source, reasons, and rewards of `zero_std/` so named.
    Unit: names sent.
    Cost: O(1).
    Source: own.
    Appears: where it isn't 0.
    """
    return view.num_folded + view.dropped[1] or None


def dropped(view: StepView) -> dict[str, Number]:
    """What producers filtered, aborted or could not send, by the reason they give.

    Formula: sum over close markers of dropped[reason].
    Unit: samples.
    Cost: O(reasons).
    Source: own.
    Appears: where a close marker says so.
    """
    return {f"dropped/{reason}": count for reason, count in view.dropped[0].items()}


def dropped_total(view: StepView) -> int | None:
    """What producers filtered, aborted or could not send, whatever the reason.

    Formula: sum over close markers and reasons of dropped[reason].
    Unit: samples.
    Cost: O(reasons).
    Source: own.
    Appears: where a close marker says so.
    """
    return sum(view.window.dropped.values()) if view.window.dropped else None


METRICS: Final = (
    Metric("num_training_samples", num_training_samples),
    Metric("num_rollouts", num_rollouts),
    Metric("num_scored_rollouts", num_scored_rollouts),
    Metric("num_groups", num_groups),
    Metric("samples_per_rollout_mean", samples_per_rollout_mean),
    Metric("samples_per_rollout_max", samples_per_rollout_max),
    Metric("compacted_rollout_ratio", compacted_rollout_ratio),
    Metric("disagreeing_rollouts", disagreeing_rollouts),
    Metric("missing_rewards", missing_rewards),
    Metric("nonfinite_rewards", nonfinite_rewards),
    Metric("mixed_reward_sources", mixed_reward_sources),
    Metric("duplicate_samples", duplicate_samples, is_of_samples=False),
    Metric("invalid_response_lengths", invalid_response_lengths),
    Metric("invalid_weight_versions", invalid_weight_versions),
    Metric("invalid_values", invalid_values),
    Metric("nonfinite_reward_components", nonfinite_reward_components),
    Metric("folded_names", folded_names, is_of_samples=False),
    Metric("dropped/<reason>", dropped, is_of_samples=False),
    Metric("dropped_total", dropped_total, is_of_samples=False),
)
