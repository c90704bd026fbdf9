"""A sidecar killed with a million samples open: how fast it replays, and how soon the next result is there.

    python benchmarks/recovery.py [--samples 1000000]

Fifty steps are open when it is killed with SIGKILL. The replacement has the same instance id, so that it need not wait
for the group's session to time out; its clock starts with its process and ends where a `read_committed` reader has the
result of a step that was closed meanwhile, all steps counted in. The live rate is of the same samples before the kill.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
import time
from pathlib import Path
from typing import Any

import load
import rig

OTHER_RUN = "other"


def measure(bootstrap: str, samples: int) -> dict[str, Any]:
    """Returns the two rates and the seconds from start to result."""
    topics = source, output, letters = [
        rig.create_topic(bootstrap, f"bench-{kind}") for kind in ("in", "out", "letters")
    ]
    writer, watcher = load.Writer(bootstrap), rig.Watcher(bootstrap, output)
    steps = []
    for step in load.steps(samples):
        *values, marker = load.records(step, load.JSON)
        for value in values:
            writer.write(source, value)
        writer.serve()
        steps.append((step._replace(samples=[]), marker))
    _write_small_step(writer, source, 0)
    writer.flush()
    group = rig.unique_name("bench")
    with tempfile.TemporaryDirectory() as folder:
        first = rig.sidecar(bootstrap, source, output, letters, group, Path(folder) / "first", instance_id="a")
        try:
            live_seconds = watcher.wait_for(1, first) - rig.began(first.wait_for("partitions assigned"))
            first.wait_for("step closed")  # said once it is committed
        finally:
            first.kill()
        writer.write(source, steps[0][1])
        writer.flush()
        started = time.time()
        second = rig.sidecar(bootstrap, source, output, letters, group, Path(folder) / "second", instance_id="a")
        try:
            seconds_to_result = watcher.wait_for(2, second) - started
            restored = second.wait_for("partition restored")
            for _, marker in steps[1:]:
                writer.write(source, marker)
            writer.flush()
            watcher.wait_for(1 + len(steps), second)
            peak_mib = second.mib()
        finally:
            second.end()
            watcher.close()
            rig.delete_topics(bootstrap, topics)
    _check(watcher, [step for step, _ in steps])
    live, replay = samples / live_seconds, restored["replayed"] / restored["seconds"]
    return {
        "open_samples": samples,
        "live_per_second": round(live),
        "replay_per_second": round(replay),
        "ratio": round(replay / live, 2),
        "seconds_to_result": round(seconds_to_result, 2),
        "peak_mib": round(peak_mib),
    }


def _write_small_step(writer: load.Writer, source: str, number: int) -> None:
    for step in load.steps(10):
        for value in load.records(step._replace(number=number), load.JSON, OTHER_RUN):
            writer.write(source, value)


def _check(watcher: rig.Watcher, steps: list[load.Step]) -> None:
    results = {json.loads(key or b"[]")[2]: json.loads(value) for _, key, value in watcher.seen[1:]}
    for step in steps:
        metrics = results[step.number]["metrics"]
        is_right = math.isclose(metrics["rollout/episode_raw_reward"], step.episode_raw_reward, rel_tol=1e-9)
        if not is_right or metrics["rollout/num_rollouts"] != step.num_rollouts or len(results) != len(steps):
            raise RuntimeError(f"a wrong result: {results[step.number]}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--samples", type=int, default=1_000_000)
    options = parser.parse_args()
    with rig.broker() as (bootstrap, _):
        print(json.dumps(measure(bootstrap, options.samples)))


if __name__ == "__main__":
    main()
