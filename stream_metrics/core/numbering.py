"""The rollouts and groups of a window, numbered in the order in which they are first seen.

Dictionaries do it. Where there are many rollouts a look into them is a miss of the cache, each of which waits for the
one before; so then, and where samples come as rows of numbers, a table has their numbers, where a thousand samples are
looked up at once: while all are whole numbers close together, each in one group, as trainers count them. The first that
is anything else brings dictionaries back.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Sequence
from contextlib import suppress
from typing import Final, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from stream_metrics.core.exact import Ints
from stream_metrics.core.packed import NOT_PACKED, integers
from stream_metrics.events import Identifier, SampleFields

_NO_NUMBER: Final = -1
_MOST_PLACES_A_ROLLOUT: Final = 4
_LEAST_PLACES: Final = 1_024
_LOWEST: Final = -(2**63)

_WORTH_A_TABLE: Final = 16_384
"""Of so many rollouts on, dictionaries don't fit into a core's own cache; those of fewer are as quick as a table, where
samples come one by one. For rows of numbers a table is always quicker."""


class RolloutKey(NamedTuple):
    """What tells one rollout of a window from the others."""

    kind: Literal["rollout", "sample", "position"]
    group_index: Identifier | None
    identity: Identifier | None


class Numbering:
    """The rollouts of one window.

    Attributes:
        rollout_group: Per rollout, the number of its group.
    """

    __slots__ = ("_by_index", "_groups", "_table", "_table_from", "rollout_group")

    def __init__(self) -> None:
        self.rollout_group = array("i")
        self._table: _Table | None = None
        self._groups = _Groups(self.rollout_group)
        self._by_index: dict[int, dict[int, int]] = {}
        self._table_from = _WORTH_A_TABLE

    @property
    def groups(self) -> dict[Identifier | None, int]:
        """From `group_index` to the group's number. Cost: O(groups)."""
        if self._table is not None:
            return dict(self._table.groups.items())
        return {group_index: rollouts.group for group_index, rollouts in self._groups.items()}

    def keys(self) -> list[RolloutKey]:
        """Returns the key of each rollout; those of one sample that has no identity but its place have None for it."""
        self._use_dictionaries()
        group_indices = list(self._groups)
        made = [RolloutKey("position", group_indices[group], None) for group in self.rollout_group]
        for group_index, rollouts in self._groups.items():
            for rollout_id, number in rollouts.items():
                made[number] = RolloutKey("rollout", group_index, rollout_id)
        for group, by_index in self._by_index.items():
            for index, number in by_index.items():
                made[number] = RolloutKey("sample", group_indices[group], index)
        return made

    def take(self, samples: Sequence[SampleFields]) -> array[int]:
        """Returns the number of each sample's rollout."""
        if self._table is not None:
            with suppress(*NOT_PACKED):  # a text, or none; a number past 64 bits
                group_indices = integers([sample.group_index for sample in samples])
                rollout_ids = integers([sample.rollout_id for sample in samples])
                return self.take_integers(np.frombuffer(group_indices, np.int64), np.frombuffer(rollout_ids, np.int64))
            self._use_dictionaries()
        groups = self._groups
        try:
            made = integers([groups[sample.group_index][sample.rollout_id] for sample in samples], "i")
        except KeyError:  # one has no rollout_id
            made = array("i", map(self._number_of, samples))
        if len(self.rollout_group) >= self._table_from:
            self._use_table()
        return made

    def take_integers(self, group_indices: Ints, rollout_ids: Ints) -> array[int]:
        """Returns the number of each sample's rollout."""
        if self._table is None:
            if not self.rollout_group:
                self._table = _Table(self.rollout_group)
            elif self._table_from < sys.maxsize:
                self._use_table()
        if self._table is not None:
            numbers = self._table.take(group_indices, rollout_ids)
            if numbers is not None:
                made = array("i")
                made.frombytes(numbers.tobytes())
                return made
            self._use_dictionaries()
        groups = self._groups
        pairs = zip(group_indices.tolist(), rollout_ids.tolist(), strict=True)
        return integers([groups[group_index][rollout_id] for group_index, rollout_id in pairs], "i")

    def _use_table(self) -> None:
        """Puts all that there is into a table, if it can hold it."""
        self._table_from = sys.maxsize
        if sum(map(len, self._groups.values())) != len(self.rollout_group):
            return  # some are known by another thing than their id
        group_indices = np.zeros(len(self.rollout_group), dtype=np.int64)
        rollout_ids = np.zeros(len(self.rollout_group), dtype=np.int64)
        try:
            for group_index, rollouts in self._groups.items():
                numbers = list(rollouts.values())
                group_indices[numbers] = integers([group_index])[0]
                rollout_ids[numbers] = integers(list(rollouts))
        except NOT_PACKED:
            return
        table = _Table(array("i"))
        if table.take(group_indices, rollout_ids) is not None:
            self._table = table
            self.rollout_group = table.rollout_group
            self._groups = _Groups(self.rollout_group)

    def _use_dictionaries(self) -> None:
        if self._table is not None:
            self._groups.fill(self._table)
            self._table = None
            self._table_from = sys.maxsize

    def _number_of(self, sample: SampleFields) -> int:
        """Returns the number of a sample's rollout, a new one where it is new."""
        rollouts = self._groups[sample.group_index]
        if sample.rollout_id is not None:
            return rollouts[sample.rollout_id]
        if sample.index is None:  # its place in the log is its own: a rollout of one sample
            return rollouts.new()
        by_index = self._by_index.setdefault(rollouts.group, {})
        number = by_index.get(sample.index)
        if number is None:
            number = by_index[sample.index] = rollouts.new()
        return number


