"""SIGTERM and SIGINT, heard by a thread of their own.

Python runs signal handlers in the main thread alone, between two of its own steps: one that hangs in a call of the
client never comes to them. The number that the C library's handler writes into a pipe any thread can read.
"""

from __future__ import annotations

import os
import select
import signal
import threading
import time
from collections.abc import Callable
from typing import Final

from stream_metrics.exit_codes import ExitCode
from stream_metrics.sidecar import logs
from stream_metrics.sidecar.watchdog import say_stacks

SAY_SECONDS: Final = 8.0
"""A stop takes less. Container engines kill after 10 s by default, and the evidence is to be in the log by then."""

END_SECONDS: Final = 25.0
"""More than a stop may take with its sinks, and less than the 30 s that Kubernetes gives."""

ONE_PRESS_SECONDS: Final = 0.5
"""A wrapper passes on the Ctrl-C that the terminal has sent to all of its group already."""

_STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


class StopSignals:
    """The first signal asks for a stop; a second one, or a stop that hangs, ends the process as it is.

    Nothing is lost by that: what wasn't committed is done again at the next start.

    Args:
        stop: Asks for the stop, and returns at once.
        end: Ends the process with an exit code, whatever its threads do.
        monotonic: Seconds that never jump.
    """

    def __init__(
        self,
        stop: Callable[[], None],
        end: Callable[[int], None] = os._exit,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._stop = stop
        self._end = end
        self._monotonic = monotonic

    def listen(self) -> None:
        """From now on signals are heard, until the process ends. Called by the main thread."""
        heard, written = os.pipe()
        os.set_blocking(written, False)
        signal.set_wakeup_fd(written)
        for number in _STOP_SIGNALS:
            signal.signal(number, _wake)

        def wait(seconds: float | None) -> bytes:
            ready, _, _ = select.select([heard], [], [], seconds)
            return os.read(heard, 64) if ready else b""

        threading.Thread(target=self.hear, args=(wait,), name="signals", daemon=True).start()

    def hear(self, wait: Callable[[float | None], bytes]) -> None:
        """Does what the signals ask for, until the process ends.

        Args:
            wait: Returns the numbers of the signals that came, or none of them after some seconds.
        """
        number = wait(None)[0]
        first_at = self._monotonic()
        logs.info("stopping", signal=signal.Signals(number).name)
        self._stop()
        is_said = False
        while True:
            age = self._monotonic() - first_at
            if age >= END_SECONDS:
                self._end_now("the stop hangs: ending as it is")
                return
            if age >= SAY_SECONDS and not is_said:
                is_said = True
                say_stacks(f"{SAY_SECONDS:.0f} s after the signal to stop")
            again = wait((END_SECONDS if is_said else SAY_SECONDS) - age)
            if again and self._monotonic() - first_at >= ONE_PRESS_SECONDS:
                self._end_now("a second signal while stopping: ending at once")
                return

    def _end_now(self, why: str) -> None:
        logs.error(why, exit_code=int(ExitCode.INTERNAL_ERROR))
        logs.flush()
        self._end(ExitCode.INTERNAL_ERROR)


def _wake(*_: object) -> None:
    """A signal comes through the pipe only where Python has a handler for it."""
