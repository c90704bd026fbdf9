"""Sinks on a real broker: transactions, groups, kills and two sinks sharing a topic."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition

from stream_metrics.events import encode
from stream_metrics.exit_codes import ExitCode
from support.brokers import Broker
from support.results import step_metrics
from support.topics import NewRecord, create_topic, produce, produce_transaction, unique_name
from support.waiting import wait_until
from support.wandb_server import KEY, running_server


def record(step: int, reward: float, *, run_id: str = "run", partition: int = 0, **fields: Any) -> NewRecord:
    metrics = {"rollout/episode_raw_reward": reward, "rollout/step": step}
    result = step_metrics(step, run_id=run_id, **({"metrics": metrics} | fields))
    return NewRecord(encode(result), key=result.key(), partition=partition)


def command(broker: Broker, topic: str, name: str, *flags: str) -> list[str]:
    own = ["--bootstrap-servers", broker.bootstrap, "--output-topic", topic, "--log-format", "json"]
    return [sys.executable, "-m", "stream_metrics", "sink", name, *flags, *own]


def once(broker: Broker, topic: str, group: str, name: str, *flags: str) -> subprocess.CompletedProcess[bytes]:
    done = subprocess.run(
        command(broker, topic, name, *flags, "--group", group, "--once"), capture_output=True, timeout=60, check=False
    )
    assert done.returncode == ExitCode.OK, done.stderr.decode()
    return done


@contextmanager
def running(arguments: list[str]) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(arguments, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        try:
            yield process
        finally:
            process.kill()


def steps(path: Path) -> list[tuple[str, int]]:
    if not path.exists():
        return []
    lines = [line for line in path.read_bytes().splitlines(keepends=True) if line.endswith(b"\n")]
    return [(made["run_id"], made["step"]) for made in map(json.loads, lines)]


def committed(broker: Broker, group: str, topic: str) -> int:
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": group, "log_level": 0})
    try:
        return int(consumer.committed([TopicPartition(topic, 0)], timeout=30)[0].offset)
    finally:
        consumer.close()


def test_only_committed_results_are_taken_and_the_group_goes_on_where_it_was(broker: Broker, tmp_path: Path) -> None:
    topic, group, path = create_topic(broker.bootstrap), unique_name("sink"), tmp_path / "results.jsonl"
    produce_transaction(broker.bootstrap, topic, [record(1, 0.1)], commit=True)
    produce_transaction(broker.bootstrap, topic, [record(9, 0.9)], commit=False)
    once(broker, topic, group, "jsonl", "--path", str(path))
    assert steps(path) == [("run", 1)]
    assert committed(broker, group, topic) == 4  # past the markers too, so that no lag is left
    produce_transaction(broker.bootstrap, topic, [record(2, 0.2)], commit=True)
    once(broker, topic, group, "jsonl", "--path", str(path))
    assert steps(path) == [("run", 1), ("run", 2)]


def test_an_empty_topic_ends_a_sink_that_was_to_take_what_is_there(broker: Broker) -> None:
    assert once(broker, create_topic(broker.bootstrap, partitions=3), unique_name("sink"), "stdout").stdout == b""


def test_standard_output_has_each_result_once_over_restarts(broker: Broker) -> None:
    topic, group = create_topic(broker.bootstrap), unique_name("sink")
    produce(broker.bootstrap, topic, [record(1, 0.1)])
    first = once(broker, topic, group, "stdout").stdout
    produce(broker.bootstrap, topic, [record(2, 0.2)])
    second = once(broker, topic, group, "stdout").stdout
    assert [json.loads(line)["step"] for line in (first + second).splitlines()] == [1, 2]
    again = once(broker, topic, group, "stdout", "--all").stdout
    assert [json.loads(line)["step"] for line in again.splitlines()] == [1, 2]


def test_a_sink_killed_again_and_again_loses_and_doubles_nothing(broker: Broker, tmp_path: Path) -> None:
    topic, group, path = create_topic(broker.bootstrap, partitions=2), unique_name("sink"), tmp_path / "results.jsonl"
    arguments = command(
        broker, topic, "jsonl", "--path", str(path), "--group", group, "--kafka-config", "heartbeat.interval.ms=500"
    )
    for life in range(2):
        produce(
            broker.bootstrap,
            topic,
            [
                record(step, 0.5, run_id=f"run-{step % 2}", partition=step % 2)
                for step in range(life * 100, life * 100 + 100)
            ],
        )
        with running(arguments) as process:
            so_far = len(steps(path))
            wait_until(lambda: process.poll() is not None or len(steps(path)) > so_far, "a result of this life", 90)  # noqa: B023
            process.send_signal(signal.SIGKILL)
    once(broker, topic, group, "jsonl", "--path", str(path))
    found = steps(path)
    assert sorted(found) == sorted((f"run-{step % 2}", step) for step in range(200))


def test_two_sinks_of_a_group_share_the_partitions_and_each_result_is_taken_by_one(
    broker: Broker, tmp_path: Path
) -> None:
    topic, group = create_topic(broker.bootstrap, partitions=4), unique_name("sink")
    paths = [tmp_path / "a.jsonl", tmp_path / "b.jsonl"]
    commands = [command(broker, topic, "jsonl", "--path", str(path), "--group", group) for path in paths]

    def send(first: int) -> None:
        made = [record(step, 0.5, run_id=f"run-{step % 4}", partition=step % 4) for step in range(first, first + 40)]
        produce(broker.bootstrap, topic, made)

    def found() -> list[tuple[str, int]]:
        return sorted(steps(paths[0]) + steps(paths[1]))

    send(0)
    with running(commands[0]):
        wait_until(lambda: len(found()) == 40, "the first results", 60)
        with running(commands[1]) as second:
            sent = 40

            def has_both() -> bool:
                nonlocal sent
                if len(found()) >= sent:
                    send(sent)
                    sent += 40
                return bool(steps(paths[1])) and len(found()) >= sent

            wait_until(has_both, "results in both files", 60)
            second.send_signal(signal.SIGTERM)
            assert second.wait(30) == ExitCode.OK
            send(sent)
            sent += 40
            wait_until(lambda: len(found()) >= sent, "what the one that is left takes over", 60)
    assert found() == sorted((f"run-{step % 4}", step) for step in range(sent))


def test_sigterm_ends_it_cleanly(broker: Broker, tmp_path: Path) -> None:
    topic, path = create_topic(broker.bootstrap), tmp_path / "results.jsonl"
    produce(broker.bootstrap, topic, [record(1, 0.1)])
    with running(command(broker, topic, "jsonl", "--path", str(path), "--group", unique_name("sink"))) as process:
        wait_until(lambda: steps(path), "the result")
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == ExitCode.OK


def test_prometheus_shows_the_latest_step_after_every_start(broker: Broker) -> None:
    topic, group = create_topic(broker.bootstrap), unique_name("sink")
    produce(broker.bootstrap, topic, [record(1, 0.1), record(2, 0.25)])
    arguments = command(broker, topic, "prometheus", "--port", "0", "--group", group)
    for _ in range(2):
        with running(arguments) as process:
            assert process.stderr is not None
            port = next(made["port"] for made in map(json.loads, process.stderr) if "port" in made)

            def text(port: int = port) -> str:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
                    return str(answer.read().decode())

            line = 'stream_metrics_result{metric="episode_raw_reward",run_id="run",scope="rollout"} 0.25'
            wait_until(lambda: line in text(), "the gauge", 60)  # noqa: B023
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == ExitCode.OK


def test_a_topic_that_is_missing_has_exit_code_3_and_a_flag_that_is_wrong_2(broker: Broker, tmp_path: Path) -> None:
    missing = subprocess.run(
        command(broker, unique_name("missing"), "stdout"), capture_output=True, timeout=60, check=False
    )
    assert missing.returncode == ExitCode.KAFKA_REFUSED
    assert b"there is no topic" in missing.stderr
    topic = create_topic(broker.bootstrap)
    refused = subprocess.run(
        command(broker, topic, "jsonl", "--path", str(tmp_path / "no" / "such" / "folder")),
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert refused.returncode == ExitCode.WRONG_SETTINGS
    assert b"can't be written" in refused.stderr


@pytest.mark.parametrize("has_more", [True, False], ids=["with results to give", "with nothing to give"])
def test_a_wandb_that_is_silent_does_not_keep_its_sink_from_ending(
    broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_more: bool
) -> None:
    pytest.importorskip("wandb", reason="the sink wandb's library isn't installed")
    topic, group = create_topic(broker.bootstrap), unique_name("sink")
    with running_server() as server:
        monkeypatch.setenv("WANDB_BASE_URL", server.url)
        monkeypatch.setenv("WANDB_API_KEY", KEY)
        monkeypatch.setenv("TMPDIR", str(tmp_path))
        produce(broker.bootstrap, topic, [record(1, 0.5)])
        with running(command(broker, topic, "wandb", "--group", group)) as process:
            wait_until(lambda: committed(broker, group, topic) == 1, "the first result", 90)
            server.may_answer.clear()
            server.has_been_asked.clear()
            if has_more:
                produce(broker.bootstrap, topic, [record(2, 0.5)])
                assert server.has_been_asked.wait(60)
            began = time.monotonic()
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == ExitCode.OK
            took = time.monotonic() - began
        assert took < 15, f"{took:.1f} s"  # it takes 7; more for a busy machine
        assert not list(tmp_path.glob("stream-metrics-wandb-*"))
        server.may_answer.set()
        produce(broker.bootstrap, topic, [record(3, 0.5)])
        once(broker, topic, group, "wandb")
        shown = [row["rollout/step"] for run in server.runs.values() for row in run.rows]
    assert shown == ([1, 2, 3] if has_more else [1, 3])


def test_wandb_has_each_result_once_over_kills_and_a_wrong_key_has_exit_code_2(
    broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("wandb", reason="the sink wandb's library isn't installed")
    topic, group = create_topic(broker.bootstrap), unique_name("sink")
    arguments = command(broker, topic, "wandb", "--group", group, "--kafka-config", "heartbeat.interval.ms=500")
    with running_server() as server:
        monkeypatch.setenv("WANDB_BASE_URL", server.url)
        monkeypatch.setenv("WANDB_API_KEY", KEY)

        def shown() -> list[int]:
            return [row["rollout/step"] for run in server.runs.values() for row in run.rows]

        for life in range(2):
            produce(broker.bootstrap, topic, [record(step, 0.5) for step in range(20 * life, 20 * life + 20)])
            with running(arguments) as process:
                wait_until(lambda: process.poll() is not None or len(shown()) > 20 * life, "results of this life", 90)  # noqa: B023
                process.send_signal(signal.SIGKILL)
        once(broker, topic, group, "wandb")
        assert shown() == list(range(40))
        monkeypatch.setenv("WANDB_API_KEY", "w" * 40)
        refused = subprocess.run(arguments, capture_output=True, timeout=60, check=False)
    assert refused.returncode == ExitCode.WRONG_SETTINGS
    assert b"set WANDB_API_KEY" in refused.stderr
