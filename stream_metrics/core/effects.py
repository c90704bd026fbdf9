"""What the fold asks the shell to do, in the order in which it is to be done."""

from __future__ import annotations

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


class Publish(msgspec.Struct, frozen=True):
    """Publish a result to the output topic."""

    result: StepMetrics


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
