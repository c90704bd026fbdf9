"""A window's columns as numpy arrays, and what several metrics need of them, each worked out once."""

from __future__ import annotations

import math
from array import array
from collections import Counter
from functools import cached_property
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from stream_metrics.core.columns import ABSENT_LENGTH, NO_VERSION, TRUNCATED
from stream_metrics.core.exact import Bools, Floats, Ints, equal_values, exact_mean, exact_means, exact_stds, exact_sums
from stream_metrics.core.named import fold_counts
from stream_metrics.core.settings import FoldSettings, RolloutReward
from stream_metrics.core.window import Window
from stream_metrics.events import MAX_INTEGER

_NO_GROUP: Final = -1


def ints(column: array[int]) -> Ints:
    """Returns a copy: a column that numpy looks into can't grow."""
    return np.array(column, dtype=np.int64)


def rollout_rewards(
    rewards: Floats,
    rollout: Ints,
    position: Ints | None,
    num: int,
    rule: RolloutReward,
    equal: tuple[Floats, Bools] | None = None,
    counts: Ints | None = None,
) -> Floats:
    """Returns one reward a rollout, NaN where it has no sample here, infinite where a sum is past a double.

    Shapes: (n,), (n,), (n,) -> (num,). Samples are in log order; `position` goes before it in `first` and `last`.
    `equal` is what `equal_values` gives for the rewards, `counts` how many a rollout has, where they are known already.
    """
    if counts is None:
        counts = np.bincount(rollout, minlength=num)
    if rule == "mean":
        return exact_means(rewards, rollout, num, equal, counts)
    made = np.full(num, np.nan)
    has_some = counts > 0
    if rule == "sum":
        made[has_some] = exact_sums(rewards, rollout, num)[has_some]
    elif rule == "max":
        made[has_some] = -np.inf
        np.maximum.at(made, rollout, rewards)
    else:
        order = np.argsort(rollout, kind="stable") if position is None else np.lexsort((position, rollout))
        ends = np.cumsum(counts)[has_some]
        made[has_some] = rewards[order][ends - counts[has_some] if rule == "first" else ends - 1]
    return made + 0.0  # no negative zero


