"""Who has an instance id is asked in a process of its own, whose end by the client's own hand is no answer."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, KafkaException

from stream_metrics.config import Settings
from stream_metrics.sidecar.membership import member_with


@pytest.fixture
def settings() -> Settings:
    return Settings(bootstrap_servers="127.0.0.1:1", group_id="g", kafka_config={"sasl.password": "secret"})


def instead_of_python(monkeypatch: pytest.MonkeyPatch, folder: Path, script: str) -> None:
    path = folder / "python"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(path))


@pytest.mark.parametrize("script", ["kill -ABRT $$", "exit 1", "echo no json", "sleep 600"])
def test_a_client_that_ends_its_process_or_says_nothing_is_no_answer(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, settings: Settings, script: str
) -> None:
    monkeypatch.setattr("stream_metrics.sidecar.membership._ANSWER_SECONDS", 0.5)
    instead_of_python(monkeypatch, tmp_path, script)
    with pytest.raises(KafkaException) as raised:
        member_with(settings, "a")
    assert raised.value.args[0].code() == KafkaError._TIMED_OUT


@pytest.mark.parametrize(("answer", "member_id"), [('"a-1234"', "a-1234"), ("null", None)])
def test_the_answer_is_the_member_or_none(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, settings: Settings, answer: str, member_id: str | None
) -> None:
    instead_of_python(monkeypatch, tmp_path, f"cat > /dev/null; echo '{answer}'")
    assert member_with(settings, "a") == member_id


def test_passwords_are_no_arguments_that_others_could_list(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, settings: Settings
) -> None:
    instead_of_python(monkeypatch, tmp_path, f'echo "$@" > {tmp_path}/arguments; cat > {tmp_path}/input; echo null')
    member_with(settings, "a")
    assert "secret" not in (tmp_path / "arguments").read_text()
    assert "secret" in (tmp_path / "input").read_text()