class _Table:
    """Rollouts by their `rollout_id`.

    Attributes:
        groups: From `group_index` to the group's number.
        rollout_group: Per rollout, the number of its group.
        rollout_ids: Per rollout, its id.
        group_indices: Per rollout, the index of its group.
    """

    __slots__ = ("_begin", "_numbers", "group_indices", "groups", "rollout_group", "rollout_ids")

    def __init__(self, rollout_group: array[int]) -> None:
        self.rollout_group = rollout_group
        self._numbers: npt.NDArray[np.int32] = np.zeros(0, dtype=np.int32)
        self._begin = 0  # the id that has the first place
        self.groups = _Indices()
        self.rollout_ids = array("q")
        self.group_indices = array("q")

    def take(self, group_indices: Ints, rollout_ids: Ints) -> npt.NDArray[np.int32] | None:
        """Returns the number of each rollout; None, and takes none, where they lie far apart or one has two groups."""
        lowest, highest = int(rollout_ids.min()), int(rollout_ids.max())
        if lowest < self._begin or highest >= self._begin + len(self._numbers):
            if not self._reach(lowest, highest, len(rollout_ids)):
                return None
        count, num_groups = len(self.rollout_ids), len(self.groups)
        table = self._numbers
        places = rollout_ids - self._begin
        numbers = table[places]
        new = np.flatnonzero(numbers == _NO_NUMBER)
        if len(new):
            new_places = places[new]
            table[new_places[::-1]] = new[::-1]  # of several with one id the last one stays, which is the first sent
            first_sent = table[new_places]
            if (first_sent > new).any():  # numpy promises no order
                return None
            first = new[first_sent == new]
            self._add(group_indices[first], rollout_ids[first])
            numbers = table[places]
        if (np.frombuffer(self.group_indices, dtype=np.int64)[numbers] != group_indices).any():
            for column in (self.rollout_ids, self.group_indices, self.rollout_group):
                del column[count:]
            self.groups = _Indices(list(self.groups.items())[:num_groups])
            return None
        return numbers

    def _add(self, group_indices: Ints, rollout_ids: Ints) -> None:
        """Numbers new rollouts."""
        count = len(self.rollout_ids)
        self._numbers[rollout_ids - self._begin] = np.arange(count, count + len(rollout_ids), dtype=np.int32)
        self.rollout_ids.frombytes(rollout_ids.tobytes())
        self.group_indices.frombytes(group_indices.tobytes())
        groups = self.groups
        self.rollout_group.extend(integers([groups[index] for index in group_indices.tolist()], "i"))

    def _reach(self, lowest: int, highest: int, count: int) -> bool:
        """Makes the table hold these ids too, with twice as many places, or returns that they lie too far apart."""
        held = len(self._numbers)
        if not held:
            self._begin = lowest
        begin, end = min(lowest, self._begin), max(highest + 1, self._begin + held)
        if end - begin > _LEAST_PLACES + _MOST_PLACES_A_ROLLOUT * (len(self.rollout_ids) + count):
            return False
        if begin < self._begin:
            begin = max(_LOWEST, begin - held)
        else:
            end = max(end, begin + 2 * held)
        made = np.full(end - begin, _NO_NUMBER, dtype=np.int32)
        made[self._begin - begin :][:held] = self._numbers
        self._begin, self._numbers = begin, made
        return True


class _Indices(dict[int, int]):
    """From `group_index` to the group's number; one that is new is numbered when it is asked for."""

    __slots__ = ()

    def __missing__(self, group_index: int) -> int:
        number = self[group_index] = len(self)
        return number


class _Rollouts(dict[Identifier | None, int]):
    """The rollouts of one group, from `rollout_id` to number; one that is new is numbered when it is asked for."""

    __slots__ = ("_rollout_group", "group")

    def __init__(self, group: int, rollout_group: array[int]) -> None:
        self.group = group
        self._rollout_group = rollout_group

    def __missing__(self, rollout_id: Identifier | None) -> int:
        if rollout_id is None:
            raise KeyError
        number = self[rollout_id] = len(self._rollout_group)
        self._rollout_group.append(self.group)
        return number

    def new(self) -> int:
        """Returns the number of one more rollout."""
        number = len(self._rollout_group)
        self._rollout_group.append(self.group)
        return number


class _Groups(dict[Identifier | None, _Rollouts]):
    """From `group_index` to the group's rollouts, made when they are asked for; groups are numbered in this order."""

    __slots__ = ("_rollout_group",)

    def __init__(self, rollout_group: array[int]) -> None:
        self._rollout_group = rollout_group

    def __missing__(self, group_index: Identifier | None) -> _Rollouts:
        made = self[group_index] = _Rollouts(len(self), self._rollout_group)
        return made

    def fill(self, table: _Table) -> None:
        """Takes the rollouts of a table, which are all that there are."""
        for group_index in table.groups:
            self[group_index]
        for number, (group_index, rollout_id) in enumerate(zip(table.group_indices, table.rollout_ids, strict=True)):
            self[group_index][rollout_id] = number
