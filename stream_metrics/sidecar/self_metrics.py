"""Every metric the sidecar has of itself, in one typed list. No run, step or rollout is ever a label."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    generate_latest,
)

_DEAD_LETTERS: Final = "dead_letters_"
_LATENCIES: Final = (0.002, 0.004, 0.006, 0.01, 0.015, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10)


class SelfMetrics:
    """The sidecar's own metrics, in a registry of their own."""

    def __init__(self) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]  # a second series for each counter, that nobody reads
        self.registry = CollectorRegistry(auto_describe=True)

        def counter(name: str, help_text: str, *labels: str) -> Counter:
            return Counter(f"stream_metrics_{name}", help_text, labels, registry=self.registry)

        def gauge(name: str, help_text: str, *labels: str) -> Gauge:
            return Gauge(f"stream_metrics_{name}", help_text, labels, registry=self.registry)

        def histogram(name: str, help_text: str) -> Histogram:
            return Histogram(f"stream_metrics_{name}", help_text, registry=self.registry, buckets=_LATENCIES)

        self.records = counter("records_total", "Records consumed and folded, replays left out.")
        self.replayed_records = counter("replayed_records_total", "Records folded again to rebuild windows.")
        self.samples = counter("samples_total", "Samples taken into a step.")
        self.duplicates = counter("duplicate_samples_total", "Samples dropped because their sample_id had been seen.")
        self.late = counter("late_samples_total", "Samples taken after their step's close.")
        self.tombstones = counter("tombstones_total", "Records without a value, skipped.")
        self.dead_letters = counter("dead_letters_total", "Records set aside.", "reason")
        self.results = counter("results_total", "On-time results.")
        self.incomplete = counter("incomplete_results_total", "On-time results that were not complete.")
        self.corrections = counter("corrections_total", "Corrected results.")
        self.redone = counter("redone_steps_total", "Times that late events looked like a step done again.")
        self.evicted = counter("evicted_windows_total", "Steps closed to make room.")
        self.floors_dropped = counter("floors_dropped_total", "Runs forgotten altogether to make room.")
        self.timeouts = counter("timeout_markers_total", "Timeout markers written.")
        self.lost_records = counter("lost_records_total", "Offsets that retention had removed before they were read.")
        self.split_runs = counter("split_runs_total", "Runs seen on two partitions.")
        self.commits = counter("commits_total", "Transactions committed.")
        self.aborts = counter("transaction_aborts_total", "Transactions aborted.")
        self.rebalances = counter("rebalances_total", "Times partitions were given or taken.", "kind")
        self.restarts = counter("restarts_total", "Times the sidecar began anew with new clients.")
        self.restores = counter("restores_total", "Partitions rebuilt from the log.")
        self.commit_seconds = histogram("commit_seconds", "From beginning a transaction to its commit.")
        self.restore_seconds = histogram("restore_seconds", "From assignment of a partition to its windows rebuilt.")
        self.partitions = gauge("partitions", "Partitions owned.")
        self.open_windows = gauge("open_windows", "Steps open or closing.")
        self.windows = gauge("windows", "Steps in memory.")
        self.held_samples = gauge("held_samples", "Samples in memory.")
        self.replay_distance = gauge("replay_distance", "Offsets that a restart now would fold again.")
        self.lag = gauge("consumer_lag", "Offsets between the end of the log and the next to read.")
        self.oldest_open_seconds = gauge("oldest_open_step_age_seconds", "Age of the oldest open step.")
        self.is_ready = gauge("is_ready", "1 when assigned and caught up with the replay.")

    def take(self, counts: Mapping[str, int]) -> None:
        """Adds what a fold has counted since the last call."""
        for name, metric in (
            ("samples", self.samples),
            ("duplicates", self.duplicates),
            ("late_samples", self.late),
            ("tombstones", self.tombstones),
            ("results", self.results),
            ("incomplete_results", self.incomplete),
            ("corrections", self.corrections),
            ("redone_steps", self.redone),
            ("evicted_windows", self.evicted),
            ("floors_dropped", self.floors_dropped),
        ):
            if counts.get(name):
                metric.inc(counts[name])
        for name, count in counts.items():
            if name.startswith(_DEAD_LETTERS):
                self.dead_letters.labels(name.removeprefix(_DEAD_LETTERS)).inc(count)

    def text(self) -> bytes:
        """Returns all of it in Prometheus' text format."""
        return generate_latest(self.registry)
