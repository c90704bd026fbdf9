"""What the fold asks the shell to do, in the order in which it is to be done."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import msgspec

from stream_metrics.core.record import Record
from stream_metrics.events import DeadLetterReason, StepMetrics

NoticeKind = Literal[
    "attempt_superseded",
    "attempt_far_above",
    "step_redone",
    "marker_disagrees",
    "window_evicted",
    "floor_dropped",
]


class Publish:
    """Publish a result to the output topic.

    Its metrics are worked out when it is first asked for, which the fold does itself before it goes on: so that a
    transaction can begin meanwhile, and the result is still that of the window as it was.
    """

    __slots__ = ("_result", "_work_out")

    def __init__(self, result: StepMetrics, work_out: Callable[[], dict[str, int | float]]) -> None:
        self._result = result
        self._work_out: Callable[[], dict[str, int | float]] | None = work_out

    @property
    def result(self) -> StepMetrics:
        self.finish()
        return self._result

    def finish(self) -> None:
        """Works the metrics out, where they aren't yet."""
        if self._work_out is not None:
            self._result.metrics = self._work_out()
            self._work_out = None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Publish) and self.result == other.result

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Publish({self.result!r})"


class SetAside(msgspec.Struct, frozen=True):
    """Send a record, untouched, to the dead-letter topic."""

    record: Record
    reason: DeadLetterReason
    error: str
    message: str


class Notice(msgspec.Struct, frozen=True):
    """Tell the operator; changes no result."""

    kind: NoticeKind
    run_id: str
    scope: str
    attempt: int
    step: int | None
    message: str


Effect = Publish | SetAside | Notice
