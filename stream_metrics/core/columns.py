"""The samples of one window as columns: one number a sample and property, so that a million samples stay small.

A column is made when the first sample has its property; earlier samples get the column's "absent" value. Rewards are kept
from both places they may come from, since the step's first sample, which decides the place, may be the last to arrive.
In a reward column NaN stands for "none" and infinity for "not finite", whatever non-finite number it was.
Rollouts and groups are numbered in the order in which they are first seen.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from typing import Any, Final

from stream_metrics.core.settings import FoldSettings
from stream_metrics.events import Identifier, SampleFields

ABSENT: Final = math.nan
NOT_FINITE: Final = math.inf
NO_POSITION: Final = 2**63 - 1


def reward_number(value: Any) -> float:
    """Returns a decoded reward as a float: booleans as 1.0 and 0.0, `ABSENT` for no number, `NOT_FINITE` for a bad one."""
    if isinstance(value, (float, int)):
        try:
            number = float(value)
        except OverflowError:
            return NOT_FINITE
        return number if math.isfinite(number) else NOT_FINITE
    return ABSENT


class Columns:
    """The samples of one window.

    Attributes:
        rollout: Per sample, the number of its rollout.
        reward: Per sample, `reward` or its component `reward_key`.
        raw_reward: Per sample, `metadata.raw_reward`; None while no sample has one.
        position: Per sample, its place in its producer's list, `NO_POSITION` where it has none; None while none has.
        rollout_group: Per rollout, the number of its group.
        groups: From `group_index` to the group's number.
        num_raw_rewards: Samples that carry `metadata.raw_reward`, whatever it holds.
        first_has_raw_reward: Whether the step's first sample carries it.
    """

    __slots__ = (
        "_by_index",
        "_by_rollout_id",
        "_first_position",
        "_reward_key",
        "_sample_ids",
        "first_has_raw_reward",
        "groups",
        "num_raw_rewards",
        "position",
        "raw_reward",
        "reward",
        "rollout",
        "rollout_group",
    )

    def __init__(self, settings: FoldSettings) -> None:
        self._reward_key = settings.reward_key
        self.rollout = array("i")
        self.reward = array("d")
        self.raw_reward: array[float] | None = None
        self.position: array[int] | None = None
        self.rollout_group = array("i")
        self.groups: dict[Identifier | None, int] = {}
        self.num_raw_rewards = 0
        self.first_has_raw_reward = False
        self._first_position: int | None = None
        self._by_rollout_id: list[dict[Identifier, int]] = []
        self._by_index: list[dict[int, int]] = []
        self._sample_ids: set[Identifier] | None = None

    def __len__(self) -> int:
        return len(self.rollout)

    def has_new(self, samples: Sequence[SampleFields]) -> bool:
        """Returns whether `extend` would take at least one of the samples."""
        seen = self._sample_ids or ()
        return any(sample.sample_id is None or sample.sample_id not in seen for sample in samples)

    def extend(self, samples: Sequence[SampleFields]) -> int:
        """Takes samples in log order, duplicates by `sample_id` left out, and returns how many it took."""
        ids = [sample.sample_id for sample in samples]
        if ids.count(None) != len(ids):
            samples = self._without_duplicates(samples)
        if not samples:
            return 0
        before = len(self.rollout)
        self._take_raw_rewards(samples, before)
        self._take_positions(samples, before)
        self._take_rewards(samples)
        self._take_rollouts(samples)
        return len(samples)

    def _without_duplicates(self, samples: Sequence[SampleFields]) -> list[SampleFields]:
        seen = self._sample_ids
        if seen is None:
            seen = self._sample_ids = set()
        new = []
        for sample in samples:
            sample_id = sample.sample_id
            if sample_id is not None:
                if sample_id in seen:
                    continue
                seen.add(sample_id)
            new.append(sample)
        return new

    def _take_rollouts(self, samples: Sequence[SampleFields]) -> None:
        groups, by_rollout_id, by_index = self.groups, self._by_rollout_id, self._by_index
        rollout_group = self.rollout_group
        numbers = []
        take = numbers.append
        for sample in samples:
            group = groups.get(sample.group_index)
            if group is None:
                group = groups[sample.group_index] = len(groups)
                by_rollout_id.append({})
                by_index.append({})
            identity = sample.rollout_id
            if identity is not None:
                number = by_rollout_id[group].get(identity)
                if number is None:
                    number = by_rollout_id[group][identity] = len(rollout_group)
                    rollout_group.append(group)
            elif sample.index is not None:
                number = by_index[group].get(sample.index)
                if number is None:
                    number = by_index[group][sample.index] = len(rollout_group)
                    rollout_group.append(group)
            else:  # its place in the log is its own: a rollout of one sample
                number = len(rollout_group)
                rollout_group.append(group)
            take(number)
        self.rollout.extend(numbers)

    def _take_rewards(self, samples: Sequence[SampleFields]) -> None:
        rewards = [sample.reward for sample in samples]
        try:
            if math.isfinite(sum(rewards)):  # type: ignore[arg-type]
                self.reward.extend(rewards)  # type: ignore[arg-type]
                return
        except TypeError:  # a None or an object among them
            pass
        key = self._reward_key
        self.reward.extend(
            reward_number((reward.get(key) if key is not None else None) if isinstance(reward, dict) else reward)
            for reward in rewards
        )

    def _take_raw_rewards(self, samples: Sequence[SampleFields], before: int) -> None:
        metadata = [sample.metadata for sample in samples]
        if metadata.count(None) == len(metadata):
            if self.raw_reward is not None:
                self.raw_reward.extend([ABSENT] * len(samples))
            return
        raw_rewards = [None if one is None else one.raw_reward for one in metadata]
        present = len(raw_rewards) - raw_rewards.count(None)
        if self.raw_reward is None:
            if not present:
                return
            self.raw_reward = array("d", [ABSENT]) * before
        self.num_raw_rewards += present
        self.raw_reward.extend(reward_number(raw_reward) for raw_reward in raw_rewards)

    def _take_positions(self, samples: Sequence[SampleFields], before: int) -> None:
        """Keeps positions, and finds out whether the first sample of the step is among these."""
        positions = [sample.position for sample in samples]
        if before == 0:
            self.first_has_raw_reward = _has_raw_reward(samples[0])
        if positions.count(None) == len(positions):
            if self.position is not None:
                self.position.extend([NO_POSITION] * len(samples))
            return
        if self.position is None:
            self.position = array("q", [NO_POSITION]) * before
        lowest = self._first_position
        for sample, position in zip(samples, positions, strict=True):
            if position is not None and (lowest is None or position < lowest):
                lowest = position
                self.first_has_raw_reward = _has_raw_reward(sample)
        self._first_position = lowest
        self.position.extend(
            NO_POSITION if position is None else max(min(position, NO_POSITION - 1), 1 - NO_POSITION)
            for position in positions
        )


def _has_raw_reward(sample: SampleFields) -> bool:
    return sample.metadata is not None and sample.metadata.raw_reward is not None
