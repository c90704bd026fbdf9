"""What is special of MLflow, with its own library on a SQLite database. Skipped where that isn't installed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stream_metrics.events import encode
from stream_metrics.sinks.base import Delivery, SinkOutageError, SinkRefusedError
from stream_metrics.sinks.mlflow import MlflowSink, _name
from support.mlflow_store import new_store
from support.results import step_metrics

pytestmark = pytest.mark.filterwarnings("ignore")  # what the library warns of in itself is its own


@pytest.fixture(autouse=True)
def library() -> None:
    pytest.importorskip("mlflow", reason="the sink mlflow's library isn't installed")


def delivery(step: int, reward: float, offset: int, **fields: Any) -> Delivery:
    metrics = {"rollout/episode_raw_reward": reward, "rollout/values/a:b": 1, "rollout/step": step}
    result = step_metrics(step, **({"metrics": metrics} | fields))
    return Delivery(result, encode(result), 0, offset, 1_700_000_000_000)  # results of one transaction may share it


def opened(folder: Path) -> MlflowSink:
    sink = MlflowSink("e", new_store(folder))
    sink.setup()
    return sink


def points(folder: Path, name: str) -> list[tuple[int, float]]:
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=new_store(folder))
    (run,) = client.search_runs([client.get_experiment_by_name("e").experiment_id])
    assert run.info.run_name == "run"
    return [(point.step, point.value) for point in client.get_metric_history(run.info.run_id, name)]


def test_corrections_are_points_of_their_own_metrics_each_once_over_restarts(tmp_path: Path) -> None:
    batch = [delivery(1, 0.5, 0), delivery(1, 0.25, 1, correction=True), delivery(1, 0.125, 2, correction=True)]
    for _ in range(2):
        opened(tmp_path).write(batch)
    assert points(tmp_path, "rollout/episode_raw_reward") == [(1, 0.5)]
    assert sorted(points(tmp_path, "corrected/rollout/episode_raw_reward")) == [(1, 0.125), (1, 0.25)]


def test_a_correction_whose_first_result_was_compacted_away_is_the_point(tmp_path: Path) -> None:
    for _ in range(2):
        opened(tmp_path).write([delivery(1, 0.25, 7, correction=True)])
    assert points(tmp_path, "rollout/episode_raw_reward") == [(1, 0.25)]
    assert points(tmp_path, "corrected/rollout/episode_raw_reward") == []


def test_a_step_that_another_process_gave_meanwhile_is_corrected_beside_its_point(tmp_path: Path) -> None:
    sink = opened(tmp_path)
    sink.write([delivery(1, 0.5, 0)])
    opened(tmp_path).write([delivery(2, 0.5, 1)])
    sink.begin()
    sink.write([delivery(2, 0.25, 2, correction=True)])
    assert points(tmp_path, "rollout/episode_raw_reward") == [(1, 0.5), (2, 0.5)]


def test_names_that_mlflow_does_not_take_are_changed_and_stay_apart(tmp_path: Path) -> None:
    opened(tmp_path).write([delivery(1, 0.5, 0)])
    assert points(tmp_path, _name("", "rollout/values/a:b")) == [(1, 1)]
    assert _name("", "rollout/values/a:b") != _name("", "rollout/values/a;b") != _name("", "rollout/values/a_b")
    assert _name("", "a//b").count("//") == 0


def test_an_answer_that_passes_is_an_outage_and_what_was_half_logged_comes_once(tmp_path: Path) -> None:
    from mlflow.exceptions import MlflowException
    from mlflow.protos.databricks_pb2 import TEMPORARILY_UNAVAILABLE

    sink = opened(tmp_path)
    log_batch = sink._client.log_batch

    def fail(run_id: str, metrics: list[Any]) -> None:
        log_batch(run_id, metrics=metrics[:1])
        raise MlflowException("no database", error_code=TEMPORARILY_UNAVAILABLE)

    sink._client.log_batch = fail
    with pytest.raises(SinkOutageError, match="no database"):
        sink.write([delivery(1, 0.5, 0)])
    sink._client.log_batch = log_batch
    sink.write([delivery(1, 0.5, 0)])
    assert points(tmp_path, "rollout/episode_raw_reward") == [(1, 0.5)]


def test_a_server_that_is_not_there_is_an_outage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with pytest.raises(SinkOutageError, match="port=9"):
        MlflowSink("e", "http://127.0.0.1:9").setup()


def test_a_store_of_files_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    for uri in (f"file:{tmp_path}/mlruns", str(tmp_path / "mlruns")):
        with pytest.raises(SinkRefusedError, match="sqlite:///"):
            MlflowSink("e", uri).setup()
