"""Waiting on a condition with a deadline; tests never wait on a clock alone."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

DEADLINE_SECONDS = 60.0
"""Only what never comes waits for so long. Long, for machines where everything runs at once."""

_PAUSE_SECONDS = 0.02


def wait_until(condition: Callable[[], T], what: str, deadline_seconds: float = DEADLINE_SECONDS) -> T:
    """Returns the first true value that `condition` gives.

    Raises:
        AssertionError: There was none in time; the message names `what` and the last value.
    """
    deadline = time.monotonic() + deadline_seconds
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() >= deadline:
            raise AssertionError(f"not within {deadline_seconds:g} s: {what} (last: {value!r})")
        time.sleep(_PAUSE_SECONDS)
