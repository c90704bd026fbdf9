"""`stream-metrics sink` from arguments to the call of the command."""

from __future__ import annotations

import os
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from stream_metrics import cli
from stream_metrics.config import Settings
from stream_metrics.exit_codes import ExitCode
from stream_metrics.sinks.registry import SINKS


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    for name in list(os.environ):
        if name.startswith("STREAM_METRICS_"):
            monkeypatch.delenv(name)
    calls: list[Any] = []

    def main(*arguments: Any, **named: Any) -> int:
        calls.append((arguments, named))
        return 0

    monkeypatch.setattr(cli, "_command", lambda name: SimpleNamespace(main=main) if name == "sink" else None)
    return calls


def test_a_sink_gets_its_settings_its_own_flags_and_its_group(called: list[Any]) -> None:
    cli.main(["sink", "jsonl", "--path", "x", "--output-topic", "t", "--once", "--all", "--group", "g"])
    cli.main(["sink", "prometheus", "--max-series", "3"])
    assert called == [
        (
            (Settings(output_topic="t"), "jsonl", {"path": "x"}),
            {"group": "g", "is_once": True, "is_all": True, "is_bound_to_stdin": False},
        ),
        (
            (Settings(), "prometheus", {"host": "127.0.0.1", "port": 8081, "max_series": 3}),
            {"group": None, "is_once": False, "is_all": False, "is_bound_to_stdin": False},
        ),
    ]


@pytest.mark.parametrize("arguments", [["sink"], ["sink", "nowhere"], ["sink", "jsonl"], ["sink", "stdout", "--group"]])
def test_wrong_usage_has_code_2(called: list[Any], arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(arguments)
    assert (caught.value.code, called) == (ExitCode.WRONG_SETTINGS, [])


def test_a_flag_of_run_is_refused(called: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["sink", "stdout", "--late", "correct"]) == ExitCode.WRONG_SETTINGS
    assert "not of sink" in capsys.readouterr().err
    assert called == []


def test_the_help_of_each_sink_needs_neither_kafka_nor_its_library() -> None:
    script = (
        "import sys\nfrom stream_metrics.cli import main\n"
        f"for name in {list(SINKS)}:\n"
        "    try: main(['sink', name, '--help'])\n"
        "    except SystemExit: pass\n"
        "sys.exit(str({'confluent_kafka', 'wandb', 'tensorboard', 'mlflow', 'prometheus_client'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.stderr == "set()\n"
    for kind in SINKS.values():
        assert kind.summary[1:] in " ".join(done.stdout.split())
        for flag in kind.flags:
            assert f"--{flag.name.replace('_', '-')} {flag.metavar}" in done.stdout
