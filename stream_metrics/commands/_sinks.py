"""Sinks beside the sidecar, each a `stream-metrics sink` of its own: what one does can't stop or delay the results.

A process has its own interpreter lock and memory, and whatever ends it, it's started again. Its log lines go where the
sidecar's go. It holds one end of a pipe, and stops when the sidecar, which holds the other, is gone in whatever way.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from stream_metrics.config import CONFIG_VARIABLE, Settings, for_command
from stream_metrics.sidecar import logs

UNTIL_STDIN_ENDS: Final = "--until-stdin-ends"
"""The flag of `sink`, not in its help, that binds its life to its parent's."""

FIRST_BACKOFF_SECONDS: Final = 1.0
MAX_BACKOFF_SECONDS: Final = 60.0
STEADY_SECONDS: Final = 60.0
"""A sink that lived for so long begins again with the first back-off."""

_STOP_SECONDS: Final = 10.0


class SinkProcess:
    """Keeps one sink running, from a thread of its own.

    Args:
        words: The sink's name and flags.
        environment: Its variables.
        on_restart: Is told before each start but the first.
        command: What the words are given to; this program's `sink`.
    """

    def __init__(
        self,
        words: Sequence[str],
        environment: Mapping[str, str],
        on_restart: Callable[[], None],
        command: Sequence[str] = (sys.executable, "-m", "stream_metrics", "sink"),
    ) -> None:
        self.name = words[0]
        self._command = [*command, *words, UNTIL_STDIN_ENDS]
        self._environment = dict(environment)
        self._on_restart = on_restart
        self._is_stopping = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._keep_running, name=f"sink {self.name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def ask_to_stop(self) -> None:
        """It gets SIGTERM and isn't started again."""
        self._is_stopping.set()
        with self._lock:
            if self._process is not None:
                self._process.send_signal(signal.SIGTERM)

    def wait(self, seconds: float) -> None:
        """It has ended; by force, if not within so long."""
        self._thread.join(seconds)
        if self._thread.is_alive():
            with self._lock:
                if self._process is not None:
                    self._process.kill()
            self._thread.join(1.0)

    def _keep_running(self) -> None:
        backoff = FIRST_BACKOFF_SECONDS
        while True:
            began = time.monotonic()
            why = self._run_once()
            if self._is_stopping.is_set():
                return
            if time.monotonic() - began >= STEADY_SECONDS:
                backoff = FIRST_BACKOFF_SECONDS
            logs.warning("a sink ended; it starts again", sink=self.name, **why, after_seconds=backoff)
            if self._is_stopping.wait(backoff):
                return
            backoff = min(2 * backoff, MAX_BACKOFF_SECONDS)
            self._on_restart()

    def _run_once(self) -> dict[str, Any]:
        """Returns how it ended."""
        try:
            with self._lock:
                if self._is_stopping.is_set():
                    return {}
                # A group of its own: Ctrl-C in a terminal is for the sidecar, which then tells it.
                self._process = subprocess.Popen(
                    self._command, stdin=subprocess.PIPE, env=self._environment, process_group=0
                )
            code = self._process.wait()
            assert self._process.stdin is not None
            self._process.stdin.close()
        except OSError as error:  # no memory, no more processes
            return {"error": error.strerror}
        with self._lock:
            self._process = None
        return {"exit_code": code} if code >= 0 else {"signal": signal.Signals(-code).name}


class Sinks:
    """All sinks of a sidecar.

    Args:
        settings: Whose `sink` says which.
        config_file: The file of settings that the command line named.
        on_restart: Is told when one starts again.
    """

    def __init__(self, settings: Settings, config_file: str | None, on_restart: Callable[[], None]) -> None:
        environment = {**os.environ, **variables(settings, config_file)}
        self._processes = [SinkProcess(shlex.split(text), environment, on_restart) for text in settings.sink]

    def start(self) -> None:
        for process in self._processes:
            process.start()

    def stop(self) -> None:
        """All have ended, those that take long by force."""
        for process in self._processes:
            process.ask_to_stop()
        until = time.monotonic() + _STOP_SECONDS
        for process in self._processes:
            process.wait(max(0.0, until - time.monotonic()))


def variables(settings: Settings, config_file: str | None) -> dict[str, str]:
    """Returns the variables by which a sink has the sidecar's brokers, output topic and form of the log."""
    given = {CONFIG_VARIABLE: config_file} if config_file else {}
    for definition in for_command("sink"):
        value = getattr(settings, definition.field)
        if definition.kind == "table":
            # A value of several lines can only be the file's, which the sink reads too. Each line twice, since a single
            # one would be split at its commas.
            lines = [f"{name}={text}" for name, text in value.items() if "\n" not in text]
            given[definition.variable] = "\n".join(lines * 2)
        else:
            given[definition.variable] = str(value)
    return given
