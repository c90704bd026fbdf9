"""The samples of one window as columns: one number a sample and property, so that a million samples stay small.

- An optional column is made when the first sample has its property; earlier samples get the column's "absent" value.
- Rewards are kept from both places they may come from, since the step's first sample, which decides the place, may be
  the last to arrive. In a reward column NaN stands for "none" and infinity for "not finite", whatever number it was.
- Rollouts and groups are numbered in the order in which they are first seen.
- A column is extended by an array made before, never by a list: one with an odd item leaves a part of itself behind.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from stream_metrics.core.named import ABSENT, NOT_FINITE, NamedNumbers, NamedSamples, number_of
from stream_metrics.core.numbering import Numbering, RolloutKey
from stream_metrics.core.packed import finite, some_integers
from stream_metrics.core.rows import (
    ABORTED,
    ABSENT_LENGTH,
    FAILED,
    GROUP,
    HAS_INVALID_VERSION,
    HAS_MIXED_VERSIONS,
    HAS_RAW_REWARD,
    HAS_VERSIONS,
    LENGTH,
    MARKS,
    NO_POSITION,
    PLAIN,
    POSITION,
    RAW_REWARD,
    REWARD,
    ROLLOUT,
    STATUS,
    TRUNCATED,
    VERSION,
    Rows,
    effective_lengths_of,
    ids_of,
    is_plain,
    lengths_of,
    note_if_new,
    rows_of,
    statuses_of,
)
from stream_metrics.core.settings import FoldSettings
from stream_metrics.core.versions import NO_VERSION, VersionLists, read_versions
from stream_metrics.events import Identifier, SampleFields

__all__ = [
    "ABORTED",
    "ABSENT",
    "ABSENT_LENGTH",
    "FAILED",
    "NOT_FINITE",
    "NO_POSITION",
    "NO_VERSION",
    "TRUNCATED",
    "Columns",
    "RolloutKey",
    "number_of",
]

_ROW: Final = 64
"""From so many samples on what a row costs beside its samples is little."""

_WAITING_BYTES: Final = 512 * PLAIN * 8
"""Rows wait for so many of them, if they are plain: they take about twice the memory that they take in columns."""


class Columns:
    """The samples of one window.

    Attributes:
        rollout: Per sample, the number of its rollout.
        reward: Per sample, `reward` or its component `reward_key`.
        raw_reward: Per sample, `metadata.raw_reward`; None while no sample has one.
        position: Per sample, its place in its producer's list, cut to 64 bits, `NO_POSITION` where it has none; None
            while none has, and where the rule `rollout_reward` doesn't ask for it.
        length: Per sample, `effective_response_length` or else `response_length` as sent, `ABSENT_LENGTH` for none;
            None while no sample has one.
        status: Per sample, a code: 0 for none, `TRUNCATED`, `ABORTED`, `FAILED`, or another; None while none has one.
        oldest_version: Per sample, the lowest number from 0 to 2^53 - 1 among its weight versions, or its only number,
            whatever it is; `NO_VERSION` for none; None while no sample has any version.
        values: The numbers that samples carry by name; None while none does.
        components: The numbers in reward objects by name; None while there is none.
        sources: The samples by `data_source`; None while none has one.
        num_raw_rewards: Samples that carry `metadata.raw_reward`, whatever it holds.
        num_mixed_versions: Samples with more than one distinct weight version.
        num_invalid_versions: Samples with such a number that isn't in `oldest_version`.
        first_has_raw_reward: Whether the step's first sample carries it.
    """

    __slots__ = (
        "_first_position",
        "_is_keeping_positions",
        "_max_names",
        "_numbering",
        "_reward_key",
        "_row_cells",
        "_rows",
        "_sample_ids",
        "_waiting",
        "components",
        "first_has_raw_reward",
        "length",
        "num_invalid_versions",
        "num_mixed_versions",
        "num_raw_rewards",
        "oldest_version",
        "position",
        "raw_reward",
        "reward",
        "rollout",
        "sources",
        "status",
        "values",
    )

    def __init__(self, settings: FoldSettings) -> None:
        self._reward_key = settings.reward_key
        self._max_names = settings.max_names
        self._is_keeping_positions = settings.rollout_reward in ("first", "last")
        self.rollout = array("i")
        self.reward = array("d")
        self.raw_reward: array[float] | None = None
        self.position: array[int] | None = None
        self.length: array[int] | None = None
        self.status: bytearray | None = None
        self.oldest_version: array[int] | None = None
        self.values: NamedNumbers | None = None
        self.components: NamedNumbers | None = None
        self.sources: NamedSamples | None = None
        self.num_raw_rewards = 0
        self.num_mixed_versions = 0
        self.num_invalid_versions = 0
        self.first_has_raw_reward = False
        self._first_position: int | None = None
        self._numbering = Numbering()
        self._sample_ids: set[Identifier] | None = None
        self._waiting: list[SampleFields] = []
        self._rows = bytearray()
        self._row_cells = PLAIN

    def __len__(self) -> int:
        return len(self.rollout) + len(self._waiting) + len(self._rows) // (self._row_cells * 8)

    @property
    def rollout_group(self) -> array[int]:
        """Per rollout, the number of its group."""
        return self._numbering.rollout_group

    @property
    def groups(self) -> dict[Identifier | None, int]:
        """From `group_index` to the group's number. Cost: O(groups)."""
        return self._numbering.groups

    @property
    def sample_ids(self) -> set[Identifier]:
        """What tells duplicates: who takes a sample elsewhere puts its id in."""
        if self._sample_ids is None:
            self._sample_ids = set()
        return self._sample_ids

    def has_new(self, samples: Sequence[SampleFields]) -> bool:
        """Returns whether `extend` would take at least one of the samples."""
        seen = self._sample_ids or ()
        return any(sample.sample_id is None or sample.sample_id not in seen for sample in samples)

    def add(self, samples: Sequence[SampleFields]) -> int:
        """Takes samples as `extend` does, but lets few wait for more, or for `settle`: they aren't in the columns yet.

        Cost: 0.25 µs a sample, however few come at a time; waiting ones take about 300 bytes each.
        """
        if len(samples) >= _ROW:
            return self.extend(samples)
        if self._rows:
            self.settle()
        samples = self._without_duplicates(samples)
        self._waiting += samples
        if len(self._waiting) >= _ROW:
            self.settle()
        return len(samples)

    def settle(self) -> None:
        """Takes the samples that wait."""
        if self._waiting:
            waiting, self._waiting = self._waiting, []
            self._take_row(waiting, is_plain=is_plain(waiting))
        elif self._rows:
            rows, self._rows = self._rows, bytearray()
            self._take_rows(np.frombuffer(rows, dtype=np.int64).reshape(-1, self._row_cells))

    def add_rows(self, rows: memoryview, cells: int) -> None:
        """Takes samples as rows, as `add` takes any.

        Args:
            rows: The bytes of their `Rows`; their ids are among `sample_ids`.
            cells: The numbers of a row.
        """
        if self._waiting:
            self._wait_as_rows(cells)
        if self._row_cells != cells:
            self.settle()
            self._row_cells = cells
        self._rows += rows
        if len(self._rows) >= _WAITING_BYTES:
            self.settle()

    def _wait_as_rows(self, cells: int) -> None:
        """Lets the samples that wait do so as rows, if they are of that kind; else takes them."""
        rows = rows_of(self._waiting)
        if rows is None or rows.shape[1] != cells:
            self.settle()
        else:
            self._waiting = []
            self._row_cells = cells
            self._rows += rows.tobytes()

    def extend(self, samples: Sequence[SampleFields]) -> int:
        """Takes samples in log order, duplicates by `sample_id` left out, and returns how many it took.

        What it holds afterwards doesn't depend on how the samples are cut into calls.

        Cost: about 0.25 µs a sample in a long row of plain ones, 8 µs for one alone.
        """
        if self._rows:
            self.settle()
        are_plain = is_plain(samples)
        samples = self._without_duplicates(samples)
        waiting = self._waiting
        if waiting:  # often the first sample of all: alone it wouldn't be worth a table
            self._waiting = []
            self._take_row([*waiting, *samples], is_plain=are_plain and is_plain(waiting))
        elif samples:
            self._take_row(samples, is_plain=are_plain)
        return len(samples)

    def rollout_keys(self) -> list[RolloutKey]:
        """Returns the key of each rollout; those of one sample that has no identity but its place have None for it.

        Cost: O(rollouts). For people who look into a window; nothing that is computed needs it.
        """
        return self._numbering.keys()

    def _take_row(self, samples: Sequence[SampleFields], *, is_plain: bool) -> None:
        """Takes samples of which none is a duplicate."""
        before = len(self.rollout)
        if is_plain:
            self._pad(len(samples), before)
            self._take_lengths([sample.response_length for sample in samples], before)
        else:
            self._take_raw_rewards(samples, before)
            self._take_positions(samples, before)
            self._take_lengths(effective_lengths_of(samples), before)
            self._take_versions([sample.weight_versions for sample in samples], before)
            self._take_sources([sample.data_source for sample in samples], before)
            self._take_values([sample.values for sample in samples], before)
        self._take_rewards(samples, before)
        self._take_statuses(samples, before)
        self.rollout.extend(self._numbering.take(samples))

    def _take_rows(self, rows: Rows) -> None:
        """Takes samples of which none is a duplicate, as rows."""
        before = len(self.rollout)
        if rows.shape[1] == PLAIN:
            self._pad(len(rows), before)
        else:
            self._take_beside(rows, before)
        self.rollout.extend(self._numbering.take_integers(rows[:, GROUP].copy(), rows[:, ROLLOUT].copy()))
        self.reward.frombytes(rows[:, REWARD].tobytes())
        lengths = rows[:, LENGTH]
        if self.length is None and (lengths != ABSENT_LENGTH).any():
            self.length = array("q", [ABSENT_LENGTH]) * before
        if self.length is not None:
            self.length.frombytes(lengths.tobytes())
        statuses = rows[:, STATUS].astype(np.uint8)
        if self.status is None and statuses.any():
            self.status = bytearray(before)
        if self.status is not None:
            self.status += statuses.tobytes()

    def _take_beside(self, rows: Rows, before: int) -> None:
        """Takes what rows have beside a plain sample's numbers."""
        marks = rows[:, MARKS]
        have_raw_rewards = marks & HAS_RAW_REWARD
        if before == 0:
            self.first_has_raw_reward = bool(have_raw_rewards[0])
        num_raw_rewards = int(np.count_nonzero(have_raw_rewards))
        if self.raw_reward is None and num_raw_rewards:
            self.raw_reward = array("d", [ABSENT]) * before
        if self.raw_reward is not None:
            self.num_raw_rewards += num_raw_rewards
            self.raw_reward.frombytes(rows[:, RAW_REWARD].tobytes())
        positions = rows[:, POSITION]
        place = int(positions.argmin())
        lowest = int(positions[place])
        if lowest != NO_POSITION:
            self._see_position(lowest, bool(have_raw_rewards[place]))
        if self._is_keeping_positions and (self.position is not None or lowest != NO_POSITION):
            if self.position is None:
                self.position = array("q", [NO_POSITION]) * before
            self.position.frombytes(positions.tobytes())
        if self.oldest_version is None and (marks & HAS_VERSIONS).any():
            self.oldest_version = array("q", [NO_VERSION]) * before
        if self.oldest_version is not None:
            self.oldest_version.frombytes(rows[:, VERSION].tobytes())
            self.num_mixed_versions += int(np.count_nonzero(marks & HAS_MIXED_VERSIONS))
            self.num_invalid_versions += int(np.count_nonzero(marks & HAS_INVALID_VERSION))
        if self.sources is not None:
            self.sources.extend([None] * len(rows))

    def _see_position(self, lowest: int, has_raw_reward: bool) -> None:
        """Notes the lowest position of some samples, and whether the first that has it carries a raw reward."""
        if self._first_position is None or lowest < self._first_position:
            self._first_position = lowest
            self.first_has_raw_reward = has_raw_reward

    def _without_duplicates(self, samples: Sequence[SampleFields]) -> Sequence[SampleFields]:
        ids = ids_of(samples)
        if ids is None:
            return samples
        seen = self.sample_ids
        if note_if_new(ids, seen):
            return samples
        new = []
        for sample, sample_id in zip(samples, ids, strict=True):
            if sample_id is not None:
                if sample_id in seen:
                    continue
                seen.add(sample_id)
            new.append(sample)
        return new

    def _pad(self, count: int, before: int) -> None:
        """Adds samples without optional properties to the columns that there are."""
        if before == 0:
            self.first_has_raw_reward = False
        if self.raw_reward is not None:
            self.raw_reward.extend(array("d", [ABSENT]) * count)
        if self.position is not None:
            self.position.extend(array("q", [NO_POSITION]) * count)
        if self.oldest_version is not None:
            self.oldest_version.extend(array("q", [NO_VERSION]) * count)
        if self.sources is not None:
            self.sources.extend([None] * count)

    def _take_rewards(self, samples: Sequence[SampleFields], before: int) -> None:
        rewards = [sample.reward for sample in samples]
        made = finite(rewards)
        if made is not None:
            self.reward.extend(made)
            return
        objects = [reward if isinstance(reward, dict) else None for reward in rewards]
        if _all_none(objects):
            self.reward.extend(array("d", map(number_of, rewards)))
            return
        key = self._reward_key
        chosen = [
            reward if one is None else (one.get(key) if key is not None else None)
            for reward, one in zip(rewards, objects, strict=True)
        ]
        self.reward.extend(array("d", map(number_of, chosen)))
        if self.components is None:
            self.components = NamedNumbers(self._max_names)
        self.components.take_numbers(objects, before)

    def _take_raw_rewards(self, samples: Sequence[SampleFields], before: int) -> None:
        if before == 0:
            self.first_has_raw_reward = _has_raw_reward(samples[0])
        metadata = [sample.metadata for sample in samples]
        raw_rewards = [None if one is None else one.raw_reward for one in metadata]
        made = finite(raw_rewards)
        absent = raw_rewards.count(None) if made is None else 0
        if self.raw_reward is None:
            if absent == len(raw_rewards):
                return
            self.raw_reward = array("d", [ABSENT]) * before
        self.num_raw_rewards += len(raw_rewards) - absent
        self.raw_reward.extend(array("d", map(number_of, raw_rewards)) if made is None else made)

    def _take_positions(self, samples: Sequence[SampleFields], before: int) -> None:
        """Finds out whether the first sample of the step is among these, and keeps positions where they are needed."""
        positions = [sample.position for sample in samples]
        if not _all_none(positions):
            try:
                lowest: int = min(positions)  # type: ignore[type-var, assignment]
            except TypeError:
                lowest = min(position for position in positions if position is not None)
            self._see_position(lowest, _has_raw_reward(samples[positions.index(lowest)]))
        elif self.position is None:
            return
        if not self._is_keeping_positions:
            return
        if self.position is None:
            self.position = array("q", [NO_POSITION]) * before
        made = some_integers(positions)
        if made is None or NO_POSITION in made:
            made = array("q", [NO_POSITION if position is None else _cut(position) for position in positions])
        self.position.extend(made)

    def _take_lengths(self, lengths: list[int | None], before: int) -> None:
        if self.length is None:
            if _all_none(lengths):
                return
            self.length = array("q", [ABSENT_LENGTH]) * before
        self.length.extend(lengths_of(lengths))

    def _take_statuses(self, samples: Sequence[SampleFields], before: int) -> None:
        if self.status is None:
            if _all_none([sample.status for sample in samples]):
                return
            self.status = bytearray(before)
        self.status.extend(statuses_of(samples))

    def _take_versions(self, given: VersionLists, before: int) -> None:
        if self.oldest_version is None:
            if not any(given):
                return
            self.oldest_version = array("q", [NO_VERSION]) * before
        versions = read_versions(given)
        self.num_mixed_versions += len(versions.mixed)
        self.num_invalid_versions += len(versions.invalid)
        self.oldest_version.extend(versions.oldest)

    def _take_sources(self, sources: list[str | None], before: int) -> None:
        if self.sources is None:
            if _all_none(sources):
                return
            self.sources = NamedSamples(self._max_names, before)
        self.sources.extend(sources)

    def _take_values(self, values: list[dict[str, Any] | None], before: int) -> None:
        if not _all_none(values):
            if self.values is None:
                self.values = NamedNumbers(self._max_names)
            self.values.take_numbers(values, before)


def _all_none(items: Sequence[object]) -> bool:
    # None is found by identity, which is quick; comparing it with all of a list that has none is not.
    return items[0] is None and items.count(None) == len(items)


def _cut(position: int) -> int:
    return max(min(position, NO_POSITION - 1), -(2**63))


def _has_raw_reward(sample: SampleFields) -> bool:
    return sample.metadata is not None and sample.metadata.raw_reward is not None
