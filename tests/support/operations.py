"""What an operator does to a sidecar and sees of it: events in, results and dead letters out, probes, admin calls."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourceType,
)

from stream_metrics.events import StepMetrics, decode_result
from support.brokers import _free_ports
from support.sidecar_process import Deployment, SidecarProcess, Stumble, deployment
from support.topics import NewRecord, Record, produce, read_topic
from support.waiting import DEADLINE_SECONDS, wait_until

_PASSES = (
    KafkaError.TOPIC_ALREADY_EXISTS,  # still being deleted
    KafkaError.REQUEST_TIMED_OUT,
    KafkaError.INVALID_REPLICATION_FACTOR,  # a broker that was paused counts only once it is known to be back
)

Event = dict[str, Any] | bytes | NewRecord | None


class Operated:
    """A deployment, and one replica of it at a time with its probes.

    Attributes:
        deployment: Topics, group and settings.
        process: The newest replica.
    """

    def __init__(self, made: Deployment) -> None:
        self.deployment = made
        self.bootstrap = made.bootstrap
        self.admin = AdminClient({"bootstrap.servers": made.bootstrap, "log_level": 0})
        self.process: SidecarProcess = None  # type: ignore[assignment]  # until the first start
        self._port = 0

    def start(self, stumble: Stumble | None = None, **settings: Any) -> SidecarProcess:
        """Starts a replica; `settings` are more than the deployment's, or instead of them."""
        (self._port,) = _free_ports(1)
        self.process = self.deployment.start(stumble=stumble, http_port=self._port, **settings)
        return self.process

    def start_ready(self, **settings: Any) -> SidecarProcess:
        """Starts a replica and waits until it has its partitions."""
        self.start(**settings)
        self.process.wait_for("partitions assigned")
        return self.process

    def restart(self, **settings: Any) -> SidecarProcess:
        """The replica has ended in order, and another one has its partitions."""
        assert self.process.terminate() == 0, self.process.told()
        return self.start_ready(**settings)

    def send(self, *events: Event, run_id: str | None = None, partition: int = 0) -> None:
        """The events are in the input topic, on one partition and in order."""
        produce(self.bootstrap, self.deployment.input_topic, [record(one, run_id, partition) for one in events])

    def results(self, run_id: str | None = None) -> list[StepMetrics]:
        """Returns what a reader sees, of one run or of all."""
        read = read_topic(self.bootstrap, self.deployment.output_topic)
        results = [decode_result(one.value) for one in read if one.value is not None]
        return [one for one in results if run_id in (None, one.run_id)]

    def wait_for_results(
        self, count: int, run_id: str | None = None, deadline_seconds: float = DEADLINE_SECONDS
    ) -> list[Any]:
        """Returns the results of a run once there are so many, and no more than that."""
        results = self.wait_until(
            lambda: found if len(found := self.results(run_id)) >= count else None,
            f"{count} results of {run_id}",
            deadline_seconds,
        )
        assert len(results) == count, results
        return list(results)

    def letters(self) -> list[Record]:
        """Returns the dead letters."""
        return read_topic(self.bootstrap, self.deployment.dead_letter_topic)

    def wait_for_letters(self, count: int, deadline_seconds: float = DEADLINE_SECONDS) -> list[Record]:
        """Returns the dead letters once there are so many, and no more than that."""
        letters = self.wait_until(
            lambda: found if len(found := self.letters()) >= count else None,
            f"{count} dead letters",
            deadline_seconds,
        )
        assert len(letters) == count, letters
        return list(letters)

    def wait_until(self, condition: Any, what: str, deadline_seconds: float = DEADLINE_SECONDS) -> Any:
        """As `support.waiting.wait_until`, with the replica's log in the failure."""
        try:
            return wait_until(condition, what, deadline_seconds)
        except AssertionError as error:
            error.add_note(f"exit code {self.process.exit_code}; its log:\n{self.process.told()}")
            raise

    def get(self, path: str) -> tuple[int, str]:
        """Returns status and body of a page; status 0 where nobody answers."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._port}{path}", timeout=5) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()
        except OSError:
            return 0, ""

    def metric(self, name: str, **labels: str) -> float:
        """Returns a sample of `/metrics`, 0.0 where there is none."""
        from prometheus_client.parser import text_string_to_metric_families

        for family in text_string_to_metric_families(self.get("/metrics")[1]):
            for one in family.samples:
                if one.name == f"stream_metrics_{name}" and one.labels == labels:
                    return float(one.value)
        return 0.0

    def wait_until_read(self, deadline_seconds: float = DEADLINE_SECONDS) -> None:
        """All that is in the input topic has been folded and committed."""
        self.deployment.wait_until_all_is_committed(deadline_seconds)

    def delete_records(self, before: int, partition: int = 0) -> None:
        """The input partition begins at an offset, as after its retention; -1 for its end."""
        place = TopicPartition(self.deployment.input_topic, partition, before)
        _done(self.admin.delete_records([place]))

    def delete_topic(self, topic: str) -> None:
        """The topic is gone."""
        _done(self.admin.delete_topics([topic]))
        self.wait_until(lambda: topic not in self.admin.list_topics(timeout=10).topics, f"{topic} deleted")

    def make_topic(self, topic: str, partitions: int = 1, **config: str) -> None:
        """The topic is there, even where one of that name is still being deleted."""
        new = NewTopic(topic, partitions, 1, config={name.replace("_", "."): value for name, value in config.items()})

        def is_made() -> bool:
            try:
                _done(self.admin.create_topics([new]))
            except KafkaException as error:
                if error.args[0].code() in _PASSES:
                    return False
                raise
            except TimeoutError:
                return False
            return True

        self.wait_until(is_made, f"{topic} made", 60)

    def set_topic_config(self, topic: str, name: str, value: str) -> None:
        resource = ConfigResource(ResourceType.TOPIC, topic)
        resource.add_incremental_config(ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET))
        _done(self.admin.incremental_alter_configs([resource]))

    def add_partitions(self, total: int) -> None:
        _done(self.admin.create_partitions([NewPartitions(self.deployment.input_topic, total)]))
        self.deployment.partitions = total

    def commit_as_somebody_else(self, offset: int, metadata: str | None, partition: int = 0) -> None:
        """The group's committed offset is this; no replica may be running."""
        consumer = Consumer({"bootstrap.servers": self.bootstrap, "group.id": self.deployment.group, "log_level": 0})
        place = TopicPartition(self.deployment.input_topic, partition, offset)
        if metadata is not None:
            place = TopicPartition(self.deployment.input_topic, partition, offset, metadata=metadata)
        (done,) = consumer.commit(offsets=[place], asynchronous=False)
        consumer.close()
        assert done.error is None, done.error


def _done(futures: dict[Any, Future[Any]]) -> None:
    for future in futures.values():
        future.result(DEADLINE_SECONDS)


def record(event: Event, run_id: str | None = None, partition: int = 0) -> NewRecord:
    """Returns an event as a record: an object as JSON with its run as key, everything else as it is."""
    if isinstance(event, NewRecord):
        return event
    if not isinstance(event, dict):
        return NewRecord(event, partition=partition)
    if run_id is not None:
        event = {**event, "run_id": run_id}
    return NewRecord(json.dumps(event).encode(), key=str(event.get("run_id", "")).encode(), partition=partition)


@contextmanager
def operated(bootstrap: str, folder: Path, partitions: int = 1, **settings: Any) -> Iterator[Operated]:
    """A deployment with topics of its own, whose replicas end with it; nothing is started yet."""
    with deployment(bootstrap, folder, partitions, **{"commit_interval": 0.5, **settings}) as made:
        yield Operated(made)
