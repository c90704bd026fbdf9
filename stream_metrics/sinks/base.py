"""The one contract of all sinks. Who keeps it gets each result at least once, in order, and shows it once.

- A result that the tool has already changes nothing: after a crash the newest results come again.
- Results of an attempt older than the newest one of their run and scope never reach a sink.
- `write` may be called again with the same results, after it or `flush` failed: nothing may be doubled then.
- Only after `flush` are offsets committed, so it returns once the tool has taken all that was written.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

from stream_metrics.events import StepMetrics


class SinkRefusedError(Exception):
    """The tool will never take results this way; the message says what to change. The command ends with exit code 2."""


class SinkOutageError(Exception):
    """The tool can't take results now. The consumer says so once and tries again; so it does for every OSError."""


class Delivery(NamedTuple):
    """One result with its place in the output topic.

    Attributes:
        result: The result.
        value: Its bytes as they are in the topic, fields of newer versions included.
        partition: The partition; a run's results are on one.
        offset: The offset in it.
        unix_ms: The record's timestamp, 0 where it has none.
    """

    result: StepMetrics
    value: bytes
    partition: int
    offset: int
    unix_ms: int


class Sink:
    """One outside system.

    Attributes:
        is_lasting: Whether the tool keeps what it took when the process ends. Where it doesn't, each start gives it all
            results of the topic again, and nothing is committed.
    """

    is_lasting: ClassVar[bool] = True

    def setup(self) -> None:
        """The tool is reachable and ready.

        Raises:
            SinkRefusedError: It never will be, with these flags.
            SinkOutageError: It isn't now.
        """

    def begin(self) -> None:
        """Partitions were given, and another process may have fed the tool meanwhile. Asks the tool nothing."""

    def recall(self, delivery: Delivery) -> None:
        """Notes a result that the tool took in an earlier life. Each start brings all that are still in the topic."""

    def write(self, batch: Sequence[Delivery]) -> None:
        """Gives the tool some results, in the order of each run's log.

        Raises:
            SinkOutageError: It can't take them now; the same batch comes again.
            SinkRefusedError: It never will.
        """
        raise NotImplementedError

    def flush(self) -> None:
        """The tool has taken all that was written."""

    def close(self) -> None:
        """The sink is of no more use; what was flushed stays."""

    def forsake(self) -> None:
        """The process ends though `close`, or what came before it, hasn't: nothing of it may stay on this machine.

        Called by another thread; asks the tool nothing.
        """


def library(name: str, extra: str) -> Any:
    """Returns the module of a sink's library.

    Raises:
        SinkRefusedError: It isn't installed; the message says how to.
    """
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise SinkRefusedError(
            f"the sink {extra!r} needs a library that isn't installed ({error.name}): "
            f"pip install 'stream-metrics[{extra}]'"
        ) from None
