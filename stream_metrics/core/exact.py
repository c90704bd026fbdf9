"""Sums, means and spreads that no order of samples can change.

Sums are correctly rounded, as `math.fsum`'s are: numbers are split into whole multiples of two or more powers of two,
which numpy adds without error, and the few that can't be split so go to `math.fsum` itself.
A mean of equal numbers is that number, which a rounded sum over a count alone doesn't give: 0.1, 0.1, 0.1.
"""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

_DOUBLE_BITS: Final = 53
_SAFE_EXPONENT: Final = 1000
_SAFE_DISTANCE: Final = 1e-140
_SCALE: Final = 2.0**64
_MAX_PARTS: Final = 4


def exact_mean(values: npt.NDArray[Any]) -> float:
    """Returns the mean of finite numbers, 0.0 for none; never infinite. Cost: about 10 ns a number."""
    if not len(values):
        return 0.0
    lowest, highest = float(values.min()), float(values.max())
    if lowest == highest:
        return lowest + 0.0
    total = _total(values, max(-lowest, highest))
    mean = total / len(values) if math.isfinite(total) else _mean(values.tolist())
    return min(max(mean, lowest), highest) + 0.0  # no negative zero


def exact_std(values: Floats) -> float:
    """Returns the population standard deviation of finite numbers, of which there is at least one; never infinite.

    Distances are scaled by a power of two before they are squared, so that none is lost or past a double.

    Cost: about 20 ns a number.
    """
    distances = np.abs(values / 4 - exact_mean(values) / 4)
    exponent = int(np.frexp(distances.max())[1])
    squares = np.ldexp(distances, -exponent) ** 2
    return math.ldexp(math.sqrt(_total(squares, 1.0) / len(values)), exponent + 2)


def exact_sums(values: Floats, labels: Ints, num_labels: int) -> Floats:
    """Returns the sum of finite numbers under each label, 0.0 for none, infinite where it is past a double.

    Shapes: (n,), (n,) -> (num_labels,). Cost: about 15 ns a number; 300 ns a label that needs `math.fsum`.
    """
    return _sums(values, labels, num_labels, np.bincount(labels, minlength=num_labels))[0]


def exact_means(
    values: Floats,
    labels: Ints,
    num_labels: int,
    equal: tuple[Floats, Bools] | None = None,
    counts: Ints | None = None,
) -> Floats:
    """Returns the mean of finite numbers under each label, NaN for none; never infinite.

    Shapes: (n,), (n,) -> (num_labels,). Cost: as `exact_sums`.

    Args:
        values: The numbers.
        labels: Their labels.
        num_labels: How many labels there are.
        equal: What `equal_values` gives for these, where it is known already.
        counts: How many numbers each label has, where that is known already.
    """
    if counts is None:
        counts = np.bincount(labels, minlength=num_labels)
    sums, is_unrounded = _sums(values, labels, num_labels, counts)
    with np.errstate(invalid="ignore"):
        means: Floats = sums / counts
    if is_unrounded:
        return means
    past = np.flatnonzero(np.isinf(means)).tolist()
    if past:
        by_label = _Sorted(values, labels, num_labels)
        for label in past:
            means[label] = _mean(by_label.of(label))
    some, is_equal = equal or equal_values(values, labels, num_labels)
    means[is_equal] = some[is_equal]
    return means + 0.0


def exact_stds(values: Floats, labels: Ints, num_labels: int, means: Floats | None = None) -> Floats:
    """Returns the population standard deviation under each label, as `exact_std`, NaN for none.

    Shapes: (n,), (n,) -> (num_labels,). Cost: about two `exact_sums`, or one where `exact_means` is known already.
    """
    counts = np.bincount(labels, minlength=num_labels)
    if means is None:
        means = exact_means(values, labels, num_labels, counts=counts)
    distances = np.abs(values / 4 - means[labels] / 4)
    exponents: Ints | int = 2
    least, most = distances.min(initial=1.0, where=distances > 0), distances.max(initial=1.0)
    if least < _SAFE_DISTANCE or most > 1 / _SAFE_DISTANCE:
        largest = np.zeros(num_labels)
        np.maximum.at(largest, labels, distances)
        by_label = np.frexp(largest)[1]
        distances = np.ldexp(distances, -by_label[labels])
        exponents = by_label + 2
    squares, _ = _sums(distances**2, labels, num_labels, counts)
    with np.errstate(invalid="ignore"):
        made: Floats = np.ldexp(np.sqrt(squares / counts), exponents)
    return made


