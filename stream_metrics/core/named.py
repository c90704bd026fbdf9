"""Numbers under names that producers choose: bounded in how many there are, how long they are, and what is kept.

- Kept are the `max_names` names that sort first; all others are one name, `other`. Which these are doesn't depend on
  the order of samples, and a name once folded never comes back, so that nothing is kept of it but its numbers.
- A name of at most 128 printable characters is published as it is, slashes, spaces and all. Of any other the first 100
  characters are, `_` for each one not printable, and 16 hex digits that tell it from its like.
- A name takes a place with its first number; whatever isn't a finite number is counted and left out.
"""

from __future__ import annotations

import hashlib
import math
from array import array
from bisect import bisect_left, insort
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np

from stream_metrics.core.exact import Bools, Ints
from stream_metrics.core.packed import NOT_PACKED, doubles, integers

MAX_NAME_LENGTH: Final = 128
OTHER: Final = "other"

ABSENT: Final = math.nan
NOT_FINITE: Final = math.inf

_CUT_NAME_LENGTH: Final = 100

_NO_NAME: Final = -1
_OTHER_CODE: Final = 0
_FOLDED_CODE: Final = 1


def number_of(value: Any) -> float:
    """Returns a decoded value as a float: true as 1.0, `ABSENT` for no number, `NOT_FINITE` for a bad one."""
    if isinstance(value, (float, int)):
        try:
            number = float(value)
        except OverflowError:
            return NOT_FINITE
        return number if math.isfinite(number) else NOT_FINITE
    return ABSENT


def public_name(name: str) -> str:
    """Returns the form of a producer's name in keys: different for different names, never long or unprintable."""
    if 0 < len(name) <= MAX_NAME_LENGTH and name.isprintable():
        return name
    digest = hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
    return "".join(sign if sign.isprintable() else "_" for sign in name[:_CUT_NAME_LENGTH]) + "~" + digest


def fold_counts(counts: Mapping[str, int], max_names: int) -> tuple[dict[str, int], int]:
    """Returns the counts by public name, past the first `max_names` under `other`, and how many names went there."""
    names = sorted((public_name(name), name) for name in counts if name != OTHER)
    made = {public: counts[name] for public, name in names[:max_names]}
    rest = names[max_names:]
    if rest or OTHER in counts:
        made[OTHER] = counts.get(OTHER, 0) + sum(counts[name] for _, name in rest)
    return made, len(rest)


class Places:
    """The names that sort first, as many as there are places for."""

    __slots__ = ("_order", "max_names")

    def __init__(self, max_names: int) -> None:
        self.max_names = max_names
        self._order: list[tuple[str, str]] = []

    def __iter__(self) -> Iterator[tuple[str, str]]:
        """Yields the names that have a place, sorted: as published and as sent."""
        return iter(self._order)

    def ask(self, name: str) -> tuple[bool, str | None]:
        """Returns whether a name that has no place gets one, and which name loses its own by that."""
        entry = (public_name(name), name)
        evicted = None
        if len(self._order) >= self.max_names:
            if bisect_left(self._order, entry) == len(self._order):
                return False, None
            _, evicted = self._order.pop()
        insort(self._order, entry)
        return True, evicted


class Observations:
    """The numbers under one name.

    Attributes:
        leading: So many samples, the window's first, have one observation each, which are the first ones here.
        sample: Per observation after these, the number of its sample.
        value: Per observation, its number.
    """

    __slots__ = ("leading", "sample", "value")

    def __init__(self) -> None:
        self.leading = 0
        self.sample = array("i")
        self.value = array("d")

    def __len__(self) -> int:
        return self.leading + len(self.sample)

    def samples(self) -> array[int]:
        """Returns the number of its sample for each observation."""
        return array("i", range(self.leading)) + self.sample

    def add_row(self, first_sample: int, count: int) -> None:
        """Adds the samples of a row, one observation each."""
        if first_sample == self.leading and not self.sample:
            self.leading += count
        else:
            self.sample.extend(array("i", range(first_sample, first_sample + count)))

    def take(self, another: Observations) -> None:
        self.sample.extend(another.samples())
        self.value.extend(another.value)


