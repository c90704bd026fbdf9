"""As in per-sample logging every sample has one vote, unless the name says `episode_`.

A sample's length is its `effective_response_length` if that is sent, else its `response_length`.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from stream_metrics.core.columns import ABORTED, FAILED
from stream_metrics.core.exact import Ints, exact_int_sum
from stream_metrics.core.metrics.metric import Metric
from stream_metrics.core.view import StepView


def _mean(numbers: Ints) -> float | None:
    return exact_int_sum(numbers) / len(numbers) if len(numbers) else None


def _median(numbers: Ints) -> float | None:
    if not len(numbers):
        return None
    middle = len(numbers) // 2
    ordered = np.partition(numbers, middle)  # one place at a time is much quicker than two
    high = int(ordered[middle])
    return float(high) if len(numbers) % 2 else (int(ordered[:middle].max()) + high) / 2


def _max(numbers: Ints) -> int | None:
    return int(numbers.max()) if len(numbers) else None


def _min(numbers: Ints) -> int | None:
    return int(numbers.min()) if len(numbers) else None


def response_len_mean(view: StepView) -> float | None:
    """Mean length of a sample.

    Formula: mean over samples with a length.
    Unit: tokens.
    Cost: O(samples).
    Source: the metric of this name in miles and slime.
    Appears: with a length.
    """
    return _mean(view.lengths)


def response_len_median(view: StepView) -> float | None:
    """Median length of a sample.

    Formula: median over samples with a length; the mean of the two in the middle.
    Unit: tokens.
    Cost: O(samples).
    Source: the metric of this name in miles and slime.
    Appears: with a length.
    """
    return _median(view.lengths)


def response_len_max(view: StepView) -> int | None:
    """Length of the longest sample.

    Formula: max over samples with a length.
    Unit: tokens.
    Cost: O(samples).
    Source: the metric of this name in miles and slime.
    Appears: with a length.
    """
    return _max(view.lengths)


def response_len_min(view: StepView) -> int | None:
    """Length of the shortest sample.

    Formula: min over samples with a length.
    Unit: tokens.
    Cost: O(samples).
    Source: the metric of this name in miles and slime.
    Appears: with a length.
    """
    return _min(view.lengths)


def episode_response_len_mean(view: StepView) -> float | None:
    """Mean length of a rollout.

    Formula: mean over rollouts with a length of the sum over their samples.
    Unit: tokens.
    Cost: O(samples).
    Source: own, as miles sums a rollout's samples.
    Appears: with a length.
    """
    return _mean(view.rollout_lengths)


def episode_response_len_max(view: StepView) -> int | None:
    """Length of the longest rollout.

    Formula: max over rollouts with a length of the sum over their samples.
    Unit: tokens.
    Cost: O(samples).
    Source: own, as miles sums a rollout's samples.
    Appears: with a length.
    """
    return _max(view.rollout_lengths)


def _status_ratio(view: StepView, code: int) -> float | None:
    if not len(view.statuses):
        return None
    return int(np.count_nonzero(view.statuses == code)) / view.num_samples


def truncated_ratio(view: StepView) -> float | None:
    """Share of samples cut off at the length limit.

    Formula: |{s : status of s is truncated}| / |samples|.
    Unit: share, 0 to 1.
    Cost: O(samples).
    Source: the metric of this name in miles and slime.
    Appears: with a status.
    """
    return int(np.count_nonzero(view.is_truncated)) / view.num_samples if len(view.statuses) else None


def aborted_ratio(view: StepView) -> float | None:
    """Share of samples broken off.

    Formula: |{s : status of s is aborted}| / |samples|.
    Unit: share, 0 to 1.
    Cost: O(samples).
    Source: own, as `truncated_ratio`.
    Appears: with a status.
    """
    return _status_ratio(view, ABORTED)


def failed_ratio(view: StepView) -> float | None:
    """Share of samples that failed.

    Formula: |{s : status of s is failed}| / |samples|.
    Unit: share, 0 to 1.
    Cost: O(samples).
    Source: own, as `truncated_ratio`.
    Appears: with a status.
    """
    return _status_ratio(view, FAILED)


def episode_truncated_ratio(view: StepView) -> float | None:
    """Share of rollouts with a sample cut off at the length limit.

    Formula: |{r : a sample of r is truncated}| / |rollouts|.
    Unit: share, 0 to 1.
    Cost: O(samples).
    Source: own.
    Appears: with a status.
    """
    if not len(view.statuses):
        return None
    is_truncated = np.zeros(view.num_rollouts, dtype=np.bool_)
    is_truncated[view.rollout[np.flatnonzero(view.is_truncated)]] = True
    return int(np.count_nonzero(is_truncated)) / view.num_rollouts


def weight_version_mean(view: StepView) -> float | None:
    """Mean over samples of the oldest weights that took part in them.

    Formula: mean over samples with a numeric version of their lowest; texts of digits are numbers too.
    Unit: weight version.
    Cost: O(samples).
    Source: the metric of this name in miles.
    Appears: with a numeric version.
    """
    return _mean(view.oldest_versions)


def weight_version_median(view: StepView) -> float | None:
    """Median over samples of the oldest weights that took part in them.

    Formula: median over samples with a numeric version of their lowest; the mean of the two in the middle.
    Unit: weight version.
    Cost: O(samples).
    Source: the metric of this name in miles.
    Appears: with a numeric version.
    """
    return _median(view.oldest_versions)


def weight_version_max(view: StepView) -> int | None:
    """Highest over samples of the oldest weights that took part in them.

    Formula: max over samples with a numeric version of their lowest.
    Unit: weight version.
    Cost: O(samples).
    Source: the metric of this name in miles.
    Appears: with a numeric version.
    """
    return _max(view.oldest_versions)


def weight_version_min(view: StepView) -> int | None:
    """The oldest weights that took part at all.

    Formula: min over samples with a numeric version of their lowest.
    Unit: weight version.
    Cost: O(samples).
    Source: the metric of this name in miles.
    Appears: with a numeric version.
    """
    return _min(view.oldest_versions)


def weight_version_mixed_version_ratio(view: StepView) -> float | None:
    """Share of samples in which weights of more than one version took part.

    Formula: |{s : s has two distinct weight_versions}| / |samples|; 10 and "10" are distinct.
    Unit: share, 0 to 1.
    Cost: O(1).
    Source: the metric of this name in miles.
    Appears: with a version.
    """
    return None if view.columns.oldest_version is None else view.columns.num_mixed_versions / view.num_samples


METRICS: Final = (
    Metric("response_len/mean", response_len_mean),
    Metric("response_len/median", response_len_median),
    Metric("response_len/max", response_len_max),
    Metric("response_len/min", response_len_min),
    Metric("episode_response_len_mean", episode_response_len_mean),
    Metric("episode_response_len_max", episode_response_len_max),
    Metric("truncated_ratio", truncated_ratio),
    Metric("aborted_ratio", aborted_ratio),
    Metric("failed_ratio", failed_ratio),
    Metric("episode_truncated_ratio", episode_truncated_ratio),
    Metric("weight_version/mean", weight_version_mean),
    Metric("weight_version/median", weight_version_median),
    Metric("weight_version/max", weight_version_max),
    Metric("weight_version/min", weight_version_min),
    Metric("weight_version/mixed_version_ratio", weight_version_mixed_version_ratio),
)
