"""What is special of event files, with TensorBoard's own library. Skipped where that isn't installed."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from stream_metrics.events import encode
from stream_metrics.sinks import tensorboard as ours
from stream_metrics.sinks.base import Delivery
from stream_metrics.sinks.tensorboard import TensorboardSink
from support.results import step_metrics


@pytest.fixture(autouse=True)
def library() -> None:
    pytest.importorskip("tensorboard", reason="the sink tensorboard's library isn't installed")


def delivery(step: int, reward: float = 0.5, **fields: Any) -> Delivery:
    metrics = {"rollout/episode_raw_reward": reward, "rollout/step": step}
    result = step_metrics(step, **({"closed_unix_ms": 1_700_000_000_500, "metrics": metrics} | fields))
    return Delivery(result, encode(result), 0, step, 5)


def opened(folder: Path) -> TensorboardSink:
    sink = TensorboardSink(str(folder))
    sink.setup()
    return sink


def points(folder: Path, run: str = "run") -> list[tuple[int, float]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    reader = EventAccumulator(str(folder / run / "rollout"), size_guidance={"scalars": 0})
    reader.Reload()
    return [(one.step, one.value) for one in reader.Scalars("rollout/episode_raw_reward")]


def test_a_point_has_the_time_at_which_its_step_closed(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    sink = opened(tmp_path)
    sink.write([delivery(1)])
    sink.flush()
    reader = EventAccumulator(str(tmp_path / "run" / "rollout"))
    reader.Reload()
    assert reader.Scalars("rollout/step")[0].wall_time == 1_700_000_000.5
    sink.close()


def test_a_newer_attempt_takes_the_older_ones_later_steps_away(tmp_path: Path) -> None:
    sink = opened(tmp_path)
    sink.write([delivery(step) for step in (1, 2, 3, 4)])
    sink.write([delivery(3, 0.25, attempt=1), delivery(2, 0.75, attempt=1)])
    sink.flush()
    assert points(tmp_path) == [(1, 0.5), (2, 0.75), (3, 0.25)]
    sink.close()


def test_a_disk_that_was_full_leaves_a_file_that_is_read_on(tmp_path: Path) -> None:
    sink = opened(tmp_path)
    sink.write([delivery(1), delivery(2)])
    sink.flush()
    (series,) = sink._series.values()
    file = series.file
    assert file is not None

    class Full:
        def write(self, data: bytes) -> None:
            file.write(data[:9])
            file.flush()
            raise OSError(28, "No space left on device")

        def close(self) -> None:
            file.close()

    series.file = Full()  # type: ignore[assignment]
    batch = [delivery(3), delivery(1, 0.25, correction=True)]
    with pytest.raises(OSError, match="No space"):
        sink.write(batch)
    sink.write(batch)
    sink.flush()
    assert points(tmp_path) == [(1, 0.25), (2, 0.5), (3, 0.5)]
    sink.close()


def test_too_old_a_correction_is_left_out_and_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    monkeypatch.setattr(ours, "MAX_STEPS", 3)
    sink = opened(tmp_path)
    for step in range(5):
        sink.write([delivery(step)])
    sink.write([delivery(1, 0.25, correction=True), delivery(2, 0.25, correction=True)])
    sink.flush()
    assert points(tmp_path) == [(0, 0.5), (1, 0.5), (2, 0.25), (3, 0.5), (4, 0.5)]
    told = [one.getMessage() for one in caplog.records if one.name == ours.__name__]
    assert told == ["too old a step to be corrected in an event file"]
    sink.close()


def test_many_runs_keep_few_files_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ours, "_MAX_OPEN_FILES", 2)
    sink = opened(tmp_path)
    for step in (1, 2):
        for run in "abcd":
            sink.write([delivery(step, run_id=run)])
    sink.flush()
    assert sum(series.file is not None for series in sink._series.values()) == 2
    assert all(points(tmp_path, run) == [(1, 0.5), (2, 0.5)] for run in "abcd")
    sink.close()
