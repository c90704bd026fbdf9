"""What becomes of a signal: a stop, and an end by force where it is sent twice or the main thread hangs."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys

import pytest

from stream_metrics.exit_codes import ExitCode
from stream_metrics.sidecar.stop_signals import END_SECONDS, ONE_PRESS_SECONDS, SAY_SECONDS, StopSignals

TERM, INT = bytes([signal.SIGTERM]), bytes([signal.SIGINT])


class _Process:
    """Signals come after so many seconds each; it stops never."""

    def __init__(self, *signals: tuple[float, bytes]) -> None:
        self._signals = list(signals)
        self.now = 0.0
        self.stopped_at: list[float] = []
        self.ended: list[tuple[float, int]] = []

    def hear(self) -> None:
        StopSignals(
            lambda: self.stopped_at.append(self.now),
            lambda code: self.ended.append((self.now, code)),
            lambda: self.now,
        ).hear(self._wait)

    def _wait(self, seconds: float | None) -> bytes:
        if self._signals and (seconds is None or self._signals[0][0] <= self.now + seconds):
            at, number = self._signals.pop(0)
            self.now = at
            return number
        assert seconds is not None, "it waits for a signal that never comes"
        self.now += seconds
        return b""


def test_a_stop_that_hangs_is_shown_with_where_it_hangs_and_then_ended(said: io.StringIO) -> None:
    process = _Process((100.0, TERM))
    process.hear()
    assert process.stopped_at == [100.0]
    assert process.ended == [(100.0 + END_SECONDS, ExitCode.INTERNAL_ERROR)]
    told = said.getvalue()
    assert "stopping signal=SIGTERM" in told
    assert "the stop hangs: ending as it is exit_code=1" in told


def test_the_evidence_comes_before_a_container_engine_kills_and_the_end_before_kubernetes_does() -> None:
    assert SAY_SECONDS < 10 < END_SECONDS < 30


@pytest.mark.parametrize(("first", "second"), [(INT, INT), (TERM, TERM), (TERM, INT)])
def test_a_second_signal_ends_it_at_once(said: io.StringIO, first: bytes, second: bytes) -> None:
    process = _Process((5.0, first), (6.0, second))
    process.hear()
    assert process.stopped_at == [5.0]
    assert process.ended == [(6.0, ExitCode.INTERNAL_ERROR)]
    assert "a second signal while stopping: ending at once" in said.getvalue()


def test_one_press_that_comes_twice_is_one(said: io.StringIO) -> None:
    process = _Process((5.0, INT + INT), (5.0 + ONE_PRESS_SECONDS / 2, INT))
    process.hear()
    assert "a second signal" not in said.getvalue()
    assert process.ended == [(5.0 + END_SECONDS, ExitCode.INTERNAL_ERROR)]


HANGS = """
import ctypes

def hang(self):
    mutex, library = ctypes.create_string_buffer(64), ctypes.CDLL(None)
    library.pthread_mutex_lock(mutex)
    sys.stderr.write("it hangs\\n")
    library.pthread_mutex_lock(mutex)  # for ever, and no signal interrupts it
"""

WAITS = """
import time

def hang(self):
    sys.stderr.write("it hangs\\n")
    while True:
        time.sleep(0.05)
"""

RUN = """
import sys
from stream_metrics.commands import run
from stream_metrics.config import Settings
from stream_metrics.sidecar import stop_signals
{hang}
run.Sidecar.run = hang
stop_signals.SAY_SECONDS, stop_signals.END_SECONDS, stop_signals.ONE_PRESS_SECONDS = {say}, {end}, 0.0
run.main(Settings())
"""


def _run(hang: str, say: float, end: float) -> subprocess.Popen[str]:
    script = RUN.format(hang=hang, say=say, end=end)
    process = subprocess.Popen([sys.executable, "-c", script], stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    assert process.stderr.readline() == "it hangs\n"
    return process


def test_a_main_thread_that_hangs_in_a_call_does_not_keep_the_process_from_ending() -> None:
    process = _run(HANGS, say=0.2, end=0.5)
    os.kill(process.pid, signal.SIGTERM)
    _, told = process.communicate(timeout=60)
    assert process.returncode == ExitCode.INTERNAL_ERROR, told
    assert "thread MainThread stands here" in told and "hang" in told
    assert "the stop hangs" in told


@pytest.mark.parametrize("hang", [HANGS, WAITS])
def test_whoever_presses_ctrl_c_twice_has_an_end(hang: str) -> None:
    process = _run(hang, say=600, end=600)
    os.kill(process.pid, signal.SIGINT)
    assert process.stderr is not None
    assert "stopping" in process.stderr.readline()
    os.kill(process.pid, signal.SIGINT)
    _, told = process.communicate(timeout=60)
    assert process.returncode == ExitCode.INTERNAL_ERROR, told
    assert "a second signal" in told
