"""What is special of the sinks that need no library."""

from __future__ import annotations

import os
import socket
import threading
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from stream_metrics.events import encode
from stream_metrics.sinks import base
from stream_metrics.sinks.base import Delivery, SinkRefusedError
from stream_metrics.sinks.jsonl import JsonlSink
from stream_metrics.sinks.prometheus import PrometheusSink
from support.results import step_metrics


def delivery(step: int, offset: int = 0, **fields: Any) -> Delivery:
    metrics = {"rollout/episode_raw_reward": step / 8, "rollout/step": step}
    result = step_metrics(step, **({"closed_unix_ms": 1_700_000_000_500, "metrics": metrics} | fields))
    return Delivery(result, encode(result), 0, offset, 5)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "results.jsonl"


def opened(path: Path) -> JsonlSink:
    sink = JsonlSink(str(path))
    sink.setup()
    return sink


def test_half_a_line_of_a_crash_is_cut_off_and_written_whole(path: Path) -> None:
    line = delivery(1).value + b"\n"
    path.write_bytes(line + line.replace(b'"step":1', b'"step":2')[:20])
    sink = opened(path)
    sink.write([delivery(1), delivery(2)])
    sink.flush()
    sink.close()
    assert path.read_bytes() == line + delivery(2).value + b"\n"


def test_half_a_line_is_cut_off_even_where_nothing_is_to_be_written(path: Path) -> None:
    line = delivery(1).value + b"\n"
    path.write_bytes(line + b'{"type":')
    sink = opened(path)
    sink.write([delivery(1)])
    sink.close()
    assert path.read_bytes() == line


def test_a_disk_that_was_full_leaves_no_half_lines(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = opened(path)
    write = os.pwrite

    def write_half(file: int, text: bytes, offset: int) -> int:
        write(file, text[:7], offset)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", write_half)
    with pytest.raises(OSError, match="No space"):
        sink.write([delivery(1)])
    monkeypatch.setattr(os, "pwrite", write)
    sink.write([delivery(1), delivery(2)])
    sink.close()
    assert path.read_bytes() == delivery(1).value + b"\n" + delivery(2).value + b"\n"


def test_a_file_is_written_by_one_process_at_a_time(path: Path) -> None:
    sink = opened(path)
    with pytest.raises(SinkRefusedError, match="another process"):
        opened(path)
    sink.close()
    opened(path).close()


def test_a_value_of_several_lines_becomes_one(path: Path) -> None:
    sink = opened(path)
    sink.write([delivery(1)._replace(value=b'{\r\n"a": 1\n}')])
    sink.close()
    assert path.read_bytes() == b'{  "a": 1 }\n'


@pytest.fixture
def gauges() -> Any:
    sink = PrometheusSink("127.0.0.1", 0, max_series=2)
    sink.setup()
    yield sink
    sink.close()


def scraped(sink: PrometheusSink) -> set[str]:
    with urllib.request.urlopen(f"http://127.0.0.1:{sink.port}/metrics", timeout=10) as answer:
        text: str = answer.read().decode()
    return {line for line in text.splitlines() if not line.startswith("#")}


def test_gauges_are_of_the_latest_step_and_say_how_good_it_is(gauges: PrometheusSink) -> None:
    gauges.write([delivery(3), delivery(2), delivery(3, complete=False, correction=True, late_samples=4)])
    labels = '{run_id="run",scope="rollout"}'
    assert scraped(gauges) == {
        'stream_metrics_result{metric="episode_raw_reward",run_id="run",scope="rollout"} 0.375',
        'stream_metrics_result{metric="step",run_id="run",scope="rollout"} 3.0',
        f"stream_metrics_result_step{labels} 3.0",
        f"stream_metrics_result_attempt{labels} 0.0",
        f"stream_metrics_result_complete{labels} 0.0",
        f"stream_metrics_result_late_samples{labels} 4.0",
        f"stream_metrics_result_closed_timestamp_seconds{labels} 1.7000000005e+09",
    }


def test_a_scrape_while_steps_close_has_numbers_of_one_step(gauges: PrometheusSink) -> None:
    may_end = threading.Event()

    def write() -> None:
        step = 0
        while not may_end.is_set():
            step += 1
            gauges.write([delivery(step)])

    writing = threading.Thread(target=write)
    writing.start()
    try:
        seen = set()
        while len(seen) < 20:
            shown = {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in scraped(gauges)}
            if shown:
                step = shown['stream_metrics_result_step{run_id="run",scope="rollout"}']
                of = 'stream_metrics_result{metric="%s",run_id="run",scope="rollout"}'
                assert (shown[of % "step"], shown[of % "episode_raw_reward"]) == (step, step / 8)
                seen.add(step)
    finally:
        may_end.set()
        writing.join()


def test_a_newer_attempt_takes_the_gauges_back_to_its_step(gauges: PrometheusSink) -> None:
    gauges.write([delivery(9), delivery(4, attempt=1)])
    assert 'stream_metrics_result_step{run_id="run",scope="rollout"} 4.0' in scraped(gauges)


def test_only_the_runs_heard_of_last_are_shown(gauges: PrometheusSink) -> None:
    gauges.write([delivery(1, run_id="a"), delivery(1, run_id="b"), delivery(2, run_id="a"), delivery(1, run_id="c")])
    shown = {line for line in scraped(gauges) if line.startswith("stream_metrics_result_step")}
    assert shown == {
        'stream_metrics_result_step{run_id="a",scope="rollout"} 2.0',
        'stream_metrics_result_step{run_id="c",scope="rollout"} 1.0',
    }


def test_a_port_that_is_taken_is_refused_with_its_address() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(SinkRefusedError, match=f"127.0.0.1:{port}"):
            PrometheusSink("127.0.0.1", port, max_series=1).setup()


def test_a_library_that_is_missing_is_named_with_how_to_install_it() -> None:
    with pytest.raises(SinkRefusedError, match=r"pip install 'stream-metrics\[wandb\]'"):
        base.library("no_such_library_of_anybody", "wandb")
