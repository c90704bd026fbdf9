"""The metric catalogue: each metric a function of a `StepView`, listed once in `METRICS`.

Numbers are exact for what they are defined on: sums are `math.fsum`'s, so neither the order of samples nor the hash seed
shows in them. No metric is ever NaN or infinite: what can't be a finite number isn't published.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from fractions import Fraction
from functools import cached_property
from typing import Final

import numpy as np
import numpy.typing as npt

from stream_metrics.core.settings import FoldSettings
from stream_metrics.core.window import Window

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Number = int | float


def exact_mean(values: list[float]) -> float:
    """Returns the correctly rounded sum of finite numbers divided by their count; 0.0 for none.

    Where the sum is past a double the mean is taken in rational numbers: it never overflows.
    """
    if not values:
        return 0.0
    try:
        return math.fsum(values) / len(values) + 0.0
    except OverflowError:
        return float(sum(map(Fraction, values)) / len(values))


class StepView:
    """The columns of a window as numpy arrays, and what several metrics need of them, worked out once.

    Attributes:
        num_samples: Samples in the window.
        rollout: (samples,) the number of each sample's rollout.
        rewards: (samples,) the chosen reward; NaN where it is missing, inf where it isn't finite.
        rollout_group: (rollouts,) the number of each rollout's group.
    """

    def __init__(self, window: Window, settings: FoldSettings) -> None:
        columns = window.columns
        self.window = window
        self.settings = settings
        self.num_samples = len(columns)
        self.rollout: Ints = np.array(columns.rollout, dtype=np.int64)
        self.rollout_group: Ints = np.array(columns.rollout_group, dtype=np.int64)
        chosen = columns.raw_reward if columns.first_has_raw_reward else columns.reward
        assert chosen is not None
        self.rewards: Floats = np.array(chosen, dtype=np.float64)

    @property
    def num_rollouts(self) -> int:
        return len(self.rollout_group)

    @cached_property
    def usable(self) -> npt.NDArray[np.bool_]:
        """(samples,) whether the sample has a finite reward."""
        return np.isfinite(self.rewards)

    @cached_property
    def order(self) -> Ints:
        """(usable samples,) indices of the samples by rollout and, within one, by position and then log order."""
        usable = np.flatnonzero(self.usable)
        position = self.window.columns.position
        if position is None:
            return usable[np.argsort(self.rollout[usable], kind="stable")]
        return usable[np.lexsort((np.array(position, dtype=np.int64)[usable], self.rollout[usable]))]

    @cached_property
    def scored_counts(self) -> Ints:
        """(rollouts,) samples with a usable reward."""
        return np.bincount(self.rollout[self.usable], minlength=self.num_rollouts)

    @cached_property
    def rollout_rewards(self) -> Floats:
        """(rollouts,) one reward a rollout by the rule `rollout_reward`; NaN where it has no usable one."""
        counts, ordered = self.scored_counts, self.rewards[self.order]
        starts = np.cumsum(counts) - counts
        made = np.full(self.num_rollouts, np.nan)
        scored = counts > 0
        rule = self.settings.rollout_reward
        if rule == "first":
            made[scored] = ordered[starts[scored]]
        elif rule == "last":
            made[scored] = ordered[starts[scored] + counts[scored] - 1]
        elif rule == "max":
            if scored.any():
                made[scored] = np.maximum.reduceat(ordered, starts[scored])
        else:
            # One and two samples need no fsum: a double sum of two is correctly rounded already.
            one, two = counts == 1, counts == 2
            made[one] = ordered[starts[one]]
            with np.errstate(over="ignore"):
                made[two] = ordered[starts[two]] + ordered[starts[two] + 1]
                if rule == "mean":
                    made[two] /= 2
            again = (counts > 2) | (two & ~np.isfinite(made))
            values = ordered.tolist()
            of_one = exact_mean if rule == "mean" else _exact_sum
            for rollout in np.flatnonzero(again).tolist():
                start = int(starts[rollout])
                made[rollout] = of_one(values[start : start + int(counts[rollout])])
            made += 0.0  # no negative zero
        return made

    @cached_property
    def scores(self) -> Floats:
        """(scored rollouts,) the finite ones of `rollout_rewards`."""
        return self.rollout_rewards[np.isfinite(self.rollout_rewards)]


def _exact_sum(values: list[float]) -> float:
    try:
        return math.fsum(values)
    except OverflowError:
        return math.inf


Metric = Callable[[StepView], "Number | None"]


def num_training_samples(view: StepView) -> int:
    """Samples in the window, duplicates left out. Unit: samples."""
    return view.num_samples


def episode_raw_reward(view: StepView) -> float:
    """Mean over rollouts of the rollout's reward; 0.0 if no rollout has a usable one. Unit: reward."""
    return exact_mean(view.scores.tolist())


