"""Results as JSON lines on standard output, as they are in the topic.

A pipe can't say what its reader has: after a crash the newest lines come again, and readers tell them by their content.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from stream_metrics.sinks.base import Delivery, Sink


class StdoutSink(Sink):
    """Prints results. A reader that goes away ends the command (BrokenPipeError)."""

    def __init__(self) -> None:
        self._given: dict[int, int] = {}

    def write(self, batch: Sequence[Delivery]) -> None:
        for delivery in batch:
            if delivery.offset > self._given.get(delivery.partition, -1):
                sys.stdout.buffer.write(delivery.value.replace(b"\n", b" ") + b"\n")
                self._given[delivery.partition] = delivery.offset

    def flush(self) -> None:
        sys.stdout.buffer.flush()
