"""Who has an instance id is asked in a process of its own; and when that is another live replica, and when a ghost."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, KafkaException

from stream_metrics.config import Settings
from stream_metrics.sidecar.membership import LOOK_SECONDS, is_replaced, member_with


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


SESSION_SECONDS = 10.0
SILENT = KafkaException(KafkaError(KafkaError._TIMED_OUT))


class _Group:
    """A group that is asked once a second; `holder` says what it answers then."""

    def __init__(self, holder: Callable[[float], str | None], is_identity_ours: bool | None = None) -> None:
        self.now = 0.0
        self.stops_at = float("inf")
        self._holder = holder
        self._is_identity_ours = is_identity_ours

    def is_replaced(self) -> bool:
        return is_replaced(
            lambda: self._holder(self.now),
            lambda member: member == "me",
            lambda: self._is_identity_ours,
            SESSION_SECONDS,
            lambda: self.now,
            self._pause,
            lambda: self.now >= self.stops_at,
        )

    def _pause(self, seconds: float) -> None:
        assert self.now < 1_000, "it never knows"
        self.now += seconds


@pytest.mark.parametrize("holder", [None, "me"])
def test_an_instance_id_that_nobody_has_or_we_have_is_ours(holder: str | None) -> None:
    group = _Group(lambda _: holder, is_identity_ours=False)
    assert not group.is_replaced()
    assert group.now == 0.0


@pytest.mark.parametrize("is_ours", [True, False])
def test_where_the_coordinator_of_transactions_knows_it_is_known_at_once(is_ours: bool) -> None:
    group = _Group(lambda _: "another", is_identity_ours=is_ours)
    assert group.is_replaced() is not is_ours
    assert group.now == 0.0


def test_a_member_that_sends_no_heartbeats_is_no_replica() -> None:
    group = _Group(lambda now: "ghost" if now <= SESSION_SECONDS else None)
    assert not group.is_replaced()


def test_a_member_that_outlives_its_session_is_another_replica() -> None:
    group = _Group(lambda _: "another")
    assert group.is_replaced()
    assert SESSION_SECONDS < group.now <= SESSION_SECONDS + 3 * LOOK_SECONDS


def test_a_member_that_a_broker_shows_once_more_as_it_wakes_up_is_no_replica() -> None:
    # It has been asked before it looks at the sessions that ended meanwhile.
    group = _Group(lambda now: "ghost" if now <= SESSION_SECONDS + LOOK_SECONDS else None)
    assert not group.is_replaced()


@pytest.mark.parametrize("is_silent_between", [False, True])
def test_a_member_that_joins_again_under_another_id_is_another_replica(is_silent_between: bool) -> None:
    # Nobody joins for us while we wait. On a busy machine a replica may be thrown out again and again, and join again.
    def holder(now: float) -> str | None:
        if is_silent_between and 3 <= now < 8:
            raise SILENT
        return "another" if now < 5 else "another again"

    group = _Group(holder)
    assert group.is_replaced()
    assert group.now in (5.0, 8.0)


def test_the_time_of_a_broker_that_says_nothing_does_not_count() -> None:
    def holder(now: float) -> str | None:
        if 5 <= now < 60:
            raise SILENT
        return "ghost" if now < 60 + SESSION_SECONDS else None

    group = _Group(holder)
    assert not group.is_replaced()
    assert group.now == 60 + SESSION_SECONDS


def test_a_stop_ends_the_asking() -> None:
    def holder(_: float) -> str | None:
        raise SILENT

    group = _Group(holder)
    group.stops_at = 3.0
    assert not group.is_replaced()
    assert group.now == 3.0
