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

MAX_NAME_LENGTH: Final = 128
OTHER: Final = "other"

ABSENT: Final = math.nan
NOT_FINITE: Final = math.inf

_CUT_NAME_LENGTH: Final = 100


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


class Observations:
    """What samples said under one name.

    Attributes:
        sample: Per observation, the number of its sample.
        value: Per observation, its number; empty where only the name matters.
    """

    __slots__ = ("sample", "value")

    def __init__(self) -> None:
        self.sample = array("i")
        self.value = array("d")

    def __len__(self) -> int:
        return len(self.sample)

    def take(self, another: Observations) -> None:
        self.sample.extend(another.sample)
        self.value.extend(another.value)


class Named:
    """Observations by name.

    Attributes:
        kept: From a name as sent to what was observed under it.
        other: What was observed under all names that found no place, and under `other` itself.
        invalid: Values that were no number, null excepted.
        nonfinite: Values that were a number, but none that a double holds.
    """

    __slots__ = ("_named_other", "_order", "invalid", "kept", "max_names", "nonfinite", "other")

    def __init__(self, max_names: int) -> None:
        self.max_names = max_names
        self.kept: dict[str, Observations] = {}
        self.other = Observations()
        self.invalid = 0
        self.nonfinite = 0
        self._named_other = 0
        self._order: list[tuple[str, str]] = []

    @property
    def folded(self) -> int:
        """Observations whose name found no place."""
        return len(self.other) - self._named_other

    def items(self) -> Iterator[tuple[str, Observations]]:
        """Yields public names, sorted, with what was observed; `other` last."""
        for public, name in self._order:
            yield public, self.kept[name]
        if len(self.other):
            yield OTHER, self.other

    def take_names(self, names: Sequence[str | None], first_sample: int) -> None:
        """Takes one name a sample, None for none."""
        first = names[0]
        if first in self.kept and names.count(first) == len(names):
            self.kept[first].sample.extend(range(first_sample, first_sample + len(names)))
            return
        for sample, name in enumerate(names, first_sample):
            if name is not None:
                self._place(name).sample.append(sample)

    def take_numbers(self, numbers: Sequence[Mapping[str, Any] | None], first_sample: int) -> None:
        """Takes numbers by name for each sample, None for none."""
        if self._take_uniform(numbers, first_sample):
            return
        for sample, by_name in enumerate(numbers, first_sample):
            for name, value in (by_name or {}).items():
                number = number_of(value)
                if math.isfinite(number):
                    place = self._place(name)
                    place.sample.append(sample)
                    place.value.append(number)
                elif number == NOT_FINITE:
                    self.nonfinite += 1
                elif value is not None:
                    self.invalid += 1

    def _take_uniform(self, numbers: Sequence[Mapping[str, Any] | None], first_sample: int) -> bool:
        """Takes numbers by columns where all samples have the same names, placed before, and only finite numbers."""
        first = numbers[0]
        if not first or not first.keys() <= self.kept.keys():
            return False
        made = []
        try:
            if sum(map(len, numbers)) != len(numbers) * len(first):  # type: ignore[arg-type]
                return False
            for name in first:
                values = [by_name[name] for by_name in numbers]  # type: ignore[index]
                column = array("d", values)
                if not math.isfinite(sum(column)):
                    return False
                made.append((name, column))
        except (TypeError, KeyError, OverflowError):
            return False
        samples = array("i", range(first_sample, first_sample + len(numbers)))
        for name, column in made:
            place = self.kept[name]
            place.sample.extend(samples)
            place.value.extend(column)
        return True

    def _place(self, name: str) -> Observations:
        place = self.kept.get(name)
        if place is not None:
            return place
        if name == OTHER:
            self._named_other += 1
            return self.other
        entry = (public_name(name), name)
        if len(self._order) >= self.max_names:
            if bisect_left(self._order, entry) == len(self._order):
                return self.other
            _, evicted = self._order.pop()
            self.other.take(self.kept.pop(evicted))
        insort(self._order, entry)
        place = self.kept[name] = Observations()
        return place
