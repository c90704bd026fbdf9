"""The latest step of each run and scope as gauges, on an HTTP port of its own.

One family for all metrics, since their names come from producers too: `stream_metrics_result{run_id,scope,metric}`.
Labels are bounded: the sidecar bounds the metrics of a result, and only the runs and scopes heard of last are shown.
Nothing outlives the process, so each start reads the whole topic.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from threading import Lock
from typing import ClassVar, Final

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from stream_metrics.events import StepMetrics
from stream_metrics.sinks.base import Delivery, Sink, SinkRefusedError

_log = logging.getLogger(__name__)

_ABOUT: Final = {
    "step": "The latest step with a result.",
    "attempt": "The attempt of the latest step.",
    "complete": "Whether the latest step's result is complete.",
    "late_samples": "Samples of the latest step that came after its close.",
    "closed_timestamp_seconds": "When the latest step closed, by its records' clock.",
}


class PrometheusSink(Sink):
    """Serves gauges.

    Args:
        host: Address to listen on.
        port: Port; 0 lets the system choose, and `port` says which.
        max_series: Runs and scopes shown.
    """

    is_lasting: ClassVar[bool] = False

    def __init__(self, host: str, port: int, max_series: int) -> None:
        self._host = host
        self.port = port
        self._latest = _Latest(max_series)
        self._close: Callable[[], None] = lambda: None

    def setup(self) -> None:
        registry = CollectorRegistry()
        registry.register(self._latest)
        try:
            server, thread = start_http_server(self.port, self._host, registry)
        except (OSError, OverflowError) as error:
            raise SinkRefusedError(f"can't listen on {self._host}:{self.port}: {error}") from None
        self.port = server.server_port
        _log.info("listening", extra={"fields": {"host": self._host, "port": self.port}})

        def close() -> None:
            server.shutdown()
            server.server_close()
            thread.join()

        self._close = close

    def write(self, batch: Sequence[Delivery]) -> None:
        self._latest.take([delivery.result for delivery in batch])

    def close(self) -> None:
        self._close()


class _Latest(Collector):
    def __init__(self, max_series: int) -> None:
        self._max_series = max(1, max_series)
        self._results: dict[tuple[str, str], StepMetrics] = {}  # those heard of last come last
        self._lock = Lock()

    def take(self, results: Sequence[StepMetrics]) -> None:
        with self._lock:
            for result in results:
                key = (result.run_id, result.scope)
                known = self._results.pop(key, result)
                is_newer = (result.attempt, result.step) >= (known.attempt, known.step)
                self._results[key] = result if is_newer else known
                if len(self._results) > self._max_series:
                    del self._results[next(iter(self._results))]

    def collect(self) -> Iterator[GaugeMetricFamily]:
        with self._lock:
            results = dict(self._results)
        metrics = GaugeMetricFamily(
            "stream_metrics_result", "A metric of the latest step.", labels=["run_id", "scope", "metric"]
        )
        families = {
            name: GaugeMetricFamily(f"stream_metrics_result_{name}", about, labels=["run_id", "scope"])
            for name, about in _ABOUT.items()
        }
        for labels, result in results.items():
            prefix = f"{result.scope}/"
            for name, number in result.metrics.items():
                metrics.add_metric([*labels, name.removeprefix(prefix)], number)
            families["step"].add_metric(labels, result.step)
            families["attempt"].add_metric(labels, result.attempt)
            families["complete"].add_metric(labels, result.complete)
            families["late_samples"].add_metric(labels, result.late_samples)
            if result.closed_unix_ms is not None:
                families["closed_timestamp_seconds"].add_metric(labels, result.closed_unix_ms / 1000)
        yield metrics
        yield from families.values()
