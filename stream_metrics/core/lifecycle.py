"""A window's life as one table: open, closing, closed, forgotten.

`TRANSITIONS` says which state follows on what happens to a window. What isn't in the table changes no state.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final


class State(IntEnum):
    OPEN = 0
    CLOSING = 1
    CLOSED = 2
    FORGOTTEN = 3


class Happening(IntEnum):
    MARKER = 0
    """A close marker of a producer not heard before."""
    COMPLETE = 1
    """All producers have closed and all expected samples are in."""
    GIVEN_UP = 2
    """The sidecar's own marker, a newer attempt or eviction ends the wait."""
    FORGET = 3
    """Newer steps, the log's growth, a newer attempt or eviction make room."""


TRANSITIONS: Final[dict[tuple[State, Happening], State]] = {
    (State.OPEN, Happening.MARKER): State.CLOSING,
    (State.CLOSING, Happening.COMPLETE): State.CLOSED,
    (State.OPEN, Happening.GIVEN_UP): State.CLOSED,
    (State.CLOSING, Happening.GIVEN_UP): State.CLOSED,
    (State.CLOSED, Happening.FORGET): State.FORGOTTEN,
}


def after(state: State, happening: Happening) -> State:
    """Returns the state that follows; the same one where the table has no row."""
    return TRANSITIONS.get((state, happening), state)
