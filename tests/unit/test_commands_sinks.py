"""Sinks beside the sidecar: what they are started with, and what becomes of them."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from stream_metrics.commands import _sinks
from stream_metrics.commands._sinks import SinkProcess, variables
from stream_metrics.config import Settings, load
from support.waiting import wait_until


def begun(script: str, folder: Path, on_restart: Callable[[], None] = lambda: None) -> SinkProcess:
    """Starts a script in a sink's place, which has a file `x` to write to."""
    process = SinkProcess(
        ["test"], {**os.environ, "FILE": str(folder / "x")}, on_restart, command=[sys.executable, "-c", script]
    )
    process.start()
    return process


def test_a_sink_has_the_settings_that_the_sidecar_has(tmp_path: Path) -> None:
    path = tmp_path / "settings.toml"
    path.write_text('[kafka-config]\n"ssl.ca.pem" = """one\ntwo"""\n"client.id" = "of the file"\n')
    flags = {"kafka-config": ["client.id=a, b"], "output-topic": "t", "bootstrap-servers": "k:1,l:2"}
    settings = load(flags, {}, config_file=str(path))
    assert load({}, variables(settings, str(path))) == settings
    assert settings.kafka_config == {"client.id": "a, b", "ssl.ca.pem": "one\ntwo"}
    assert load({}, variables(Settings(), None)) == Settings()


def test_a_sink_that_ends_begins_again_after_longer_and_longer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_sinks, "FIRST_BACKOFF_SECONDS", 0.001)
    restarts: list[int] = []
    process = begun("import os; open(os.environ['FILE'], 'a').write('+'); 1/0", tmp_path, lambda: restarts.append(1))
    wait_until(lambda: len(restarts) >= 3, "three restarts")
    process.ask_to_stop()
    process.wait(30)
    assert len((tmp_path / "x").read_text()) >= 3


def test_a_program_that_cannot_be_started_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_sinks, "FIRST_BACKOFF_SECONDS", 0.001)
    restarts: list[int] = []
    process = SinkProcess(["test"], {}, lambda: restarts.append(1), command=["/no/such/program"])
    process.start()
    wait_until(lambda: len(restarts) >= 2, "two restarts")
    process.ask_to_stop()
    process.wait(30)


def test_a_sink_is_asked_to_end_before_it_is_made_to(tmp_path: Path) -> None:
    script = """
import os, signal, sys
def stop(*_):
    open(os.environ["FILE"] + "-end", "w").close()
    sys.exit(0)
signal.signal(signal.SIGTERM, stop)
open(os.environ["FILE"], "w").close()
while True: signal.pause()
"""
    process = begun(script, tmp_path)
    wait_until((tmp_path / "x").exists, "it runs")
    process.ask_to_stop()
    process.wait(30)
    assert (tmp_path / "x-end").exists()


def test_a_sink_that_does_not_listen_is_made_to_end(tmp_path: Path) -> None:
    script = """
import os, signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
open(os.environ["FILE"], "w").write(str(os.getpid()))
while True: signal.pause()
"""
    process = begun(script, tmp_path)
    pid = int(wait_until(lambda: (tmp_path / "x").exists() and (tmp_path / "x").read_text(), "it runs"))
    process.ask_to_stop()
    process.wait(0.1)
    wait_until(lambda: not Path(f"/proc/{pid}").exists(), "it is dead")
