"""Results as MLflow metrics: an MLflow run for each run and attempt, found again by a tag.

MLflow can't change or remove a point. So a step's first result is its point, and what corrects it goes to metrics of
the same names under `corrected/`. Which result was a step's first, MLflow itself knows: `<scope>/result_offset` keeps
its place in the topic. A point that comes again equals the one that's there, which MLflow's database keeps once.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from hashlib import blake2b
from typing import Any, Final

from stream_metrics.sinks.base import Delivery, Sink, SinkOutageError, SinkRefusedError, library

_KEY_TAG: Final = "stream_metrics.key"
_OFFSET: Final = "result_offset"
_CORRECTED: Final = "corrected/"
_MAX_OPEN_RUNS: Final = 256
_MAX_NAME: Final = 200
_MAX_METRICS: Final = 1000  # in one call
_ODD: Final = re.compile(r"[^A-Za-z0-9_.\- /]")
_REFUSALS: Final = frozenset({"INVALID_PARAMETER_VALUE", "PERMISSION_DENIED", "UNAUTHENTICATED"})
"""What no second try changes; all else that MLflow says is an outage."""


class MlflowSink(Sink):
    """Logs metrics through MLflow's client.

    Args:
        experiment: The experiment; made where it's missing.
        tracking_uri: A server or a database; None for MLflow's own setting.
    """

    def __init__(self, experiment: str, tracking_uri: str | None = None) -> None:
        self._experiment = experiment
        self._tracking_uri = tracking_uri
        self._client: Any = None
        self._metric: Any = None
        self._error: type[Exception] = Exception
        self._experiment_id = ""
        self._runs: dict[tuple[str, int], _Run] = {}  # those heard of last come last

    def setup(self) -> None:
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")  # the consumer tries on, and hears of a stop
        self._metric = library("mlflow.entities", "mlflow").Metric
        self._error = library("mlflow.exceptions", "mlflow").MlflowException
        make_client = library("mlflow", "mlflow").MlflowClient
        try:
            self._client = make_client(tracking_uri=self._tracking_uri)
            uri = str(self._client.tracking_uri)
            if uri.startswith("file:") or ("://" not in uri and not uri.startswith("databricks")):
                # It keeps a point as often as it's told one, and MLflow itself has given it up.
                raise SinkRefusedError(f"{uri!r} is a store of files; use a server or a database: sqlite:///mlflow.db")
            known = self._client.get_experiment_by_name(self._experiment)
            self._experiment_id = known.experiment_id if known else self._client.create_experiment(self._experiment)
        except self._error as error:
            raise _told(error) from None

    def begin(self) -> None:
        self._runs.clear()  # what MLflow has of them is to be asked again

    def write(self, batch: Sequence[Delivery]) -> None:
        try:
            for delivery in batch:
                self._log(delivery)
        except self._error as error:
            self._runs.clear()  # what MLflow has of them is to be asked again
            raise _told(error) from None
        except OSError:
            self._runs.clear()
            raise

    def _log(self, delivery: Delivery) -> None:
        result, offset = delivery.result, delivery.offset
        run = self._run(result.run_id, result.attempt)
        first = self._first_offsets(run, result.scope)
        prefix = "" if first.get(result.step, offset) == offset else _CORRECTED
        numbers = {_name(prefix, name): number for name, number in result.metrics.items()}
        numbers[_name(prefix, f"{result.scope}/{_OFFSET}")] = offset
        metrics = [self._metric(name, number, delivery.unix_ms, result.step) for name, number in numbers.items()]
        for start in range(0, len(metrics), _MAX_METRICS):
            self._client.log_batch(run.id, metrics=metrics[start : start + _MAX_METRICS])
        first.setdefault(result.step, offset)

    def _run(self, run_id: str, attempt: int) -> _Run:
        key = (run_id, attempt)
        run = self._runs.pop(key, None) or _Run(self._find(run_id, attempt) or self._make(run_id, attempt))
        self._runs[key] = run
        if len(self._runs) > _MAX_OPEN_RUNS:
            del self._runs[next(iter(self._runs))]
        return run

    def _find(self, run_id: str, attempt: int) -> str | None:
        wanted = f"tags.`{_KEY_TAG}` = '{_key(run_id, attempt)}'"
        for found in self._client.search_runs([self._experiment_id], filter_string=wanted, max_results=1):
            return str(found.info.run_id)
        return None

    def _make(self, run_id: str, attempt: int) -> str:
        tags = {
            _KEY_TAG: _key(run_id, attempt),
            "stream_metrics.run_id": run_id,
            "stream_metrics.attempt": str(attempt),
        }
        name = run_id[:_MAX_NAME] + (f" attempt {attempt}" if attempt else "")
        return str(self._client.create_run(self._experiment_id, tags=tags, run_name=name).info.run_id)

    def _first_offsets(self, run: _Run, scope: str) -> dict[int, int]:
        if scope not in run.first_offsets:
            points = self._client.get_metric_history(run.id, _name("", f"{scope}/{_OFFSET}"))
            run.first_offsets[scope] = {point.step: int(point.value) for point in points}
        return run.first_offsets[scope]


class _Run:
    """An MLflow run, and for each scope the offset of each step's first result."""

    def __init__(self, run_id: str) -> None:
        self.id = run_id
        self.first_offsets: dict[str, dict[int, int]] = {}


def _told(error: Exception) -> Exception:
    code = getattr(error, "error_code", "")
    return (SinkRefusedError if code in _REFUSALS else SinkOutageError)(f"MLflow: {error}")


def _key(run_id: str, attempt: int) -> str:
    return blake2b(json.dumps([run_id, attempt]).encode(), digest_size=16).hexdigest()


def _name(prefix: str, text: str) -> str:
    """Returns a name that MLflow takes; one that had to be changed ends in a hash of what it was."""
    made = "/".join(part if part.strip(".") else "_" for part in _ODD.sub("_", text).split("/"))
    if made != text or len(made) > _MAX_NAME:
        made = f"{made[:_MAX_NAME]}-{blake2b(text.encode(), digest_size=8).hexdigest()}"
    return prefix + made
