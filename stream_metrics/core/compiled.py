"""Samples read by the compiled part: from records straight to rows, with no object for each. Optional.

It reads what most records are and leaves all others to the decoder, so that its results are the same, and whatever is
wrong with a record is said by the decoder alone. Its source is in `native/`; a wheel has it, and where it was built
without a Rust compiler, nothing is missing but the speed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from stream_metrics.core.rows import Rows
from stream_metrics.events import Identifier

if TYPE_CHECKING:
    from stream_metrics.core import _native as native
else:
    try:
        from stream_metrics.core import _native as native
    except ImportError:  # built without it, or for another system
        native = None

IS_THERE: Final = native is not None

FindLane = Callable[[str | None, str | None, int, int], int | None]
"""From run, scope, attempt and step to the number of the window's lane, None where that isn't there and open."""


class Stretch(NamedTuple):
    """Samples of records that lie side by side.

    Attributes:
        num_values: The records.
        num_batches: Those of them that have a list of samples.
        rows: The samples, in log order.
        lanes: (samples,) the lane of each.
        ids: The `sample_id` of each, or None where none has one.
        last: Each lane that has a sample, with the place of its last record among the values.
    """

    num_values: int
    num_batches: int
    rows: Rows
    lanes: npt.NDArray[np.int32]
    ids: list[Identifier | None] | None
    last: list[tuple[int, int]]


class Reader:
    """Reads, and remembers the lane that each name of a window stands for. Only where `IS_THERE`."""

    def __init__(self) -> None:
        self._native = native.Reader()

    def forget(self) -> None:
        """Knows no lane any more."""
        self._native.forget()

    def read(self, values: list[bytes | None], begin: int, find: FindLane) -> Stretch:
        """Reads values from a place on, up to the first that it leaves to the decoder, or that has no lane.

        Cost: 0.15 to 0.25 µs a sample.
        """
        num_values, num_batches, rows, cells, lanes, ids, last = self._native.read(values, begin, find)
        return Stretch(
            num_values,
            num_batches,
            np.frombuffer(rows, dtype=np.int64).reshape(-1, cells),
            np.frombuffer(lanes, dtype=np.int32),
            ids,
            last,
        )
