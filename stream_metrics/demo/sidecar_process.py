"""The real sidecar as a process of its own."""

from __future__ import annotations

import collections
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from typing import IO, Any, Final

_STOP_SECONDS: Final = 10.0
_LINES_KEPT: Final = 50
_READY: Final = "partitions assigned"


class SidecarProcess:
    """A running `stream-metrics run`.

    Args:
        arguments: What follows `run`.
        on_embedded_broker: The broker is librdkafka's mock.
    """

    def __init__(self, arguments: Sequence[str], *, on_embedded_broker: bool) -> None:
        module = "stream_metrics.demo.mock_sidecar" if on_embedded_broker else "stream_metrics"
        # What is set for a real sidecar on this machine isn't meant for this one.
        environment = {name: value for name, value in os.environ.items() if not name.startswith("STREAM_METRICS_")}
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, "run", *arguments, "--log-format", "json"],
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
        )
        self._lines: collections.deque[dict[str, Any]] = collections.deque(maxlen=_LINES_KEPT)
        self._is_ready = threading.Event()
        assert self._process.stderr is not None
        self._reading = threading.Thread(target=self._read, args=(self._process.stderr,), daemon=True)
        self._reading.start()

    @property
    def is_ready(self) -> bool:
        """Whether it has its partitions."""
        return self._is_ready.is_set()

    @property
    def exit_code(self) -> int | None:
        """Its exit code, None while it runs."""
        return self._process.poll()

    def complaints(self) -> list[str]:
        """Returns what it logged last as a warning or worse."""
        if self.exit_code is not None:
            self._reading.join(_STOP_SECONDS)
        return [
            " ".join([str(line["message"]), *(f"{name}={line[name]}" for name in ("error", "why") if name in line)])
            for line in list(self._lines)
            if line["level"] not in ("info", "debug")
        ]

    def stop(self) -> int:
        """Ends it as an operator would, and returns its exit code."""
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reading.join(_STOP_SECONDS)
        for stream in (self._process.stdin, self._process.stderr):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()
        return self._process.returncode

    def _read(self, stream: IO[bytes]) -> None:
        for text in stream:
            try:
                line = json.loads(text)
                is_line = isinstance(line, dict) and {"message", "level"} <= line.keys()
            except ValueError:
                is_line = False
            if not is_line:  # a traceback, or a word of the client's
                line = {"message": text.decode(errors="replace").rstrip(), "level": "error"}
            self._lines.append(line)
            if line["message"] == _READY:
                self._is_ready.set()
