"""`stream-metrics run --sink`: the results arrive, and whatever becomes of the sink, the sidecar doesn't mind."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from stream_metrics.exit_codes import ExitCode
from stream_metrics.testing import close, sample
from support.brokers import Broker
from support.operations import Operated, operated
from support.waiting import wait_until


@pytest.fixture
def operator(broker: Broker, tmp_path: Path) -> Iterator[Operated]:
    with operated(broker.bootstrap, tmp_path) as made:
        yield made


def steps(path: Path) -> list[int]:
    if not path.exists():
        return []
    return [json.loads(line)["step"] for line in path.read_bytes().splitlines(keepends=True) if line.endswith(b"\n")]


def children(pid: int) -> list[int]:
    """Returns the sinks of a process."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            if entry.name.isdecimal() and parent == pid and b"\0sink\0" in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
        except (OSError, IndexError, ValueError):
            continue
    return found


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"  # whoever takes orphans over may be slow to see that they are dead


def give_step(operator: Operated, step: int) -> None:
    operator.send(sample(step, 1.0), close(step), run_id="run")


def test_results_reach_the_sinks_which_end_with_the_sidecar(operator: Operated, tmp_path: Path) -> None:
    paths = [tmp_path / "a b.jsonl", tmp_path / "c.jsonl"]
    sinks = [f"jsonl --path '{path}' --group {operator.deployment.group}-{path.name[0]}" for path in paths]
    process = operator.start_ready(sink=sinks)
    for step in (1, 2):
        give_step(operator, step)
        for path in paths:
            operator.wait_until(lambda: steps(path) == list(range(1, step + 1)), f"step {step} in {path}", 60)  # noqa: B023
    running = children(process.pid)
    assert len(running) == 2
    assert process.terminate(40) == ExitCode.OK
    assert not any(map(is_running, running))


def test_a_sink_that_always_fails_is_begun_again_and_stops_nothing(operator: Operated, tmp_path: Path) -> None:
    process = operator.start_ready(sink=[f"jsonl --path {tmp_path}/no/such/folder/x"])
    operator.wait_until(lambda: operator.metric("sink_restarts_total") >= 2, "two restarts", 60)
    give_step(operator, 1)
    operator.wait_for_results(1, "run")
    assert operator.get("/readyz")[0] == operator.get("/healthz")[0] == 200
    ends = process.said("a sink ended")
    assert {line["exit_code"] for line in ends} == {ExitCode.WRONG_SETTINGS}
    waits = [line["after_seconds"] for line in ends]
    assert waits == sorted(waits) and waits[1] > waits[0]
    assert any("can't be written" in line["message"] and line["sink"] == "jsonl" for line in process.log())
    assert process.terminate(40) == ExitCode.OK


def test_a_sink_that_is_killed_goes_on_where_it_was(operator: Operated, tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    process = operator.start_ready(sink=[f"jsonl --path {path} --group {operator.deployment.group}-sink"])
    give_step(operator, 1)
    operator.wait_until(lambda: steps(path) == [1], "the first step", 60)
    (first,) = children(process.pid)
    os.kill(first, signal.SIGKILL)
    give_step(operator, 2)
    operator.wait_until(lambda: steps(path) == [1, 2], "the second step", 60)
    assert process.said("a sink ended")[0]["signal"] == "SIGKILL"
    assert operator.metric("sink_restarts_total") == 1


def test_no_sink_outlives_a_sidecar_that_is_killed(operator: Operated, tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    process = operator.start_ready(sink=[f"jsonl --path {path} --group {operator.deployment.group}-sink"])
    give_step(operator, 1)
    operator.wait_until(lambda: steps(path) == [1], "the first step", 60)
    (orphan,) = children(process.pid)
    process.kill()
    wait_until(lambda: not is_running(orphan), "the sink has ended", 40)


def test_a_sink_that_hangs_delays_the_end_by_seconds_only(operator: Operated, tmp_path: Path) -> None:
    process = operator.start_ready(
        sink=[f"jsonl --path {tmp_path}/results.jsonl --group {operator.deployment.group}-sink"]
    )
    (sink,) = wait_until(lambda: children(process.pid), "the sink")
    os.kill(sink, signal.SIGSTOP)
    give_step(operator, 1)
    operator.wait_for_results(1, "run")
    assert process.terminate(40) == ExitCode.OK
    assert not is_running(sink)
