"""The lines of docs/library.md make data frames of what the output topic has, as they stand there."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas
import polars
import pytest

from stream_metrics.events import StepMetrics, encode
from stream_metrics.testing import MemoryLog, close, sample
from support.brokers import Broker
from support.topics import NewRecord, create_topic, produce

PAPER = Path(__file__).parents[2] / "docs" / "library.md"


def _blocks(library: str, other: str) -> list[str]:
    """Returns the code blocks about data frames, without the lines of the other library."""
    text = PAPER.read_text().partition("## The results as a data frame")[2]
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    return ["\n".join(line for line in block.splitlines() if other not in line) for block in blocks if library in block]


def _results() -> list[StepMetrics]:
    """Returns results of two scopes with other metrics each, a correction and a newer attempt among them."""
    log = MemoryLog()
    for step in range(1, 12):
        log.append(sample(step, 1 / (step + 2), rollout_id=1))
        log.append(sample(step, 0.1, rollout_id=2))
        log.append(close(step))
    log.append(sample(11, 0.7, rollout_id=2, metadata={"raw_reward": 0.3}))
    log.append(sample(3, 0.9, scope="eval/aime24", group_index=0, response_length=7, data_source="aime"))
    log.append(close(3, scope="eval/aime24"))
    log.append(sample(11, 1.0, attempt=1))
    log.append(close(11, attempt=1))
    return log.fold().results


@pytest.fixture
def sent(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> list[StepMetrics]:
    """Results that are in the topic that the command line reads."""
    topic, results = create_topic(broker.bootstrap), _results()
    produce(broker.bootstrap, topic, [NewRecord(encode(result), key=result.key()) for result in results])
    monkeypatch.setenv("STREAM_METRICS_BOOTSTRAP_SERVERS", broker.bootstrap)
    monkeypatch.setenv("STREAM_METRICS_OUTPUT_TOPIC", topic)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    return results


def _frames(names: dict[str, Any], blocks: list[str]) -> Iterator[Any]:
    """Runs the blocks and yields the frame after each of them."""
    assert len(blocks) == 2
    for block in blocks:
        exec(block, names)
        yield names["frame"]


def _newest(results: list[StepMetrics]) -> dict[tuple[str, int], StepMetrics]:
    return {(one.scope, one.step): one for one in results}


def test_polars_reads_the_topic(sent: list[StepMetrics]) -> None:
    every, newest = _frames({"subprocess": subprocess, "polars": polars}, _blocks("polars", "pandas"))
    assert every["step"].to_list() == [one.step for one in sent]
    rows = {(row["scope"], row["step"]): row for row in newest.iter_rows(named=True)}
    assert rows.keys() == _newest(sent).keys()
    for key, one in _newest(sent).items():
        assert {name: rows[key][name] for name in one.metrics} == one.metrics
        assert (rows[key]["attempt"], rows[key]["correction"]) == (one.attempt, one.correction)


def test_pandas_reads_the_topic(sent: list[StepMetrics]) -> None:
    names = {"subprocess": subprocess, "json": json, "pandas": pandas}
    every, newest = _frames(names, _blocks("pandas", "polars"))
    assert every["step"].tolist() == [one.step for one in sent]
    rows = {(row["scope"], row["step"]): row for row in newest.to_dict("records")}
    assert rows.keys() == _newest(sent).keys()
    for key, one in _newest(sent).items():
        assert {name: rows[key][f"metrics.{name}"] for name in one.metrics} == one.metrics
        assert (rows[key]["attempt"], rows[key]["correction"]) == (one.attempt, one.correction)
