"""The demo as users start it: what it shows is what a direct computation gives, and it leaves nothing behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from stream_metrics.demo.simulation import LATE_EVERY, direct_rewards, simulate_step
from stream_metrics.exit_codes import ExitCode
from stream_metrics.testing import MemoryLog
from support.brokers import Broker, _free_ports
from support.topics import create_topic, read_topic, unique_name
from support.waiting import wait_until

SEED = 11
STEPS = LATE_EVERY + 1  # so that one step is corrected
ROW = re.compile(r" *(\d+) +(\d+) +(\d+) +(\d\.\d{3}) +(\d\.\d{3}) ([+-]\d\.\d{3}) .*│(.*)")


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "stream_metrics", "demo", "--seed", str(SEED), *arguments]


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONIOENCODING": "utf-8", "PYTHONUNBUFFERED": "1"}


def run_demo(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    pytest.importorskip("rich", reason="the extra `demo` isn't installed")
    pytest.importorskip("matplotlib", reason="the extra `demo` isn't installed")
    return subprocess.run(
        command("--fast", "--steps", str(STEPS), *arguments),
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def rows_of(output: str) -> Iterator[tuple[int, int, int, str, str, str, str]]:
    for line in output.splitlines():
        match = ROW.fullmatch(line)
        if match:
            step, samples, rollouts, *rest = match.groups()
            yield int(step), int(samples), int(rollouts), rest[0], rest[1], rest[2], rest[3].strip(" █")


def check_output(ended: subprocess.CompletedProcess[str], folder: Path) -> None:
    assert ended.returncode == ExitCode.OK, ended.stdout + ended.stderr
    assert ended.stderr == ""
    rows = list(rows_of(ended.stdout))
    last = {row[0]: row for row in rows}
    assert sorted(last) == list(range(STEPS))
    for number, (_, samples, rollouts, by_sample, by_rollout, gap, _) in last.items():
        fields = simulate_step(SEED, number).all_fields
        expected_by_sample, expected_by_rollout = direct_rewards(fields)
        assert samples == len(fields)
        assert rollouts == len({(one["group_index"], one["rollout_id"]) for one in fields})
        assert by_sample == f"{expected_by_sample:.3f}"
        assert by_rollout == f"{expected_by_rollout:.3f}"
        assert gap == f"{expected_by_sample - expected_by_rollout:+.3f}"
    late = simulate_step(SEED, LATE_EVERY - 2)
    assert last[late.step][-1] == f"correction +{len(late.late)}"
    assert len(rows) == STEPS + 1
    assert "all equal to a direct computation" in ended.stdout
    plot = folder / "stream-metrics-demo.png"
    assert f"Plot: {plot}" in ended.stdout
    assert plot.read_bytes().startswith(b"\x89PNG")


def test_on_the_embedded_broker_it_shows_the_right_numbers_and_says_that_it_is_a_mock(tmp_path: Path) -> None:
    ended = run_demo(tmp_path)
    check_output(ended, tmp_path)
    assert "librdkafka's mock cluster" in ended.stdout
    assert "for show only" in ended.stdout


def test_on_a_real_broker_it_shows_the_same_and_takes_its_topics_away(broker: Broker, tmp_path: Path) -> None:
    ended = run_demo(tmp_path, "--bootstrap-servers", broker.bootstrap)
    check_output(ended, tmp_path)
    run = re.search(r"Run (demo-\w+):", ended.stdout)
    assert run is not None
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})

    def is_gone() -> bool:
        return not any(name.startswith(run[1]) for name in admin.list_topics(timeout=10).topics)

    wait_until(is_gone, f"topics of {run[1]} to be deleted")


def test_interrupted_it_ends_well_and_takes_the_sidecar_with_it() -> None:
    pytest.importorskip("rich", reason="the extra `demo` isn't installed")
    pytest.importorskip("matplotlib", reason="the extra `demo` isn't installed")
    with subprocess.Popen(
        command("--steps", "1000"),
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if ROW.fullmatch(line.rstrip("\n")):
                break
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does: the sidecar gets it too
        rest, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (ExitCode.OK, "")
    assert "Interrupted after" in rest

    def is_group_gone() -> bool:
        try:
            os.killpg(process.pid, 0)
        except ProcessLookupError:
            return True
        return False

    wait_until(is_group_gone, "the end of all processes of the demo")


def test_the_page_shows_the_run_and_stays_until_it_is_interrupted(tmp_path: Path) -> None:
    pytest.importorskip("rich", reason="the extra `demo` isn't installed")
    pytest.importorskip("matplotlib", reason="the extra `demo` isn't installed")
    (port,) = _free_ports(1)
    with subprocess.Popen(
        command("--fast", "--steps", str(STEPS), "--page", str(port)),
        cwd=tmp_path,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        said = ""
        for line in process.stdout:
            said += line
            if line.startswith("The page stays until Ctrl-C: "):
                break
        address = line.split()[-1]
        with urllib.request.urlopen(address.partition("#")[0], timeout=30) as answer:
            assert answer.status == 200
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/stream", timeout=30) as stream:
            text = ""
            while address.partition("run=")[2].partition("&")[0] not in text:
                text += stream.readline().decode()
        os.killpg(process.pid, signal.SIGINT)
        rest, errors = process.communicate(timeout=60)
    assert (process.returncode, rest, errors) == (ExitCode.OK, "", "")
    assert f"Live page: {address}" in said
    assert "all equal to a direct computation" in said
    assert (tmp_path / "stream-metrics-demo.png").exists()


def test_a_broker_that_is_not_there_is_said_and_refused(tmp_path: Path) -> None:
    ended = run_demo(tmp_path, "--bootstrap-servers", "127.0.0.1:1")
    assert ended.returncode == ExitCode.KAFKA_REFUSED
    assert "no answer from the broker at 127.0.0.1:1" in ended.stderr


def test_the_producer_alone_sends_whole_steps(broker: Broker) -> None:
    topic = create_topic(broker.bootstrap)
    arguments = ("--produce-only", "--fast", "--steps", "3", "--input-topic", topic)
    ended = subprocess.run(
        command(*arguments, "--bootstrap-servers", broker.bootstrap),
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == ExitCode.OK, ended.stderr
    log = MemoryLog(topic)
    for record in read_topic(broker.bootstrap, topic):
        log.append(record.value)
    results = log.fold().results
    assert [(one.step, one.complete) for one in results] == [(0, True), (1, True), (2, True)]
    for result in results:
        _, by_rollout = direct_rewards(simulate_step(SEED, result.step).all_fields)
        assert result.metrics["rollout/episode_raw_reward"] == pytest.approx(by_rollout, rel=0, abs=1e-12)


def test_the_producer_alone_waits_for_its_topic_and_ends_when_it_is_told(broker: Broker) -> None:
    topic = unique_name("not-yet")
    with subprocess.Popen(
        command("--produce-only", "--input-topic", topic, "--bootstrap-servers", broker.bootstrap),
        env=environment(),
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith(f"demo: waiting for topic {topic}")
        process.send_signal(signal.SIGTERM)
        rest, _ = process.communicate(timeout=60)
    assert (process.returncode, rest) == (ExitCode.OK, "demo: stopped\n")
