"""Topics of the wrong kind, and topics that change under a running sidecar."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from stream_metrics.testing import close, sample
from support.brokers import Broker
from support.operations import Operated, operated
from support.topics import create_topic


@pytest.fixture
def sidecar(broker: Broker, tmp_path: Path) -> Iterator[Operated]:
    with operated(broker.bootstrap, tmp_path) as made:
        yield made


def test_a_compacted_input_topic_is_refused_by_name(sidecar: Operated) -> None:
    topic = create_topic(sidecar.bootstrap, "compacted", config={"cleanup.policy": "compact"})
    sidecar.start(input_topic=topic)
    assert sidecar.process.wait_until_ended() == 3
    (line,) = (line for line in sidecar.process.log() if line["level"] == "error")
    assert f"input topic {topic!r} is compacted" in line["message"]
    assert sidecar.deployment.committed()[0] == -1


def test_topics_that_can_lose_what_is_needed_are_warned_about_by_name(sidecar: Operated) -> None:
    source = create_topic(sidecar.bootstrap, "short", config={"retention.ms": "60000", "retention.bytes": "1000000"})
    output = create_topic(sidecar.bootstrap, "uncompacted", config={"cleanup.policy": "delete"})
    sidecar.start_ready(input_topic=source, output_topic=output)
    retention = sidecar.process.said("the input topic's retention can drop samples of open steps")
    assert [(line["level"], line["topic"], line["retention_ms"]) for line in retention] == [("warning", source, 60_000)]
    (size,) = sidecar.process.said("the input topic is bounded in bytes")
    assert size["topic"] == source
    (compaction,) = sidecar.process.said("the output topic is not compacted")
    assert compaction["topic"] == output


def test_a_topic_deleted_and_made_again_under_a_running_sidecar_is_noticed_and_refused(sidecar: Operated) -> None:
    topic = sidecar.deployment.input_topic
    sidecar.start_ready()
    sidecar.send(*([sample(1, 1.0)] * 10))
    sidecar.wait_until_read()
    sidecar.delete_topic(topic)
    sidecar.make_topic(topic)
    sidecar.send(sample(1, 0.0), close(1))
    assert sidecar.process.wait_until_ended(60) == 5, sidecar.process.told()
    (line,) = (line for line in sidecar.process.log() if line["level"] == "error")
    assert f"{topic}[0]" in line["message"] and "made anew" in line["message"] and "--group-id" in line["message"]
    assert sidecar.results() == []  # neither step 1 of the old topic nor half of the new one's


def test_a_topic_made_again_with_more_in_it_than_had_been_read_is_noticed_and_refused(sidecar: Operated) -> None:
    topic = sidecar.deployment.input_topic
    sidecar.start_ready()
    sidecar.send(*([sample(1, 1.0)] * 3))
    sidecar.wait_until_read()
    sidecar.process.freeze()  # or it would find the new one while that is still shorter
    sidecar.delete_topic(topic)
    sidecar.make_topic(topic)
    sidecar.send(*([sample(1, 0.0)] * 10))  # so its client reads on from offset 3 as if nothing had been
    sidecar.process.thaw()
    assert sidecar.process.wait_until_ended(60) == 5, sidecar.process.told()
    (line,) = (line for line in sidecar.process.log() if line["level"] == "error")
    assert f"{topic} was made anew" in line["message"] and "--group-id" in line["message"]
    assert sidecar.results() == []


def test_a_topic_made_again_with_the_same_in_it_is_refused_and_gone_on_in_where_that_is_wanted(
    sidecar: Operated,
) -> None:
    events = [sample(1, 1.0)] * 3
    sidecar.start_ready()
    sidecar.send(*events)
    sidecar.wait_until_read()
    assert sidecar.process.terminate() == 0
    topic, note = sidecar.deployment.input_topic, sidecar.deployment.committed_note()
    sidecar.delete_topic(topic)
    sidecar.make_topic(topic)
    sidecar.send(*events)
    sidecar.commit_as_somebody_else(3, note)  # as in a copy of the cluster
    sidecar.start()
    assert sidecar.process.wait_until_ended() == 5, sidecar.process.told()
    (line,) = (line for line in sidecar.process.log() if line["level"] == "error")
    assert f"{topic} was made anew" in line["message"] and "--accept-changed-replay" in line["message"]
    sidecar.start_ready(accept_changed_replay=True)
    sidecar.send(close(1))
    (result,) = sidecar.wait_for_results(1)
    assert result.metrics["rollout/num_training_samples"] == 3
    sidecar.restart()  # the topic that it is now has been committed


def test_a_topic_that_is_gone_makes_the_sidecar_not_ready(stoppable_broker: Broker, tmp_path: Path) -> None:
    with operated(stoppable_broker.bootstrap, tmp_path) as sidecar:
        topic = sidecar.deployment.input_topic
        sidecar.start_ready()
        sidecar.wait_until(lambda: sidecar.get("/readyz")[0] == 200, "ready")
        sidecar.delete_topic(topic)
        sidecar.wait_until(lambda: sidecar.get("/readyz")[0] == 503, "not ready")
        said = sidecar.process.wait_for("the consumer says")
        assert said["topic"] == topic
        sidecar.wait_until(lambda: f"{topic}' is missing" in sidecar.get("/readyz")[1], "the reason")
        sidecar.make_topic(topic)  # nothing had been committed of it but its start
        sidecar.send(sample(1, 1.0), close(1))
        sidecar.wait_for_results(1, deadline_seconds=60)
        sidecar.wait_until(lambda: sidecar.get("/readyz")[0] == 200, "ready again")


def test_partitions_added_while_running_are_found_and_read_from_their_start(sidecar: Operated) -> None:
    sidecar.start_ready(kafka_config="topic.metadata.refresh.interval.ms=500", start="latest")
    sidecar.send(sample(1, 1.0), run_id="old")
    sidecar.add_partitions(3)
    sidecar.send(sample(1, 0.5), close(1), run_id="new", partition=2)
    (result,) = sidecar.wait_for_results(1, "new")
    assert result.log.partition == 2 and result.complete
    sidecar.send(close(1), run_id="old")
    (result,) = sidecar.wait_for_results(1, "old")  # its window was kept
    assert result.metrics["rollout/num_training_samples"] == 1
    sidecar.wait_until_read()


def test_a_step_that_partitions_were_added_in_the_middle_of_is_incomplete_wherever_its_parts_are(
    sidecar: Operated,
) -> None:
    often = "topic.metadata.refresh.interval.ms=500"
    sidecar.start_ready(kafka_config=often, close_grace=1, idle_timeout=3)
    sidecar.send(sample(1, 1.0, sample_id="a"), sample(1, 1.0, sample_id="b"), run_id="moved", partition=0)
    sidecar.add_partitions(2)
    # The trainer's client sends the rest elsewhere; the one sample whose fate it didn't know it sends again.
    rest = [sample(1, 0.0, sample_id="b"), sample(1, 0.0, sample_id="c"), close(1, expected_samples=3)]
    sidecar.send(*rest, run_id="moved", partition=1)
    results = sidecar.wait_for_results(2, "moved")
    assert {one.log.partition for one in results} == {0, 1}
    assert [(one.complete, one.reason) for one in results] == [(False, "timeout")] * 2
    assert [one.metrics["rollout/num_training_samples"] for one in results] == [2, 2]
    sidecar.wait_until(lambda: sidecar.metric("split_runs_total") == 1, "it is counted")
    assert sidecar.process.said("a run is on two partitions")[0]["run_id"] == "moved"


def test_a_run_on_two_partitions_is_named_once_and_counted(broker: Broker, tmp_path: Path) -> None:
    with operated(broker.bootstrap, tmp_path, partitions=2) as sidecar:
        sidecar.start_ready()
        sidecar.send(sample(1, 1.0), sample(2, 1.0), run_id="split", partition=0)
        sidecar.send(sample(1, 1.0), run_id="whole", partition=1)
        sidecar.send(sample(1, 1.0), run_id="split", partition=1)
        line = sidecar.process.wait_for("a run is on two partitions")
        assert (line["level"], line["run_id"], line["partitions"]) == ("error", "split", "0,1")
        assert sidecar.metric("split_runs_total") == 1
        sidecar.send(sample(2, 1.0), run_id="split", partition=1)
        sidecar.wait_until_read()
        sidecar.wait_until(lambda: sidecar.metric("open_windows") == 5, "another look at the partitions")
        assert len(sidecar.process.said("a run is on two partitions")) == 1