def equal_values(values: Floats, labels: Ints, num_labels: int) -> tuple[Floats, Bools]:
    """Returns one of the numbers under each label, NaN for none, and whether all of them are equal.

    Shapes: (n,), (n,) -> (num_labels,), (num_labels,); false where there are none.
    """
    some = np.full(num_labels, np.nan)
    some[labels] = values
    # Where many differ, counting is quicker than picking them out.
    is_equal = np.bincount(labels, weights=values != some[labels], minlength=num_labels) == 0
    is_equal &= ~np.isnan(some)
    return some, is_equal


def exact_int_sum(values: Ints) -> int:
    """Returns the sum of integers, which numpy's 64 bits may not hold."""
    if not len(values):
        return 0
    if max(int(values.max()), -int(values.min())) * len(values) < 2**63:
        return int(values.sum())
    return sum(values.tolist())


def _sums(values: Floats, labels: Ints, num_labels: int, counts: Ints) -> tuple[Floats, bool]:
    """Returns the sums, and whether not even the last digit of any is rounded."""
    if not len(values):
        return np.zeros(num_labels), True
    bits = _DOUBLE_BITS - 1 - int(counts.max()).bit_length()  # whole numbers of so many can all be added
    exponent = math.frexp(max(-float(values.min()), float(values.max())))[1]
    if not -_SAFE_EXPONENT < exponent - 2 * bits < exponent < _SAFE_EXPONENT:
        return _Sorted(values, labels, num_labels).sums() + 0.0, False
    step = 2.0 ** (exponent - bits)
    coarse = _rounded(values, step)
    rest = coarse * step
    np.subtract(values, rest, out=rest)
    sums = np.bincount(labels, weights=coarse, minlength=num_labels).astype(np.float64, copy=False) * step
    if not rest.any():
        return sums + 0.0, True
    fine_step = 2.0 ** (exponent - 2 * bits)
    fine = _rounded(rest, fine_step)
    sums += np.bincount(labels, weights=fine, minlength=num_labels) * fine_step
    rest -= fine * fine_step
    if rest.any():
        is_hard = np.zeros(num_labels, dtype=np.bool_)
        is_hard[labels[rest != 0]] = True
        hard = is_hard[labels]
        sums[is_hard] = _Sorted(values[hard], labels[hard], num_labels).sums()[is_hard]
    return sums + 0.0, False


def _total(values: npt.NDArray[Any], largest: float) -> float:
    """Returns the sum of numbers, none of them above `largest` in size; infinite where it is past a double."""
    bits = _DOUBLE_BITS - 1 - len(values).bit_length()
    exponent = math.frexp(largest)[1]
    parts = []
    rest = values
    for _ in range(_MAX_PARTS):
        exponent -= bits
        if not -_SAFE_EXPONENT < exponent < _SAFE_EXPONENT - _DOUBLE_BITS:
            break
        step = 2.0**exponent
        whole = _rounded(rest, step)
        parts.append(float(whole.sum()) * step)
        whole *= step
        rest = np.subtract(rest, whole, out=whole)
        if not rest.any():
            return math.fsum(parts)
    return _sum(values.tolist())


def _rounded(values: npt.NDArray[Any], step: float) -> Floats:
    """Returns how many steps, a power of two, each number is nearest to."""
    made = values * (1 / step)
    return np.rint(made, out=made)


class _Sorted:
    """Numbers in the order of their labels."""

    def __init__(self, values: Floats, labels: Ints, num_labels: int) -> None:
        self.ordered = values[np.argsort(labels, kind="stable")]
        self.counts = np.bincount(labels, minlength=num_labels)
        self.ends = np.cumsum(self.counts)
        self.starts = self.ends - self.counts

    def of(self, label: int) -> list[float]:
        values: list[float] = self.ordered[self.starts[label] : self.ends[label]].tolist()
        return values

    def sums(self) -> Floats:
        """One number needs no summing, and a double sum of two is correctly rounded already."""
        made = np.zeros(len(self.counts))
        one, two = self.counts == 1, self.counts == 2
        made[one] = self.ordered[self.starts[one]]
        with np.errstate(over="ignore"):
            made[two] = self.ordered[self.starts[two]] + self.ordered[self.starts[two] + 1]
        many = np.flatnonzero(self.counts > 2)
        listed = self.ordered.tolist() if len(many) else []
        made[many] = [
            _sum(listed[start:end])
            for start, end in zip(self.starts[many].tolist(), self.ends[many].tolist(), strict=True)
        ]
        return made


def _sum(values: list[float]) -> float:
    try:
        return math.fsum(values)
    except OverflowError:  # the sum is past a double, or only a part of it was
        return math.fsum([value / _SCALE for value in values]) * _SCALE


def _mean(values: list[float]) -> float:
    try:
        return math.fsum(values) / len(values)
    except OverflowError:
        mean = math.fsum([value / _SCALE for value in values]) / len(values)
        return min(mean, max(values) / _SCALE) * _SCALE if mean > 0 else max(mean, min(values) / _SCALE) * _SCALE
