"""Every metric the sidecar has of itself, in one typed list. No run, step or rollout is ever a label.

Labels come from closed lists, and each of their values is there from the start: a counter that appears only with its
first event has no growth that an alert could see.
"""

from __future__ import annotations

from collections.abc import MutableMapping, Sequence
from typing import Final, Literal, NamedTuple, get_args

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)

from stream_metrics.events import DeadLetterReason

RebalanceKind = Literal["assigned", "revoked", "lost"]
EventType = Literal["sample", "samples", "close"]

_TRANSACTION: Final = (0.002, 0.004, 0.006, 0.01, 0.015, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10)
_DELAY: Final = (0.004, 0.006, 0.01, 0.015, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10, 30, 60, 300, 1800)
_RESTORE: Final = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)

_NO_SINGLE_SAMPLE: Final = frozenset({"events_samples", "events_close", "tombstones", "dead_letters_undecodable"})
"""What the fold counts of records that are no single sample. Those are all others, and not counted one by one."""


class Listed(NamedTuple):
    """One metric, for the papers."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    label: str
    values: Sequence[str]
    about: str


class SelfMetrics:
    """The sidecar's own metrics, in a registry of their own.

    Attributes:
        listed: What there is. Beside it stand the process's own (`process_*`), where the system shows them.
    """

    def __init__(self) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]  # a second series for each counter, that nobody reads
        self.registry = CollectorRegistry(auto_describe=True)
        self.listed: list[Listed] = []
        ProcessCollector(registry=self.registry)

        def named(kind: Literal["counter", "gauge", "histogram"], name: str, about: str) -> str:
            self.listed.append(Listed(f"stream_metrics_{name}", kind, "", (), about))
            return self.listed[-1].name

        def counter(name: str, about: str) -> Counter:
            return Counter(named("counter", name, about), about, registry=self.registry)

        def labelled(name: str, about: str, label: str, values: Sequence[str]) -> Counter:
            made = Counter(named("counter", name, about), about, (label,), registry=self.registry)
            self.listed[-1] = self.listed[-1]._replace(label=label, values=values)
            for value in values:
                made.labels(value)
            return made

        def gauge(name: str, about: str) -> Gauge:
            return Gauge(named("gauge", name, about), about, registry=self.registry)

        def histogram(name: str, about: str, buckets: Sequence[float]) -> Histogram:
            return Histogram(named("histogram", name, about), about, registry=self.registry, buckets=buckets)

        self.records = counter("records_total", "Records consumed and folded, replays left out.")
        self.events = labelled("events_total", "Events among the records.", "type", get_args(EventType))
        self.replayed_records = counter("replayed_records_total", "Records folded again to rebuild windows.")
        self.samples = counter("samples_total", "Samples taken into a step.")
        self.duplicates = counter("duplicate_samples_total", "Samples dropped because their sample_id had been seen.")
        self.late = counter("late_samples_total", "Samples taken after their step's close.")
        self.tombstones = counter("tombstones_total", "Records without a value, skipped.")
        self.dead_letters = labelled("dead_letters_total", "Records set aside.", "reason", get_args(DeadLetterReason))
        self.results = counter("results_total", "On-time results.")
        self.incomplete = counter("incomplete_results_total", "On-time results that were not complete.")
        self.corrections = counter("corrections_total", "Corrected results.")
        self.redone = counter("redone_steps_total", "Times that late events looked like a step done again.")
        self.disagreeing = counter(
            "disagreeing_markers_total", "Steps that a producer closed twice, with different numbers."
        )
        self.evicted = counter("evicted_windows_total", "Steps closed to make room.")
        self.floors_dropped = counter("floors_dropped_total", "Runs forgotten altogether to make room.")
        self.timeouts = counter("timeout_markers_total", "Timeout markers written.")
        self.lost_records = counter("lost_records_total", "Offsets that retention had removed before they were read.")
        self.split_runs = counter("split_runs_total", "Runs seen on two partitions.")
        self.commits = counter("commits_total", "Transactions committed.")
        self.aborts = counter("transaction_aborts_total", "Transactions aborted.")
        self.rebalances = labelled(
            "rebalances_total", "Times partitions were given or taken.", "kind", get_args(RebalanceKind)
        )
        self.restarts = counter("restarts_total", "Times the sidecar began anew with new clients.")
        self.sink_restarts = counter("sink_restarts_total", "Times that a sink of --sink ended and began again.")
        self.restores = counter("restores_total", "Partitions rebuilt from the log.")
        self.restore_seconds = histogram(
            "restore_seconds", "From assignment of a partition to its windows rebuilt.", _RESTORE
        )
        self.commit_seconds = histogram("commit_seconds", "From beginning a transaction to its commit.", _TRANSACTION)
        self.publish_seconds = histogram(
            "close_to_publish_seconds",
            "From the timestamp of the record that closed a step to its on-time result's commit.",
            _DELAY,
        )
        self.partitions = gauge("partitions", "Partitions owned.")
        self.open_windows = gauge("open_windows", "Steps open or closing.")
        self.windows = gauge("windows", "Steps in memory.")
        self.held_samples = gauge("held_samples", "Samples in memory.")
        self.replay_distance = gauge("replay_distance", "Offsets that a restart now would fold again.")
        self.lag = gauge("consumer_lag", "Offsets between the end of the log and the next to read.")
        self.oldest_open_seconds = gauge("oldest_open_step_age_seconds", "Age of the oldest open step.")
        self.is_ready = gauge("is_ready", "1 while /readyz says so.")

        self._single_samples = self.events.labels("sample")
        self._by_count: dict[str, Counter] = {
            "samples": self.samples,
            "duplicates": self.duplicates,
            "late_samples": self.late,
            "tombstones": self.tombstones,
            "results": self.results,
            "incomplete_results": self.incomplete,
            "corrections": self.corrections,
            "redone_steps": self.redone,
            "disagreeing_markers": self.disagreeing,
            "evicted_windows": self.evicted,
            "floors_dropped": self.floors_dropped,
            "events_samples": self.events.labels("samples"),
            "events_close": self.events.labels("close"),
            **{f"dead_letters_{reason}": self.dead_letters.labels(reason) for reason in get_args(DeadLetterReason)},
        }

    def take(self, records: int, counts: MutableMapping[str, int]) -> None:
        """Adds what a fold has counted since the last call, and empties its counts.

        Args:
            records: Records that it was fed since then.
            counts: What it has counted.
        """
        others = 0
        for name, count in counts.items():
            if count:
                metric = self._by_count.get(name)
                if metric is not None:
                    metric.inc(count)
                if name in _NO_SINGLE_SAMPLE:
                    others += count
        if records:
            self.records.inc(records)
            self._single_samples.inc(records - others)
        counts.clear()

    def text(self) -> bytes:
        """Returns all of it in Prometheus' text format."""
        return generate_latest(self.registry)
