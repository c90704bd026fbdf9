"""The demo's arguments: what is wrong is said before anything is started."""

from __future__ import annotations

import importlib.util
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from stream_metrics.commands import demo
from stream_metrics.config import SettingsError
from stream_metrics.exit_codes import ExitCode


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--produce-only"], "--produce-only needs --bootstrap-servers"),
        (["--input-topic", "t"], "--input-topic goes with --produce-only"),
        (["--keep-topics"], "go with --bootstrap-servers"),
        (["--kafka-config", "a=b"], "go with --bootstrap-servers"),
        (["--page", "--produce-only", "--bootstrap-servers", "b:1"], "--page is the sidecar's"),
        (["--page", "0"], "must be a port"),
        (["--steps", "0"], "must be at least 1"),
        (["--steps", "many"], "invalid"),
        (["--unknown"], "unrecognized"),
    ],
)
def test_wrong_usage_is_refused(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        demo.main(arguments)
    assert ended.value.code == ExitCode.WRONG_SETTINGS
    assert said in capsys.readouterr().err


def test_an_address_is_checked_like_everywhere() -> None:
    with pytest.raises(SettingsError, match="bootstrap-servers"):
        demo.main(["--bootstrap-servers", "a b"])


def test_a_missing_extra_is_named_with_the_way_to_get_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = importlib.util.find_spec

    def find(name: str, package: str | None = None) -> ModuleSpec | None:
        return None if name in ("rich", "matplotlib") else found(name, package)

    monkeypatch.setattr(importlib.util, "find_spec", find)
    assert demo.main([]) == ExitCode.WRONG_SETTINGS
    said = capsys.readouterr().err
    assert "needs rich and matplotlib" in said
    assert "stream-metrics[demo]" in said


@pytest.mark.parametrize("name", ["none/plot.png", "plot.txt"])
def test_a_plot_that_could_not_be_saved_is_refused_at_once(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("rich", reason="the extra `demo` isn't installed")
    pytest.importorskip("matplotlib", reason="the extra `demo` isn't installed")
    assert demo.main(["--output", str(tmp_path / name)]) == ExitCode.WRONG_SETTINGS
    assert "--output" in capsys.readouterr().err


def test_the_help_names_every_way_to_run_it(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        demo.main(["--help"])
    assert ended.value.code == 0
    said = capsys.readouterr().out
    for flag in ("--bootstrap-servers", "--produce-only", "--steps", "--seed", "--fast", "--output", "--page"):
        assert flag in said
