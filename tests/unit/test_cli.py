import json
import os
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from stream_metrics import __version__, cli
from stream_metrics.config import DEFINITIONS, Settings
from stream_metrics.exit_codes import MEANINGS, ExitCode


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("STREAM_METRICS_"):
            monkeypatch.delenv(name)


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What the commands were called with, none of them being imported."""
    calls: list[Any] = []

    def command(name: str) -> SimpleNamespace:
        def main(*arguments: Any, **named: Any) -> int:
            calls.append((name, arguments, named))
            return 5

        return SimpleNamespace(main=main)

    monkeypatch.setattr(cli, "_command", command)
    return calls


def test_run_gets_the_settings_and_its_exit_code_is_ours(called: list[Any]) -> None:
    assert (
        cli.main(["run", "--max-runs", "3", "--create-topics", "--kafka-config", "a=1", "--kafka-config", "b=2"]) == 5
    )
    assert called == [
        ("run", (Settings(max_runs=3, create_topics=True, kafka_config={"a": "1", "b": "2"}),), {"config_file": None}),
    ]


def test_the_flags_of_a_sink_beside_the_sidecar_are_checked_before_anything_starts(
    called: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["run", "--sink", "stdout", "--sink", "jsonl --path 'a b'"]
    assert cli.main(given) == 5
    assert called[0][1][0].sink == ("stdout", "jsonl --path 'a b'")
    for wrong, told in [
        ("nowhere", "invalid choice: 'nowhere'"),
        ("jsonl", "--path"),
        ("stdout --port x", "--port"),
        ("jsonl --path 'x", "'NAME FLAG...'"),
        ("", "'NAME FLAG...'"),
    ]:
        try:
            code: Any = cli.main(["run", "--sink", wrong])
        except SystemExit as ended:  # argparse's way
            code = ended.code
        assert code == ExitCode.WRONG_SETTINGS
        assert told in capsys.readouterr().err
    assert len(called) == 1


def test_replay_dump_produce_and_schema_get_their_arguments(called: list[Any]) -> None:
    cli.main(["replay", "-", "--dead-letters", "d.jsonl", "--late", "dead_letter"])
    cli.main(["dump", "--output", "x", "--partition", "3"])
    cli.main(["dump"])
    cli.main(["produce", "events.jsonl"])
    cli.main(["schema"])
    assert called == [
        ("replay", (Settings(late="dead_letter"),), {"path": "-", "dead_letters": "d.jsonl"}),
        ("dump", (Settings(),), {"output": "x", "partition": 3}),
        ("dump", (Settings(),), {"output": None, "partition": None}),
        ("produce", (Settings(),), {"path": "events.jsonl"}),
        ("schema", (), {}),
    ]


def test_demo_reads_its_own_arguments(called: list[Any]) -> None:
    cli.main(["demo", "--help", "--any", "thing"])
    assert called == [("demo", (["--help", "--any", "thing"],), {})]


def test_variables_and_the_file_reach_the_settings(
    called: list[Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    path = tmp_path / "metrics.toml"
    path.write_text("max-names = 5")
    monkeypatch.setenv("STREAM_METRICS_MAX_RUNS", "4")
    cli.main(["run", "--config", str(path)])
    assert called[0][1] == (Settings(max_runs=4, max_names=5),)


def test_all_that_is_wrong_is_one_message_and_code_2(
    called: list[Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("STREAM_METRICS_LATE", "never")
    assert cli.main(["run", "--max-runs=0", "--clsoe-grace", "5", "--partition=3"]) == ExitCode.WRONG_SETTINGS
    assert called == []
    assert capsys.readouterr().err.splitlines() == [
        "stream-metrics: 4 settings are wrong:",
        "  --clsoe-grace: is no flag of run; did you mean --close-grace?",
        "  --partition: is no flag of run; did you mean --input-partitions?",
        "  STREAM_METRICS_LATE: 'never' must be one of correct, dead_letter",
        "  --max-runs: '0' must be a whole number from 1 to 128",
    ]


def test_a_flag_of_another_command_is_refused_by_saying_whose_it_is(
    called: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["produce", "x", "--close-grace", "5"]) == ExitCode.WRONG_SETTINGS
    assert "--close-grace: is a flag of run, not of produce" in capsys.readouterr().err
    assert cli.main(["schema", "--late", "correct"]) == ExitCode.WRONG_SETTINGS
    assert "--late: is a flag of explain, replay, run, not of schema" in capsys.readouterr().err
    assert cli.main(["run", "x"]) == ExitCode.WRONG_SETTINGS
    assert "x: is one argument too many" in capsys.readouterr().err
    assert called == []


@pytest.mark.parametrize("arguments", [[], ["jump"], ["replay"], ["run", "--max-runs"], ["dump", "--partition", "x"]])
def test_wrong_usage_has_code_2(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(arguments)
    assert caught.value.code == ExitCode.WRONG_SETTINGS


def test_flags_are_never_guessed_from_their_beginning(called: list[Any]) -> None:
    assert cli.main(["run", "--max-run", "3"]) == ExitCode.WRONG_SETTINGS
    assert called == []


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(["--version"])
    assert caught.value.code == 0
    assert capsys.readouterr().out == f"stream-metrics {__version__}\n"


def test_help_shows_every_flag_with_its_variable_and_the_exit_codes(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "500")  # no line breaks inside names
    with pytest.raises(SystemExit) as caught:
        cli.main(["run", "--help"])
    assert caught.value.code == 0
    words = " ".join(capsys.readouterr().out.split())
    for definition in DEFINITIONS:
        assert f"{definition.flag} " in words or f"{definition.flag}," in words
        assert f"(default: {definition.default_shown}) [{definition.variable}]" in words
    for code, meaning in MEANINGS.items():
        assert f"{code.value} {meaning}" in words
    assert set(MEANINGS) == set(ExitCode)


@pytest.mark.parametrize(
    "arguments", [["--help"], ["schema", "--help"], ["schema"], ["run", "--help"], ["produce", "--help"], ["--version"]]
)
def test_what_needs_no_kafka_imports_none(arguments: list[str]) -> None:
    script = (
        "import sys\nfrom stream_metrics.cli import main\n"
        f"try: main({arguments!r})\nexcept SystemExit: pass\n"
        "sys.exit('confluent_kafka' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_reader_that_goes_away_is_no_crash() -> None:
    script = "import sys\nfrom stream_metrics.cli import main\nsys.exit(main(['schema']))"
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [sys.executable, "-uc", script], stdout=writing, stderr=subprocess.PIPE, text=True, check=False
    )
    os.close(writing)
    assert (done.returncode, done.stderr) == (ExitCode.INTERNAL_ERROR, "")


def test_schema_prints_the_schema_of_every_type(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["schema"]) == ExitCode.OK
    printed = json.loads(capsys.readouterr().out)
    assert set(printed["$defs"]) >= {"Sample", "SampleBatch", "StepClose", "StepMetrics"}


def test_the_module_is_the_program() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "stream_metrics", "--version"], capture_output=True, text=True, check=False
    )
    assert done.stdout == f"stream-metrics {__version__}\n"
