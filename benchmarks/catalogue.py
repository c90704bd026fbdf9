"""What the whole catalogue costs beside the two core metrics alone. Prints ratios; never fails on a time.

    python benchmarks/catalogue.py [--samples 200000] [--rounds 5]

- per event: decode and fold JSON samples in batches of 1,000 and close each step of 20,000, once with everything and
  once with columns and metrics cut down to `num_training_samples` and `episode_raw_reward`. Two kinds of samples:
  `typical` (ids, reward, length, status) and `full` (all that the catalogue reads).
- close: a window of 1,000,000 samples, in shuffled order, with rewards that are no round numbers.
- memory: bytes of all columns of that window by sample; what names rollouts and groups is apart.
- rows: time by sample of `Columns.add` in rows of 1, 10, 100 and 1,000.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import statistics
import time
from array import array
from collections.abc import Callable, Sequence
from typing import Any

import stream_metrics.core.fold as fold_module
import stream_metrics.core.window as window_module
from stream_metrics.core.catalogue import step_metrics
from stream_metrics.core.columns import Columns
from stream_metrics.core.exact import exact_mean
from stream_metrics.core.fold import Fold
from stream_metrics.core.named import NamedNumbers, NamedSamples
from stream_metrics.core.record import LogRecord
from stream_metrics.core.settings import FoldSettings
from stream_metrics.core.view import StepView
from stream_metrics.core.window import Window
from stream_metrics.events import Sample, SampleFields, decode_fast

BATCH = 1_000
STEP = 20_000


class CoreColumns(Columns):
    """Rewards and rollouts only: what the two core metrics need."""

    def _take_row(self, samples: Sequence[SampleFields], *, is_plain: bool) -> None:
        before = len(self.rollout)
        if not is_plain:
            self._take_raw_rewards(samples, before)
            self._take_positions(samples, before)
        self._take_rewards(samples, before)
        self._take_rollouts(samples)


def core_metrics(window: Window, settings: FoldSettings) -> dict[str, int | float]:
    view = StepView(window, settings)
    return {
        f"{window.scope}/num_training_samples": view.num_samples,
        f"{window.scope}/episode_raw_reward": exact_mean(view.scores),
        f"{window.scope}/step": window.step,
    }


def sample(number: int, kind: str) -> dict[str, Any]:
    """Compacted rollouts of 1 to 3 samples, groups of 8 rollouts."""
    rollout = number // 2
    made: dict[str, Any] = {
        "group_index": rollout // 8,
        "index": number,
        "rollout_id": rollout,
        "reward": float(rollout % 3 == 0),
        "response_length": 200 + number * 37 % 3000,
        "status": "truncated" if number % 11 == 0 else "completed",
    }
    if kind == "full":
        made |= {
            "position": number,
            "sample_id": f"{number:x}",
            "metadata": {"raw_reward": made["reward"]},
            "effective_response_length": made["response_length"] // 2,
            "data_source": ("math", "code", "search")[rollout % 3],
            "weight_versions": [number // 5000],
            "values": {"turns": number % 9, "cache_hit_rate": number % 7 / 7},
        }
    return made


def log_of(count: int, kind: str) -> list[LogRecord]:
    made = []
    for start in range(0, count, STEP):
        for number in range(min(STEP, count - start)):
            event = {"type": "sample", "run_id": "bench", "step": start // STEP, **sample(number, kind)}
            made.append(event)
        made.append({"type": "close", "run_id": "bench", "step": start // STEP})
    return [LogRecord(value=json.dumps(event).encode(), offset=offset) for offset, event in enumerate(made)]


def fold_once(records: list[LogRecord], *, is_core: bool) -> float:
    """Returns the seconds."""
    window_module.Columns = CoreColumns if is_core else Columns  # type: ignore[misc]
    fold_module.step_metrics = core_metrics if is_core else step_metrics
    fold = Fold(FoldSettings(), "samples", 0)
    gc.collect()
    begun = time.perf_counter()
    for start in range(0, len(records), BATCH):
        fold.feed(records[start : start + BATCH])
        fold.take_effects()
    return time.perf_counter() - begun


def per_event(count: int, rounds: int) -> None:
    for kind in ("typical", "full"):
        records = log_of(count, kind)
        core, whole = [], []
        for _ in range(rounds):  # taking turns: a slow moment of the machine then hits both
            core.append(fold_once(records, is_core=True))
            whole.append(fold_once(records, is_core=False))
        ratio = statistics.median(b / a for a, b in zip(core, whole, strict=True))
        print(
            f"per event, {kind}: core {min(core) / count * 1e9:.0f} ns, "
            f"whole catalogue {min(whole) / count * 1e9:.0f} ns, ratio {ratio:.2f} (aim < 1.3)"
        )


def close(count: int) -> None:
    chance = random.Random(1)
    for kind in ("typical", "full"):
        settings = FoldSettings()
        window = Window(settings, "bench", "rollout", 0, 0, 0, None)
        numbers = list(range(count))
        chance.shuffle(numbers)
        for start in range(0, count, BATCH):
            row = [
                sample(number, kind) | {"sample_id": None, "reward": chance.random()}
                for number in numbers[start : start + BATCH]
            ]
            for one in row:
                one.pop("metadata", None)
            window.add([Sample(step=0, **one) for one in row])
        begun = time.perf_counter()
        made = step_metrics(window, settings)
        seconds = time.perf_counter() - begun
        print(f"close of {count:,} samples, {kind}: {seconds:.2f} s for {len(made)} metrics (aim < 1 s)")
        print(f"memory, {kind}: {column_bytes(window.columns) / count:.1f} bytes a sample in columns (aim ≤ 64)")


def column_bytes(columns: Columns) -> int:
    total = 0
    for name in Columns.__slots__:
        column = getattr(columns, name)
        if isinstance(column, array):
            total += column.buffer_info()[1] * column.itemsize
        elif isinstance(column, bytearray):
            total += len(column)
        elif isinstance(column, NamedSamples):
            total += len(column.code) * column.code.itemsize
        elif isinstance(column, NamedNumbers):
            for _, kept in column.items():
                total += len(kept.sample) * kept.sample.itemsize + len(kept.value) * kept.value.itemsize
    return total


def rows(count: int) -> None:
    values = [
        json.dumps({"type": "sample", "step": 0, **sample(number, "typical")}).encode() for number in range(count)
    ]
    first: float | None = None
    for length in (1_000, 100, 10, 1):
        columns = Columns(FoldSettings())
        seconds = _timed_rows(values, length, columns.add)
        first = first or seconds
        print(f"add in rows of {length:>5,}: {seconds / count * 1e9:6.0f} ns a sample, ratio {seconds / first:.2f}")


def _timed_rows(values: list[bytes], length: int, add: Callable[[Sequence[SampleFields]], int]) -> float:
    """Returns the seconds of `add` alone, on samples decoded just before, as a consumer's are."""
    seconds = 0.0
    for start in range(0, len(values), BATCH):
        decoded: list[Any] = [decode_fast(value) for value in values[start : start + BATCH]]
        parts = [decoded[place : place + length] for place in range(0, len(decoded), length)]
        begun = time.perf_counter()
        for part in parts:
            add(part)
        seconds += time.perf_counter() - begun
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--close", type=int, default=1_000_000)
    arguments = parser.parse_args()
    per_event(arguments.samples, arguments.rounds)
    rows(arguments.samples)
    close(arguments.close)


if __name__ == "__main__":
    main()