class NamedNumbers:
    """Numbers that samples carry under names.

    Attributes:
        kept: From a name as sent to what was observed under it.
        other: What was observed under all names that found no place, and under `other` itself.
        invalid: Values that were no number, null excepted.
        nonfinite: Values that were a number, but none that a double holds.
    """

    __slots__ = ("_named_other", "_places", "invalid", "kept", "nonfinite", "other")

    def __init__(self, max_names: int) -> None:
        self.kept: dict[str, Observations] = {}
        self.other = Observations()
        self.invalid = 0
        self.nonfinite = 0
        self._named_other = 0
        self._places = Places(max_names)

    @property
    def folded(self) -> int:
        """Observations whose name found no place."""
        return len(self.other) - self._named_other

    def items(self) -> Iterator[tuple[str, Observations]]:
        """Yields public names, sorted, with what was observed; `other` last."""
        for public, name in self._places:
            yield public, self.kept[name]
        if len(self.other):
            yield OTHER, self.other

    def take_numbers(self, numbers: Sequence[Mapping[str, Any] | None], first_sample: int) -> None:
        """Takes numbers by name for each sample, None for none."""
        if self._take_uniform(numbers, first_sample):
            return
        find = self.kept.get
        for sample, by_name in enumerate(numbers, first_sample):
            for name, value in (by_name or {}).items():
                number = value if type(value) is float else number_of(value)
                if -math.inf < number < math.inf:
                    place = find(name)
                    if place is None:
                        place = self._place(name)
                    place.sample.append(sample)
                    place.value.append(number)
                elif number == number or type(value) is float:
                    self.nonfinite += 1
                elif value is not None:
                    self.invalid += 1

    def _take_uniform(self, numbers: Sequence[Mapping[str, Any] | None], first_sample: int) -> bool:
        """Takes numbers by columns where all samples have the same names and nothing but finite numbers."""
        first = numbers[0]
        if not first:
            return False
        made = []
        try:
            if sum(map(len, numbers)) != len(numbers) * len(first):  # type: ignore[arg-type]
                return False
            for name in first:
                values = [by_name[name] for by_name in numbers]  # type: ignore[index]
                column = doubles(values)
                if not math.isfinite(sum(values)):
                    return False
                made.append((name, column))
        except (KeyError, *NOT_PACKED):  # None or no number, another name, an integer past a double
            return False
        for name, column in made:
            place = self._place(name, len(column))
            place.add_row(first_sample, len(column))
            place.value.extend(column)
        return True

    def _place(self, name: str, count: int = 1) -> Observations:
        """Returns where to put that many observations under the name."""
        place = self.kept.get(name)
        if place is not None:
            return place
        if name == OTHER:
            self._named_other += count
            return self.other
        has_place, evicted = self._places.ask(name)
        if not has_place:
            return self.other
        if evicted is not None:
            self.other.take(self.kept.pop(evicted))
        place = self.kept[name] = Observations()
        return place


class NamedSamples:
    """Samples that carry a name each, or none.

    Attributes:
        code: Per sample, -1 for no name, 0 for `other`, 1 for a name that found no place when it came, and a number of
            its own for each name that did, whether it has kept it or not.
    """

    __slots__ = ("_codes", "_num_codes", "_places", "code")

    def __init__(self, max_names: int, before: int) -> None:
        self.code = array("i", [_NO_NAME]) * before
        self._codes: dict[str | None, int] = {None: _NO_NAME, OTHER: _OTHER_CODE}
        self._num_codes = 2
        self._places = Places(max_names)

    def extend(self, names: Sequence[str | None]) -> None:
        """Takes one name a sample."""
        find = self._codes.get
        try:
            self.code.extend(integers(list(map(find, names)), "i"))
        except NOT_PACKED:  # None stands for a name without a place
            self.code.extend(array("i", map(self._code_of, names)))

    @property
    def folded(self) -> int:
        """Samples whose name found no place."""
        code = np.array(self.code)
        return int(np.count_nonzero((code >= _FOLDED_CODE) & ~self._has_place()[code]))

    def items(self) -> Iterator[tuple[str, Ints]]:
        """Yields public names, sorted, with the numbers of their samples in log order; `other` last."""
        code = np.array(self.code)
        for public, name in self._places:
            yield public, np.flatnonzero(code == self._codes[name])
        others = np.flatnonzero((code >= _OTHER_CODE) & ~self._has_place()[code])
        if len(others):
            yield OTHER, others

    def _has_place(self) -> Bools:
        made = np.zeros(self._num_codes, dtype=np.bool_)
        made[[self._codes[name] for _, name in self._places]] = True
        return made

    def _code_of(self, name: str | None) -> int:
        code = self._codes.get(name)
        if code is not None:
            return code
        assert name is not None
        has_place, evicted = self._places.ask(name)
        if evicted is not None:
            del self._codes[evicted]
        if not has_place:
            return _FOLDED_CODE
        code = self._codes[name] = self._num_codes
        self._num_codes += 1
        return code
