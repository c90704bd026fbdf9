"""Waiting too long: by the clock it is decided when a marker is written, by the log what comes of it."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from stream_metrics.testing import close, sample
from support.brokers import Broker
from support.operations import Operated, operated, record
from support.topics import NewRecord, create_topic, read_topic


@pytest.fixture
def sidecar(broker: Broker, tmp_path: Path) -> Iterator[Operated]:
    with operated(broker.bootstrap, tmp_path) as made:
        yield made


def _markers(sidecar: Operated) -> list[dict[str, object]]:
    read = read_topic(sidecar.bootstrap, sidecar.deployment.input_topic)
    events = [json.loads(one.value) for one in read if one.value is not None]
    return [event for event in events if event.get("reason") == "timeout"]


def _at(event: dict[str, object], unix_ms: int, run_id: str) -> NewRecord:
    made = record(event, run_id)
    return NewRecord(made.value, key=made.key, partition=0, timestamp_ms=unix_ms)


def _now_ms() -> int:
    return int(time.time() * 1000)


def test_each_timeout_is_a_marker_on_the_steps_own_partition_and_is_said(broker: Broker, tmp_path: Path) -> None:
    with operated(broker.bootstrap, tmp_path, partitions=2, idle_timeout=3, close_grace=1) as sidecar:
        sidecar.start_ready()
        sidecar.send(sample(1, 1.0), run_id="idle", partition=1)
        sidecar.send(sample(2, 1.0), close(2, expected_samples=5), run_id="closing", partition=0)
        sidecar.send(close(3, producers=2, producer="a"), run_id="alone", partition=1)
        sidecar.wait_for_results(3)
        for run, partition, samples, timeout in (("closing", 0, 1, 1), ("alone", 1, 0, 1), ("idle", 1, 1, 3)):
            (result,) = sidecar.results(run)
            assert (result.complete, result.reason, result.log.partition) == (False, "timeout", partition)
            assert result.metrics["rollout/num_training_samples"] == samples
            waited_ms = (result.closed_unix_ms or 0) - (result.opened_unix_ms or 0)
            assert timeout * 1000 <= waited_ms < timeout * 1000 + 15_000, result
        markers = {str(one["run_id"]): one for one in _markers(sidecar)}
        assert sorted(markers) == ["alone", "closing", "idle"]
        assert markers["idle"]["seen_offset"] == sidecar.results("idle")[0].log.first_offset
        said = sidecar.process.said("a step waited too long")
        assert {(line["run_id"], line["producers_heard"], line["producers"]) for line in said} == {
            ("closing", 1, 1),
            ("alone", 1, 2),
            ("idle", 0, 1),
        }
        assert sidecar.metric("timeout_markers_total") == 3
        sidecar.wait_until_read()
        sidecar.restart()
        sidecar.wait_until_read()
        assert len(_markers(sidecar)) == 3
        assert len(sidecar.results()) == 3
        assert sidecar.letters() == []


def test_what_was_announced_and_comes_after_the_timeout_makes_the_step_complete(sidecar: Operated) -> None:
    sidecar.start_ready(close_grace=0.5)
    sidecar.send(sample(1, 1.0), close(1, expected_samples=2))
    sidecar.wait_for_results(1)
    sidecar.send(sample(1, 0.0))
    first, corrected = sidecar.wait_for_results(2)
    assert (first.complete, first.correction, first.reason) == (False, False, "timeout")
    assert (corrected.complete, corrected.correction, corrected.reason) == (True, True, "timeout")
    assert corrected.late_samples == 1 and corrected.metrics["rollout/episode_raw_reward"] == 0.5


def test_a_restart_within_the_timeout_does_not_start_it_over(sidecar: Operated) -> None:
    sidecar.start_ready(idle_timeout=60)
    sidecar.send(_at(sample(1, 1.0), _now_ms() - 56_000, "waiting"))  # as if it had waited 56 s by now
    sidecar.wait_until_read()
    assert sidecar.results() == []
    sidecar.restart(idle_timeout=60)
    (result,) = sidecar.wait_for_results(1, deadline_seconds=20)
    assert (result.reason, result.metrics["rollout/num_training_samples"]) == ("timeout", 1)


def test_a_marker_for_a_step_that_moved_on_does_nothing(sidecar: Operated) -> None:
    # What another replica, that has been frozen since, would have written before it was fenced.
    sidecar.start_ready()
    sidecar.send(sample(1, 1.0), sample(1, 1.0), close(1, reason="timeout", seen_offset=0), run_id="r")
    sidecar.send(close(2, reason="timeout", seen_offset=9), close(1, attempt=4, reason="timeout"), run_id="r")
    sidecar.send(close(1), run_id="r")
    (result,) = sidecar.wait_for_results(1)
    assert (result.step, result.complete, result.reason, result.attempt) == (1, True, "closed", 0)
    assert result.metrics["rollout/num_training_samples"] == 2
    sidecar.wait_until_read()
    assert sidecar.letters() == []


def test_two_replicas_that_race_for_a_timeout_close_the_step_once(sidecar: Operated) -> None:
    # Another group on the same input: both find the step too old at the same time, and both write.
    sidecar.start_ready(idle_timeout=2)
    output = create_topic(sidecar.bootstrap, "output")
    another = sidecar.deployment.start(
        "another", idle_timeout=2, group_id=f"{sidecar.deployment.group}-2", output_topic=output
    )
    another.wait_for("partitions assigned")
    sidecar.send(sample(1, 1.0), run_id="raced")
    sidecar.wait_for_results(1, "raced")
    sidecar.wait_until(lambda: len(read_topic(sidecar.bootstrap, output)) == 1, "the other group's result")
    sidecar.send(sample(2, 1.0), close(2), run_id="raced")
    sidecar.wait_for_results(2, "raced")
    assert len(read_topic(sidecar.bootstrap, output)) == 2
    assert len(_markers(sidecar)) <= 2
    assert sidecar.letters() == []


@pytest.mark.parametrize("unix_ms", [-1, 0, 1, 10**15], ids=["none", "given by the client", "no clock", "future"])
def test_an_absurd_record_timestamp_changes_no_result_and_fires_no_timeout(sidecar: Operated, unix_ms: int) -> None:
    sidecar.set_topic_config(sidecar.deployment.input_topic, "message.timestamp.after.max.ms", str(2**63 - 1))
    sidecar.send(_at(sample(1, 1.0), unix_ms, "r"), _at(sample(2, 1.0), unix_ms, "r"))
    sidecar.start_ready(idle_timeout=3600)
    sidecar.wait_until(lambda: sidecar.get("/readyz")[0] == 200, "ready")
    sidecar.send(_at(sample(1, 0.0), _now_ms(), "r"), _at(close(1), unix_ms, "r"))
    (result,) = sidecar.wait_for_results(1)
    assert (result.complete, result.reason) == (True, "closed")
    assert result.metrics["rollout/episode_raw_reward"] == 0.5
    assert _markers(sidecar) == []
    assert sidecar.metric("oldest_open_step_age_seconds") < 3600


def test_a_topic_that_dates_records_itself_works_the_same(sidecar: Operated) -> None:
    topic = create_topic(sidecar.bootstrap, "dated", config={"message.timestamp.type": "LogAppendTime"})
    sidecar.deployment.input_topic = topic
    sidecar.start_ready()
    before = _now_ms()
    sidecar.send(sample(1, 1.0), close(1))
    (result,) = sidecar.wait_for_results(1)
    assert result.closed_unix_ms is not None and before - 60_000 < result.closed_unix_ms < before + 60_000
