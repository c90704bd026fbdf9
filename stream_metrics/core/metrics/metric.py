"""What the catalogue knows of a metric."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from stream_metrics.core.view import StepView

Number = int | float
Value = Number | Mapping[str, Number] | None


class Metric(NamedTuple):
    """One row of the catalogue.

    Attributes:
        key: The published name without its scope. What stands in `<...>` varies.
        function: Returns the number, or a number by published name where the key varies; None where the events don't
            hold what it needs. Its docstring is its documentation: what it is, then `Formula`, `Unit`, `Cost` and
            `Source`, and `Appears` where that isn't always.
        is_of_samples: Whether the window's samples are all it depends on.
    """

    key: str
    function: Callable[[StepView], Value]
    is_of_samples: bool = True

    @property
    def is_named_by_producers(self) -> bool:
        """Whether the whole name is a producer's, so that it may be one that the catalogue has already."""
        return self.key.endswith("<name>")
