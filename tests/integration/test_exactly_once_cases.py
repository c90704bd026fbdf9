"""Every case of `tests/cases` through a real broker and the real process, and again through `dump` and `replay`.

A case has a partition of its own, so that runs of cases don't meet; those with the same settings share a sidecar.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support import cases
from support.brokers import Broker
from support.oracle import Published, Replayed, assert_exact, dumped, published, replayed
from support.sidecar_process import Deployment, deployment, flags, plain_environment
from support.topics import NewRecord, produce, read_topic

CASES = {name: cases.load(name) for name in cases.NAMES}


class Outcome:
    """What became of the cases of one group of settings; a case's partition is its place in `names`."""

    def __init__(self, deployed: Deployment, names: list[str], log: Path) -> None:
        self.deployed = deployed
        self.names = names
        self.log = log
        self.published: Published = published(deployed)
        self.replayed: Replayed = replayed(deployed, log)


@pytest.fixture(scope="module")
def outcomes(broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Outcome]:
    groups: dict[str, list[str]] = {}
    for name, case in CASES.items():
        groups.setdefault(json.dumps(case.get("config", {}), sort_keys=True), []).append(name)
    made: dict[str, Outcome] = {}
    for number, (config, names) in enumerate(groups.items()):
        settings = json.loads(config)
        folder = tmp_path_factory.mktemp(f"cases-{number}")
        with deployment(broker.bootstrap, folder, len(names), commit_interval=0.2, **settings) as deployed:
            deployed.start()
            records = [
                NewRecord(value, key=b"case", partition=partition, headers=headers or (), timestamp_ms=unix_ms)
                for partition, name in enumerate(names)
                for value, headers, unix_ms in cases.values_of(CASES[name])
            ]
            produce(broker.bootstrap, deployed.input_topic, records)
            deployed.wait_until_all_is_committed()
            outcome = Outcome(deployed, names, dumped(deployed))
            made |= dict.fromkeys(names, outcome)
    return made


@pytest.mark.parametrize("name", cases.NAMES)
def test_the_broker_shows_what_the_case_expects(outcomes: dict[str, Outcome], name: str) -> None:
    outcome, case = outcomes[name], CASES[name]
    partition = outcome.names.index(name)
    got = outcome.published
    on_time = [result for _, value in got.on_time if (result := json.loads(value))["log"]["partition"] == partition]
    corrections = [
        result for value in got.corrections.values() if (result := json.loads(value))["log"]["partition"] == partition
    ]
    wanted_on_time, wanted_corrections = _split(case["expect"].get("results", []))
    # Those of different commits have no order among them; replay gives them in the order of closing.
    corrections.sort(key=lambda result: result["log"]["close_offset"])
    cases.assert_results(on_time, {"expect": {"results": wanted_on_time}})
    cases.assert_results(corrections, {"expect": {"results": wanted_corrections}})
    letters = {
        (offset, reason): count for (where, offset, reason), count in got.dead_letters.items() if where == partition
    }
    assert letters == {(one["record"], one["reason"]): 1 for one in case["expect"].get("dead_letters", [])}


@pytest.mark.parametrize("name", cases.NAMES)
def test_a_dump_of_the_case_replays_to_what_it_expects(outcomes: dict[str, Outcome], name: str) -> None:
    outcome, case = outcomes[name], CASES[name]
    partition = outcome.names.index(name)
    lines = [
        *outcome.replayed.on_time.get(partition, []),
        *(line for line in outcome.replayed.corrections.values() if json.loads(line)["log"]["partition"] == partition),
    ]
    wanted_on_time, wanted_corrections = _split(case["expect"].get("results", []))
    cases.assert_results(
        [json.loads(line) for line in lines], {"expect": {"results": wanted_on_time + wanted_corrections}}
    )


def test_what_all_cases_publish_is_their_replay_byte_for_byte(outcomes: dict[str, Outcome]) -> None:
    for outcome in {id(one): one for one in outcomes.values()}.values():
        got = assert_exact(outcome.deployed, outcome.log)
        assert got.on_time


def test_dump_piped_into_replay_gives_the_output_topic(broker: Broker, outcomes: dict[str, Outcome]) -> None:
    outcome = outcomes["late_sample_corrects"]
    program = [sys.executable, "-m", "stream_metrics"]
    where = ["--bootstrap-servers", broker.bootstrap, "--input-topic", outcome.deployed.input_topic]
    environment = plain_environment()
    log = subprocess.run(
        [*program, "dump", *where], check=True, capture_output=True, env=environment, timeout=60
    ).stdout
    again = subprocess.run(
        [*program, "replay", "-", *flags(outcome.deployed.fold_settings())],
        input=log,
        check=True,
        capture_output=True,
        env=environment,
        timeout=60,
    ).stdout
    lines = again.splitlines()
    visible = [record.value or b"" for record in read_topic(broker.bootstrap, outcome.deployed.output_topic)]
    for partition in range(outcome.deployed.partitions):
        assert _on_time(lines, partition) == _on_time(visible, partition)
    assert (
        sum(len(_on_time(lines, partition)) for partition in range(outcome.deployed.partitions))
        > len(outcome.names) / 2
    )


def test_a_dumped_log_that_is_produced_again_gives_the_same_numbers(
    broker: Broker, outcomes: dict[str, Outcome], tmp_path: Path
) -> None:
    """Another topic, other offsets, another sidecar: only the result's `log` may differ."""
    outcome = outcomes["late_sample_corrects"]
    with deployment(broker.bootstrap, tmp_path, outcome.deployed.partitions, commit_interval=0.2) as again:
        again.start()
        records = read_topic(broker.bootstrap, outcome.deployed.input_topic)
        produce(
            broker.bootstrap,
            again.input_topic,
            [NewRecord(one.value, one.key, one.partition, one.headers, one.timestamp_ms) for one in records],
        )
        again.wait_until_all_is_committed()
        got = assert_exact(again, dumped(again))

    def numbers(values: list[bytes]) -> list[dict[str, Any]]:
        return sorted(
            ({**json.loads(value), "log": json.loads(value)["log"] | {"topic": ""}} for value in values), key=json.dumps
        )

    first = outcome.published
    assert numbers([value for _, value in got.on_time]) == numbers([value for _, value in first.on_time])
    assert numbers(list(got.corrections.values())) == numbers(list(first.corrections.values()))


def _split(results: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Returns the on-time results and each step's last correction."""
    on_time: list[dict[str, Any]] = []
    corrections: dict[Any, dict[str, Any]] = {}
    seen = set()
    for result in results:
        step = (result.get("run_id"), result.get("scope"), result.get("attempt"), result["step"])
        if step in seen:
            corrections[step] = result
        else:
            seen.add(step)
            on_time.append(result)
    return on_time, list(corrections.values())


def _on_time(lines: list[bytes], partition: int) -> list[bytes]:
    return [
        line
        for line in lines
        if (result := json.loads(line))["log"]["partition"] == partition and not result["correction"]
    ]