class StepView:
    """What metrics are functions of.

    Attributes:
        num_samples: Samples in the window.
        num_rollouts: Distinct rollout keys.
    """

    def __init__(self, window: Window, settings: FoldSettings) -> None:
        columns = window.columns
        self.window = window
        self.columns = columns
        self.settings = settings
        self.num_samples = len(columns)
        self.num_rollouts = len(columns.rollout_group)

    @cached_property
    def rollout(self) -> Ints:
        """(samples,) the number of each sample's rollout."""
        return ints(self.columns.rollout)

    @cached_property
    def rollout_group(self) -> Ints:
        """(rollouts,) the number of each rollout's group."""
        return ints(self.columns.rollout_group)

    # --- rewards -------------------------------------------------------------------------------------------------

    @cached_property
    def rewards(self) -> Floats:
        """(samples,) the chosen reward; NaN where it is missing, inf where it isn't finite."""
        chosen = self.columns.raw_reward if self.columns.first_has_raw_reward else self.columns.reward
        assert chosen is not None
        return np.array(chosen, dtype=np.float64)

    @cached_property
    def usable(self) -> Ints:
        """(usable samples,) the samples with a finite reward."""
        return np.flatnonzero(np.isfinite(self.rewards))

    @cached_property
    def usable_rewards(self) -> Floats:
        """(usable samples,) their rewards."""
        return self.rewards if self.is_all_usable else self.rewards[self.usable]

    @cached_property
    def usable_rollout(self) -> Ints:
        """(usable samples,) the numbers of their rollouts."""
        return self.rollout if self.is_all_usable else self.rollout[self.usable]

    @cached_property
    def is_all_usable(self) -> bool:
        """Whether there is no other sample."""
        return bool(np.isfinite(self.rewards).all())

    @cached_property
    def position(self) -> Ints | None:
        """(samples,) their places in their producers' lists; None where the rule for rollouts asks for none."""
        return None if self.columns.position is None else ints(self.columns.position)

    @cached_property
    def rollout_rewards(self) -> Floats:
        """(rollouts,) one reward a rollout by the rule `rollout_reward`; NaN where it has no usable one."""
        return rollout_rewards(
            self.usable_rewards,
            self.usable_rollout,
            None if self.position is None else self.position[self.usable],
            self.num_rollouts,
            self.settings.rollout_reward,
            self.agreeing,
            self.samples_per_rollout if self.is_all_usable else None,
        )

    def rewards_of(self, samples: Ints, rollout: Ints, num_rollouts: int) -> Floats:
        """Returns one reward a rollout, of the given usable samples only, under the given numbers of their rollouts."""
        position = None if self.position is None else self.position[samples]
        return rollout_rewards(self.rewards[samples], rollout, position, num_rollouts, self.settings.rollout_reward)

    @cached_property
    def agreeing(self) -> tuple[Floats, Bools]:
        """(rollouts,) a usable reward of one of its samples, NaN for none, and whether all of them have the same."""
        return equal_values(self.usable_rewards, self.usable_rollout, self.num_rollouts)

    @cached_property
    def is_scored(self) -> Bools:
        """(rollouts,) whether the rollout has a usable reward."""
        return np.isfinite(self.rollout_rewards)

    @cached_property
    def is_all_scored(self) -> bool:
        """Whether there is no other rollout."""
        return bool(self.is_scored.all())

    @cached_property
    def scores(self) -> Floats:
        """(scored rollouts,) their rewards."""
        return self.rollout_rewards if self.is_all_scored else self.rollout_rewards[self.is_scored]

    @cached_property
    def score_group(self) -> Ints:
        """(scored rollouts,) the numbers of their groups."""
        return self.rollout_group if self.is_all_scored else self.rollout_group[self.is_scored]

    @cached_property
    def mean_score(self) -> float:
        """The mean of `scores`."""
        return exact_mean(self.scores)

    @cached_property
    def mean_reward(self) -> float:
        """The mean of `usable_rewards`."""
        return exact_mean(self.usable_rewards)

    @cached_property
    def sorted_scores(self) -> Floats:
        """(scored rollouts,) their rewards, the lowest first."""
        return np.sort(self.scores)

    def score_percentile(self, percent: float) -> float:
        """Returns a percentile of `scores`, of which there is at least one: what numpy's method "linear" gives."""
        place = (len(self.sorted_scores) - 1) * (percent / 100)
        below = math.floor(place)
        low = float(self.sorted_scores[below])
        high = float(self.sorted_scores[min(below + 1, len(self.sorted_scores) - 1)])
        share = place - below
        return low + (high - low) * share if share < 0.5 else high - (high - low) * (1 - share)

    @cached_property
    def samples_per_rollout(self) -> Ints:
        """(rollouts,) their samples."""
        return np.bincount(self.rollout, minlength=self.num_rollouts)

    # --- groups: those with a `group_index` ----------------------------------------------------------------------

    @cached_property
    def num_all_groups(self) -> int:
        """Distinct `group_index` values, null among them."""
        return len(self.columns.groups)

    @cached_property
    def null_group(self) -> int:
        """The number of the group of the samples without one."""
        return self.columns.groups.get(None, _NO_GROUP)

    @cached_property
    def num_groups(self) -> int:
        """Distinct `group_index` values that aren't null."""
        return self.num_all_groups - (self.null_group != _NO_GROUP)

    @cached_property
    def all_group_sizes(self) -> Ints:
        """(groups,) scored rollouts."""
        return np.bincount(self.score_group, minlength=self.num_all_groups)

    @cached_property
    def all_group_means(self) -> Floats:
        """(groups,) mean of the rollouts' rewards; NaN where none is scored."""
        return exact_means(self.scores, self.score_group, self.num_all_groups, self._level, self.all_group_sizes)

    @cached_property
    def group_sizes(self) -> Ints:
        """(groups,) scored rollouts; 0 for the null group."""
        return self._without_null(self.all_group_sizes, 0)

    @cached_property
    def group_passes(self) -> Ints:
        """(groups,) scored rollouts that pass; 0 for the null group."""
        passing = self.score_group[self.scores >= self.settings.pass_threshold]
        return self._without_null(np.bincount(passing, minlength=self.num_all_groups), 0)

    @cached_property
    def group_stds(self) -> Floats:
        """(groups,) population standard deviation of the rollouts' rewards; NaN for the null group, or without any."""
        stds = exact_stds(self.scores, self.score_group, self.num_all_groups, self.all_group_means)
        return self._without_null(stds, np.nan)

    @cached_property
    def is_level(self) -> Bools:
        """(groups,) whether all scored rollouts of the group, one at least, have the same reward; not for null."""
        return self._without_null(self._level[1], False)

    @cached_property
    def _level(self) -> tuple[Floats, Bools]:
        return equal_values(self.scores, self.score_group, self.num_all_groups)

    def _without_null(self, of_groups: npt.NDArray[Any], instead: Any) -> npt.NDArray[Any]:
        """Returns what is said of groups, with something else for the null group."""
        if self.null_group == _NO_GROUP:
            return of_groups
        made = of_groups.copy()
        made[self.null_group] = instead
        return made

    @cached_property
    def flat_rewards(self) -> Floats:
        """(flat groups,) the one reward that all usable samples of the group have."""
        some, is_equal = self.agreeing
        group = self.rollout_group
        if not self.is_all_usable:
            is_scored = ~np.isnan(some)
            some, is_equal, group = some[is_scored], is_equal[is_scored], group[is_scored]
        of_group, is_flat = equal_values(some, group, self.num_all_groups)
        is_flat &= np.bincount(group, weights=~is_equal, minlength=self.num_all_groups) == 0
        made: Floats = of_group[self._without_null(is_flat, False)]
        return made

    @cached_property
    def flat_counts(self) -> dict[float, int]:
        """From a reward rounded to one decimal to the number of groups whose usable samples all have it."""
        return Counter(round(reward, 1) + 0.0 for reward in self.flat_rewards.tolist())

    # --- lengths, endings, staleness -----------------------------------------------------------------------------

    @cached_property
    def length_column(self) -> Ints:
        """(samples,) lengths as sent; (0,) where no sample has one."""
        column = self.columns.length
        return np.zeros(0, dtype=np.int64) if column is None else ints(column)

    @cached_property
    def measured(self) -> Ints:
        """(measured samples,) the samples with a length from 0 to 2^53 - 1."""
        return np.flatnonzero((self.length_column >= 0) & (self.length_column <= MAX_INTEGER))

    @cached_property
    def is_all_measured(self) -> bool:
        """Whether there is no other sample."""
        lengths = self.length_column
        return len(lengths) > 0 and bool(lengths.min() >= 0 and lengths.max() <= MAX_INTEGER)

    @cached_property
    def lengths(self) -> Ints:
        """(measured samples,) their lengths."""
        return self.length_column if self.is_all_measured else self.length_column[self.measured]

    @cached_property
    def num_invalid_lengths(self) -> int:
        if self.is_all_measured:
            return 0
        return int(np.count_nonzero(self.length_column != ABSENT_LENGTH)) - len(self.measured)

    @cached_property
    def rollout_lengths(self) -> Ints:
        """(measured rollouts,) the sum of the lengths of their samples; Python's integers where 64 bits are too few."""
        if self.is_all_measured:
            rollout, counts = self.rollout, self.samples_per_rollout
        else:
            rollout = self.rollout[self.measured]
            counts = np.bincount(rollout, minlength=self.num_rollouts)
        is_measured = counts > 0
        if len(self.lengths) and int(self.lengths.max()) * len(self.lengths) > MAX_INTEGER:
            sums = np.zeros(self.num_rollouts, dtype=object)
            np.add.at(sums, rollout, self.lengths.astype(object))
            return sums[is_measured]
        sums_of_floats = np.bincount(rollout, weights=self.lengths, minlength=self.num_rollouts)  # exact below 2^53
        return sums_of_floats[is_measured].astype(np.int64)

    @cached_property
    def statuses(self) -> npt.NDArray[np.uint8]:
        """(samples,) status codes; (0,) where no sample has one."""
        column = self.columns.status
        return np.zeros(0, dtype=np.uint8) if column is None else np.array(column, dtype=np.uint8)

    @cached_property
    def is_truncated(self) -> Bools:
        """(samples,) whether it was cut off at the length limit; (0,) where no sample has a status."""
        made: Bools = self.statuses == TRUNCATED
        return made

    @cached_property
    def version_column(self) -> Ints:
        """(samples,) the lowest weight version, as sent; (0,) where no sample has one."""
        column = self.columns.oldest_version
        return np.zeros(0, dtype=np.int64) if column is None else ints(column)

    @cached_property
    def oldest_versions(self) -> Ints:
        """(samples with one,) the lowest of their weight versions from 0 to 2^53 - 1."""
        return self.version_column[(self.version_column >= 0) & (self.version_column <= MAX_INTEGER)]

    @cached_property
    def num_invalid_versions(self) -> int:
        sent = int(np.count_nonzero(self.version_column != NO_VERSION))
        return self.columns.num_invalid_versions + sent - len(self.oldest_versions)

    # --- names ---------------------------------------------------------------------------------------------------

    @cached_property
    def num_folded(self) -> int:
        """Names that samples carry, and rewards under `zero_std/`, that found no place of their own."""
        columns = self.columns
        named = sum(kind.folded for kind in (columns.values, columns.components, columns.sources) if kind)
        return named + max(0, len(self.flat_counts) - self.settings.max_names)

    @cached_property
    def dropped(self) -> tuple[dict[str, int], int]:
        """What close markers say was dropped, by reason, and how many reasons found no place of their own."""
        return fold_counts(self.window.dropped, self.settings.max_names)
