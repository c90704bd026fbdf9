"""Events a second from a full topic to readable results: the sidecar and its peers in turn, each result checked.

    python benchmarks/throughput.py [--samples 2000000] [--rounds 3] [--only sidecar,plain_fast]

The clock starts when the partition is assigned (Kafka Streams: with its first record) and stops when a `read_committed`
reader has the last result. All of the sidecar is on: exactly once, dead letters, the whole catalogue.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import kafka_streams
import load
import rig

PEERS = rig.HERE / "peers"
OURS: dict[str, dict[str, Any]] = {"sidecar": {}, "sidecar_pure": {"pure_python": True}}
"""The sidecar's ways to run, with their settings."""

BARE = "plain_fast"
STREAMS = "kafka_streams"
RAW = "raw"


def run_sidecar(
    bootstrap: str, topic: load.Topic, steps: Sequence[load.Step], folder: Path, **settings: Any
) -> dict[str, Any]:
    output, letters = (rig.create_topic(bootstrap, f"bench-{kind}") for kind in ("out", "letters"))
    watcher = rig.Watcher(bootstrap, output)
    group = rig.unique_name("bench")
    process = rig.sidecar(bootstrap, topic.name, output, letters, group, folder / "sidecar.log", **settings)
    try:
        ended = watcher.wait_for(len(steps), process)
        began = rig.began(process.wait_for("partitions assigned"))
        return measured(process, topic, ended - began, is_right(watcher, steps, prefix="rollout/"))
    finally:
        process.end()
        watcher.close()
        rig.delete_topics(bootstrap, [output, letters])


def run_peer(
    command: Sequence[str], bootstrap: str, topic: load.Topic, steps: Sequence[load.Step], folder: Path
) -> dict[str, Any]:
    """Runs a program that takes addresses as arguments, prints when it began, and stays until its input ends."""
    output, group = rig.create_topic(bootstrap, "bench-out"), rig.unique_name("bench")
    watcher = rig.Watcher(bootstrap, output)
    arguments = [bootstrap, topic.name, output, group, str(topic.events), str(len(steps))]
    process = rig.Process([*command, *arguments], folder / "peer.log", {"LC_ALL": "C"})
    try:
        said = process.wait_for('"began"')
        if "ended" in said:
            return measured(process, topic, said["ended"] - said["began"], None)
        ended = watcher.wait_for(len(steps), process)
        return measured(process, topic, ended - said["began"], is_right(watcher, steps, prefix=""))
    finally:
        process.end()
        watcher.close()
        rig.delete_topics(bootstrap, [output])
        rig.delete_topics(bootstrap, kafka_streams.internal_topics(bootstrap, group))


def measured(process: rig.Process, topic: load.Topic, seconds: float, right: bool | None) -> dict[str, Any]:
    return {
        "seconds": seconds,
        "cpu_seconds": process.cpu_seconds(),
        "peak_mib": process.mib(),
        "events": topic.events,
        "is_right": right,
    }


def is_right(watcher: rig.Watcher, steps: Sequence[load.Step], prefix: str) -> bool:
    """Returns whether each step came out once and as expected."""
    made = {}
    for _, _, value in watcher.seen:
        result = json.loads(value)
        made[result["step"]] = result.get("metrics", result)
        if not result.get("complete", True):
            return False
    return len(watcher.seen) == len(made) == len(steps) and all(
        made[step.number][f"{prefix}num_training_samples"] > 0
        and made[step.number].get(f"{prefix}num_rollouts", step.num_rollouts) == step.num_rollouts
        and abs(made[step.number][f"{prefix}episode_raw_reward"] - step.episode_raw_reward) < 1e-9
        for step in steps
    )


def commands(form: load.Form, only: Sequence[str]) -> dict[str, list[str]]:
    """Returns the peers that can read this form, with their commands; the sidecar's are empty."""
    made: dict[str, list[str]] = {
        "sidecar": [],
        BARE: [sys.executable, str(PEERS / "plain_fast.py")],
        RAW: [sys.executable, str(PEERS / "raw.py")],
    }
    if form in (load.JSON, load.CLIENTS):
        made["sidecar_pure"] = []
    if form == load.JSON and (not only or STREAMS in only):
        streams = kafka_streams.command()
        if streams is not None:
            made[STREAMS] = streams
    return {name: command for name, command in made.items() if not only or name in only}


def measure(bootstrap: str, samples: int, rounds: int, forms: Sequence[load.Form], only: Sequence[str] = ()) -> list:
    """Returns a row for each form and peer."""
    topics, steps = load.write(bootstrap, samples, forms)
    found: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as folder:
        for number in range(rounds):
            for topic in topics:
                peers = list(commands(topic.form, only).items())
                first = number % len(peers)  # nobody always comes first, or always after the same one
                for name, command in peers[first:] + peers[:first]:
                    if name in OURS:
                        one = run_sidecar(bootstrap, topic, steps, Path(folder), **OURS[name])
                    else:
                        one = run_peer(command, bootstrap, topic, steps, Path(folder))
                    found[topic.form.name, name].append(one)
                    print(
                        f"round {number + 1}  {topic.form.name:32} {name:14} {samples / one['seconds']:>12,.0f}/s  "
                        f"{one['cpu_seconds'] / samples * 1e6:5.2f} µs CPU  {one['peak_mib']:5.0f} MiB  "
                        f"{'' if one['is_right'] is None else 'right' if one['is_right'] else 'WRONG'}",
                        flush=True,
                    )
    rig.delete_topics(bootstrap, [topic.name for topic in topics])
    return [row(form, name, samples, ones) for (form, name), ones in found.items()]


def row(form: str, name: str, samples: int, ones: Sequence[dict[str, Any]]) -> dict[str, Any]:
    rates = [samples / one["seconds"] for one in ones]
    return {
        "form": form,
        "name": name,
        "samples_per_second": round(statistics.median(rates)),
        "by_round": [round(rate) for rate in rates],
        "peak_mib": round(max(one["peak_mib"] for one in ones)),
        "cpu_us": round(statistics.median(one["cpu_seconds"] / samples * 1e6 for one in ones), 2),
        "is_right": None if ones[0]["is_right"] is None else all(one["is_right"] for one in ones),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--samples", type=int, default=2_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="", help="peers, separated by commas")
    parser.add_argument("--forms", default="0,1,2,3,4", help="numbers of forms, separated by commas")
    options = parser.parse_args()
    forms = [load.FORMS[int(number)] for number in options.forms.split(",")]
    only = [name for name in options.only.split(",") if name]
    with rig.broker() as (bootstrap, _):
        for one in measure(bootstrap, options.samples, options.rounds, forms, only):
            print(json.dumps(one))


if __name__ == "__main__":
    main()
