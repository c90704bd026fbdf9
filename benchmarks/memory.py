"""Resident memory over many steps. Prints a table with ratios to the memory after the warm-up; never fails on one.

    python benchmarks/memory.py [--steps 10000] [--bootstrap-servers HOST:PORT]
    python benchmarks/memory.py --open typical|full|ids

Without a broker the fold runs in this process; with one, the real sidecar as a process of its own, on topics that are
made for it. Steps of 1 to 1,000 samples in rollouts of 1 to 100, log-uniform, eight runs at a time and a new one for
each 20 steps, so that runs too have to be forgotten; some samples late, resent, or of an attempt that is over.
The warm-up is as long as it takes until as many runs have been as are ever tracked.

`--open` prints what an open sample takes, with so few rollouts that their keys are nothing: `typical` has what most
samples have, `full` all that the catalogue reads, and `ids` is `full` with a `sample_id`, which must be remembered.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from stream_metrics.core.fold import Fold
from stream_metrics.core.record import CREATE_TIME, LogRecord
from stream_metrics.core.settings import FoldSettings
from stream_metrics.sidecar.loop import BATCH

ROWS = 10
PARALLEL_RUNS = 8
STEPS_OF_A_RUN = 20
NAMES = ("math", "code", "search", "chat")


def events(steps: int) -> Iterator[list[dict[str, Any]]]:
    """Yields the events of one step after another."""
    rng = random.Random(1)
    done = [0] * PARALLEL_RUNS
    before: list[dict[str, Any]] = []
    for number in range(steps):
        slot = number % PARALLEL_RUNS
        step = done[slot] % STEPS_OF_A_RUN
        run = {"run_id": f"run-{slot}-{done[slot] // STEPS_OF_A_RUN}", "attempt": step // 15}
        done[slot] += 1
        made: list[dict[str, Any]] = []
        size = round(10 ** rng.uniform(0, 3))
        while len(made) < size:
            rollout, length = rng.getrandbits(60), round(10 ** rng.uniform(0, 2))
            name = f"rollout-{rollout:x}" if rng.random() < 0.5 else rollout
            for _ in range(min(length, size - len(made))):
                made.append(
                    {
                        "type": "sample", **run, "step": step, "group_index": rollout % 64, "rollout_id": name,
                        "sample_id": f"{rng.getrandbits(80):x}", "reward": rng.random(), "status": "completed",
                        "response_length": rng.randrange(8000), "data_source": rng.choice(NAMES),
                        "values": {"turns": rng.randrange(30)},
                    }
                )  # fmt: skip
        resent = rng.sample(made, len(made) // 20)
        late = before[-3:] if rng.random() < 0.3 else []
        yield [*made, *resent, *late, {"type": "close", **run, "step": step}]
        before = [one | {"sample_id": f"late-{one['sample_id']}"} for one in made]


def warm_up_of(steps: int) -> int:
    """Returns after how many steps memory is to be flat."""
    return min(FoldSettings().max_runs * STEPS_OF_A_RUN, steps // 2)


def resident_mib(pid: int | str = "self") -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError(f"process {pid} has no resident memory")


class Table:
    """Rows as they come; the ratio is to the last row of the warm-up."""

    def __init__(self, warm_up: int, *columns: str) -> None:
        self._warm_up = warm_up
        self._warm: float | None = None
        self._last = self._most = 0.0
        print("".join(f"{name:>12}" for name in ("steps", "events", "MiB", "ratio", *columns)), flush=True)

    def add(self, steps: int, count: int, mib: float, *more: int) -> None:
        if self._warm is None and steps >= self._warm_up:
            self._warm = self._most = mib
        ratio = "warming up" if self._warm is None else f"{mib / self._warm:.3f}"
        if self._warm is not None:
            self._last, self._most = mib, max(mib, self._most)
        print(f"{steps:>12,}{count:>12,}{mib:>12.1f}{ratio:>12}" + "".join(f"{one:>12,}" for one in more), flush=True)

    def end(self) -> dict[str, float]:
        """Prints and returns the last row and the highest, by the one after the warm-up."""
        assert self._warm is not None
        print(f"end / after warm-up {self._last / self._warm:.3f}, most / after warm-up {self._most / self._warm:.3f}")
        return {
            "warm_mib": round(self._warm, 1),
            "end_ratio": round(self._last / self._warm, 3),
            "most_ratio": round(self._most / self._warm, 3),
        }


def bytes_a_sample(kind: str, samples: int = 1_000_000) -> float:
    """Returns by how much this process grows for each sample that is open. To be asked of a fresh process."""
    fold = Fold(FoldSettings(), "samples", 0)

    def feed(first: int, count: int) -> None:
        for start in range(first, first + count, BATCH):
            fold.feed(
                [LogRecord(value=open_sample(number, kind), offset=number) for number in range(start, start + BATCH)]
            )

    feed(0, 10 * BATCH)
    gc.collect()
    before = resident_mib()
    feed(10 * BATCH, samples)
    gc.collect()
    return (resident_mib() - before) * 2**20 / samples


def open_sample(number: int, kind: str) -> bytes:
    rollout = number % 1_000
    made: dict[str, Any] = {
        "type": "sample", "run_id": "r", "step": 0, "group_index": rollout // 8, "index": number, "rollout_id": rollout,
        "reward": number % 201 / 100, "response_length": 64 + number % 8000, "status": "completed",
    }  # fmt: skip
    if kind != "typical":
        made |= {
            "position": number, "metadata": {"raw_reward": 0.5}, "data_source": NAMES[number % 4],
            "weight_versions": [number // 5000], "values": {"turns": number % 30},
        }  # fmt: skip
    if kind == "ids":
        made["sample_id"] = f"{number:x}"
    return json.dumps(made).encode()


def through_the_fold(steps: int, warm_up: int) -> None:
    print("the fold, in this process")
    table = Table(warm_up, "windows", "samples", "runs")
    fold = Fold(FoldSettings(), "samples", 0)
    offset = results = 0
    for number, made in enumerate(events(steps), 1):
        records = [
            LogRecord(value=json.dumps(event).encode(), offset=offset + place, timestamp=(CREATE_TIME, offset + place))
            for place, event in enumerate(made)
        ]
        offset += len(records)
        fold.feed(records)
        results += len(fold.take_effects()) + len(fold.take_corrections())
        fold.note(offset).encode()
        if number % (steps // ROWS) == 0:
            gc.collect()
            windows = sum(1 for _ in fold.windows())
            runs = sum(1 for _ in fold.runs())
            table.add(number, offset, resident_mib(), windows, fold.held_samples, runs)
    table.end()


def through_a_sidecar(steps: int, warm_up: int, bootstrap: str) -> dict[str, float]:
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
    from support.oracle import published
    from support.sidecar_process import deployment
    from support.topics import NewRecord, produce

    print("a sidecar process, with a broker")
    table = Table(warm_up)
    with (
        tempfile.TemporaryDirectory() as folder,
        deployment(bootstrap, Path(folder), 1, commit_interval=1) as deployed,
    ):
        sidecar = deployed.start()
        sidecar.wait_for("partitions assigned")
        count = 0
        portion: list[NewRecord] = []
        for number, made in enumerate(events(steps), 1):
            portion += [NewRecord(json.dumps(event).encode(), key=event["run_id"].encode()) for event in made]
            is_row = number % (steps // ROWS) == 0
            if is_row or len(portion) > 20_000:
                produce(bootstrap, deployed.input_topic, portion)
                count += len(portion)
                portion = []
            if is_row:
                deployed.wait_until_all_is_committed(300)
                table.add(number, count, resident_mib(sidecar.pid))
        made = table.end()
        print(f"{len(published(deployed).on_time):,} results")
        sidecar.terminate()
        return {"steps": steps, **made}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--bootstrap-servers", default=None)
    parser.add_argument("--open", choices=("typical", "full", "ids"), default=None)
    options = parser.parse_args()
    if options.open is not None:
        print(json.dumps({"kind": options.open, "bytes_a_sample": round(bytes_a_sample(options.open), 1)}))
        return
    steps = max(ROWS, options.steps // ROWS * ROWS)
    warm_up = warm_up_of(steps)
    if options.bootstrap_servers is None:
        through_the_fold(steps, warm_up)
    else:
        through_a_sidecar(steps, warm_up, options.bootstrap_servers)


if __name__ == "__main__":
    main()