def raw_reward(view: StepView) -> float:
    """Mean over samples of their reward; 0.0 if no sample has a usable one. Unit: reward."""
    return exact_mean(view.rewards[view.usable].tolist())


def weighting_gap(view: StepView) -> float:
    """`raw_reward` - `episode_raw_reward`: what weighting by samples adds. Unit: reward."""
    return raw_reward(view) - episode_raw_reward(view)


def num_rollouts(view: StepView) -> int:
    """Distinct rollout keys. Unit: rollouts."""
    return view.num_rollouts


def num_scored_rollouts(view: StepView) -> int:
    """Rollouts with a usable reward. Unit: rollouts."""
    return len(view.scores)


def num_groups(view: StepView) -> int:
    """Distinct `group_index` values, null among them. Unit: groups."""
    return len(view.window.columns.groups)


def disagreeing_rollouts(view: StepView) -> int:
    """Rollouts whose samples' usable rewards are not all equal. Unit: rollouts."""
    counts = view.scored_counts
    scored = counts > 0
    if not scored.any():
        return 0
    ordered = view.rewards[view.order]
    starts = (np.cumsum(counts) - counts)[scored]
    return int(np.count_nonzero(np.maximum.reduceat(ordered, starts) != np.minimum.reduceat(ordered, starts)))


def missing_rewards(view: StepView) -> int:
    """Samples that lack the chosen reward. Unit: samples."""
    return int(np.count_nonzero(np.isnan(view.rewards)))


def nonfinite_rewards(view: StepView) -> int:
    """Samples whose reward is NaN, infinite or past a double, and rollouts whose sum is. Unit: samples."""
    return int(np.count_nonzero(np.isinf(view.rewards)) + np.count_nonzero(np.isinf(view.rollout_rewards)))


def mixed_reward_sources(view: StepView) -> int:
    """1 if some samples carry `metadata.raw_reward` and others don't, else 0."""
    return int(0 < view.window.columns.num_raw_rewards < view.num_samples)


def duplicate_samples(view: StepView) -> int:
    """Samples dropped because their `sample_id` had been seen. Unit: samples."""
    return view.window.duplicates


METRICS: Final[dict[str, Metric]] = {
    function.__name__: function
    for function in (
        num_training_samples,
        episode_raw_reward,
        raw_reward,
        weighting_gap,
        num_rollouts,
        num_scored_rollouts,
        num_groups,
        disagreeing_rollouts,
        missing_rewards,
        nonfinite_rewards,
        mixed_reward_sources,
        duplicate_samples,
    )
}


def step_metrics(window: Window, settings: FoldSettings) -> dict[str, Number]:
    """Returns the window's metrics under their published names."""
    view = StepView(window, settings)
    made: dict[str, Number] = {}
    for name, metric in METRICS.items():
        value = metric(view)
        if value is not None and math.isfinite(value):
            made[f"{window.scope}/{name}"] = value
    made[f"{window.scope}/step"] = window.step
    return made


def names() -> Iterable[str]:
    """Yields the metrics' names without their scope."""
    yield from METRICS
    yield "step"
