"""What a sidecar finds when it starts: offsets that aren't ours, other settings, a log that isn't the one it was."""

from __future__ import annotations

import json
import re
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from stream_metrics.core import compiled
from stream_metrics.testing import close, sample
from support.brokers import Broker
from support.operations import Operated, operated
from support.sidecar_process import Stumble


@pytest.fixture
def sidecar(broker: Broker, tmp_path: Path) -> Iterator[Operated]:
    with operated(broker.bootstrap, tmp_path) as made:
        yield made


def _refusal(sidecar: Operated, **settings: object) -> str:
    """Starts a replica that must refuse the state it finds, and returns what it says."""
    sidecar.start(**settings)
    assert sidecar.process.wait_until_ended() == 5, sidecar.process.told()
    (line,) = (line for line in sidecar.process.log() if line["level"] == "error")
    assert line["exit_code"] == 5
    return str(line["message"])


def test_a_replica_without_the_compiled_part_takes_over_from_one_with_it_and_back(sidecar: Operated) -> None:
    def some(first: int) -> list[dict[str, object]]:
        place = range(first, first + 200)
        return [
            sample(1, one / 7, group_index=0, rollout_id=one // 3, sample_id=f"s{one}", position=one) for one in place
        ]

    (line,) = sidecar.start_ready().said("started")
    assert line["reader"] == ("compiled" if compiled.IS_THERE else "python")
    sidecar.send(*some(0))
    sidecar.wait_until_read()
    (line,) = sidecar.restart(pure_python=True).said("started")
    assert line["reader"] == "python"
    sidecar.send(*some(100))
    sidecar.wait_until_read()
    sidecar.restart()
    sidecar.send(*some(200), close(1))
    (result,) = sidecar.wait_for_results(1)
    assert result.metrics["rollout/num_training_samples"] == 400
    assert result.metrics["rollout/duplicate_samples"] == 200


# --- where to start ---------------------------------------------------------------------------------------------------


def test_a_first_start_reads_from_the_earliest_record(sidecar: Operated) -> None:
    sidecar.send(sample(1, 1.0))
    sidecar.start_ready()
    sidecar.send(close(1))
    (result,) = sidecar.wait_for_results(1)
    assert result.metrics["rollout/num_training_samples"] == 1
    sidecar.wait_until_read()


def test_a_first_start_from_the_latest_record_leaves_out_what_was_there_once_and_for_all(sidecar: Operated) -> None:
    sidecar.send(sample(1, 1.0), close(1))
    sidecar.start_ready(start="latest")
    sidecar.wait_until_read()  # its position is committed though nothing has come
    assert sidecar.process.terminate() == 0
    sidecar.send(sample(2, 1.0), close(2))  # while it is away
    sidecar.start_ready(start="latest")
    (result,) = sidecar.wait_for_results(1)
    assert result.step == 2


def test_a_restore_that_takes_longer_than_a_transaction_may_is_followed_by_one(sidecar: Operated) -> None:
    sidecar.start_ready(transaction_timeout=3)
    sidecar.send(*[sample(1, 1.0)] * 10)
    sidecar.wait_until_read()
    assert sidecar.process.terminate() == 0
    sidecar.start(Stumble("restoring", how=signal.SIGSTOP), transaction_timeout=3)
    sidecar.process.wait_until_frozen()
    threading.Event().wait(4)  # as a long restore would take; a transaction opened before it would be too old by now
    sidecar.process.thaw()
    assert sidecar.process.wait_for("partition restored")["seconds"] > 3.5
    sidecar.send(close(1))
    (result,) = sidecar.wait_for_results(1)
    assert result.complete and result.metrics["rollout/num_training_samples"] == 10
    sidecar.wait_until_read()
    assert sidecar.metric("transaction_aborts_total") == sidecar.metric("restarts_total") == 0


# --- offsets that aren't ours -----------------------------------------------------------------------------------------

NEWER = json.dumps({"stream_metrics": 999, "what": "ever"})


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [
        (None, "committed without a replay note"),
        ("committed by hand", "no replay note of stream_metrics"),
        ('{"stream_metrics":1,"fold":1,"replay_from":0,"next_ch', "no replay note of stream_metrics"),
        ('{"stream_metrics":1,"fold":1,"replay_from":"x"}', "damaged"),
        (NEWER, "run the newer program"),
    ],
    ids=["none", "foreign", "cut", "damaged", "newer"],
)
def test_an_offset_that_is_not_ours_is_refused_with_what_to_do(
    sidecar: Operated, metadata: str | None, expected: str
) -> None:
    sidecar.send(*([sample(1, 1.0)] * 5))
    sidecar.commit_as_somebody_else(3, metadata)
    message = _refusal(sidecar)
    assert message.startswith(f"offset 3 of {sidecar.deployment.input_topic}[0] in group")
    assert expected in message
    assert "--group-id" in message and "--adopt-offsets" in message
    assert sidecar.deployment.committed()[0] == 3


def test_an_offset_that_is_not_ours_is_gone_on_from_where_that_is_wanted(sidecar: Operated) -> None:
    sidecar.send(*([sample(1, 1.0)] * 5))
    sidecar.commit_as_somebody_else(3, "by hand")
    sidecar.start_ready(adopt_offsets=True)
    line = sidecar.process.wait_for("adopted an offset that isn't ours")
    assert line["level"] == "warning" and sidecar.deployment.input_topic in line["offset"]
    sidecar.wait_until_read()
    sidecar.restart()  # from now on it is ours
    sidecar.send(close(1))
    (result,) = sidecar.wait_for_results(1)
    assert result.metrics["rollout/num_training_samples"] == 2


# --- other settings ---------------------------------------------------------------------------------------------------


def test_open_steps_follow_changed_settings_and_closed_ones_stay_as_they_were(sidecar: Operated) -> None:
    first, then = {"reward_key": "a"}, {"reward_key": "b"}
    rewards = {"a": 1.0, "b": 0.0}
    sidecar.start_ready(**first)
    sidecar.send(sample(1, rewards), close(1), sample(2, rewards))
    sidecar.wait_for_results(1)
    sidecar.wait_until_read()
    sidecar.restart(**then)
    sidecar.process.wait_for("settings or version have changed")
    sidecar.send(sample(1, rewards, rollout_id="late"))
    sidecar.wait_for_letters(1)
    sidecar.wait_until_read()
    sidecar.restart(**then)  # it isn't forgotten
    sidecar.send(sample(1, rewards, rollout_id="later"), sample(2, rewards), close(2))
    closed, followed = sidecar.wait_for_results(2)
    assert (closed.step, closed.metrics["rollout/episode_raw_reward"]) == (1, 1.0)
    assert (followed.step, followed.metrics["rollout/episode_raw_reward"]) == (2, 0.0)
    assert followed.metrics["rollout/num_training_samples"] == 2 and followed.complete
    letters = sidecar.wait_for_letters(2)
    assert [dict(one.headers)["stream_metrics.reason"] for one in letters] == [b"late", b"late"]


# --- a log that isn't the one it was ----------------------------------------------------------------------------------


def test_a_log_cut_in_the_middle_of_a_step_gives_it_incomplete_and_once_over_two_restarts(sidecar: Operated) -> None:
    sidecar.start_ready()
    sidecar.send(*([sample(1, 1.0)] * 6), run_id="cut")
    sidecar.send(sample(7, 1.0), run_id="whole")
    sidecar.wait_until_read()
    assert sidecar.process.terminate() == 0
    sidecar.delete_records(4)
    sidecar.start_ready()
    line = sidecar.process.wait_for("retention removed what steps in memory were made from")
    assert (line["level"], line["topic"]) == ("error", sidecar.deployment.input_topic)
    assert (line["lost_from"], line["lost_to"]) == (0, 3)
    (result,) = sidecar.wait_for_results(1, "cut")
    assert (result.complete, result.reason, result.correction) == (False, "data_lost", False)
    assert result.metrics["rollout/num_training_samples"] == 2
    hit = sidecar.process.said("a step is incomplete for good")
    assert [(line["run_id"], line["step"], line["samples_left"]) for line in hit] == [("cut", 1, 2), ("whole", 7, 1)]
    assert sidecar.metric("lost_records_total") == 4
    sidecar.wait_until_read()
    for _ in range(2):
        sidecar.restart()
        sidecar.wait_until_read()
    sidecar.send(sample(8, 1.0), close(8), run_id="after")
    sidecar.wait_for_results(1, "after")
    assert len(sidecar.results("cut")) == 1
    assert sidecar.process.exit_code is None


def test_a_log_cut_above_what_was_committed_is_said_and_gone_on_from(sidecar: Operated) -> None:
    sidecar.start_ready()
    sidecar.send(sample(1, 1.0), sample(1, 1.0))
    sidecar.wait_until_read()
    assert sidecar.process.terminate() == 0
    sidecar.send(*([sample(1, 1.0)] * 4), sample(2, 1.0), close(2))
    sidecar.delete_records(6)
    sidecar.start_ready()
    line = sidecar.process.wait_for("retention removed what steps in memory were made from")
    assert (line["lost_from"], line["lost_to"], line["lost_unread"]) == (0, 5, 4)
    results = sidecar.wait_for_results(1)
    # Whether more of step 2 was among what is gone can't be known, and its marker doesn't say.
    assert (results[0].step, results[0].metrics["rollout/num_training_samples"]) == (2, 1)
    assert (results[0].complete, results[0].reason) == (False, "data_lost")
    sidecar.restart()
    sidecar.send(sample(3, 1.0), close(3))
    assert sidecar.wait_for_results(2)[-1].complete
    sidecar.wait_until_read()


def test_a_log_of_which_nothing_is_left_is_gone_on_from_at_its_end(sidecar: Operated) -> None:
    sidecar.start_ready()
    sidecar.send(*([sample(1, 1.0)] * 5))
    sidecar.wait_until_read()
    assert sidecar.process.terminate() == 0
    sidecar.delete_records(-1)
    sidecar.start_ready()
    sidecar.restart()
    sidecar.send(close(1), sample(2, 1.0), close(2, expected_samples=1))
    lost, whole = sidecar.wait_for_results(2)
    assert (lost.step, lost.complete, lost.reason) == (1, False, "data_lost")
    assert whole.step == 2 and whole.complete
    sidecar.wait_until_read()


def test_a_log_emptied_under_a_running_sidecar_changes_nothing(sidecar: Operated) -> None:
    sidecar.start_ready()
    sidecar.send(sample(1, 1.0))
    sidecar.wait_until_read()
    sidecar.delete_records(-1)
    sidecar.send(close(1))
    (result,) = sidecar.wait_for_results(1)
    assert result.complete and result.metrics["rollout/num_training_samples"] == 1


@pytest.mark.parametrize("assignment", ["cooperative", "eager"])
def test_a_running_sidecar_that_retention_overtakes_publishes_what_it_had_and_goes_on(
    sidecar: Operated, assignment: str
) -> None:
    sidecar.start_ready(assignment=assignment)
    sidecar.send(sample(1, 1.0), sample(1, 1.0), run_id="cut")
    sidecar.send(sample(5, 1.0), run_id="told")
    sidecar.wait_until_read()
    sidecar.process.freeze()
    for _ in range(8):  # one by one: no more than the first of them answers the fetch that is under way
        sidecar.send(sample(1, 0.0), run_id="cut")
    sidecar.delete_records(9)
    sidecar.process.thaw()
    line = sidecar.process.wait_for("retention removed what had not been read")
    assert (line["level"], line["topic"], line["partition"]) == ("error", sidecar.deployment.input_topic, 0)
    assert line["lost_from"] in (3, 4, 5) and line["lost_to"] == 8
    results = {one.run_id: one for one in sidecar.wait_for_results(2)}
    assert [(one.complete, one.reason) for one in results.values()] == [(False, "data_lost")] * 2
    # What was held before the loss, and what is left behind it.
    assert results["cut"].metrics["rollout/num_training_samples"] == 2 + 2 + (line["lost_from"] - 3)
    hit = sidecar.process.said("a step is incomplete for good")
    assert [(one["run_id"], one["step"]) for one in hit] == [("cut", 1), ("told", 5)]
    assert sidecar.metric("lost_records_total") == 9 - line["lost_from"]
    # Step 2 may have begun in what is gone, and nothing says how many samples it has; step 3 can't have.
    sidecar.send(close(1), sample(2, 1.0), close(2), run_id="cut")
    sidecar.wait_for_results(2, "cut")
    sidecar.wait_until_read()
    sidecar.restart()
    sidecar.send(sample(3, 1.0), close(3), run_id="cut")
    sidecar.send(sample(6, 1.0), close(6, expected_samples=1), run_id="told")
    first, doubtful, whole = sidecar.wait_for_results(3, "cut")
    assert [first.step, doubtful.step, whole.step] == [1, 2, 3]
    assert (doubtful.complete, doubtful.reason) == (False, "data_lost")
    assert (whole.complete, whole.reason) == (True, "closed")
    assert sidecar.wait_for_results(2, "told")[-1].complete
    sidecar.wait_until_read()
    assert sidecar.process.said("beginning anew") == []


def test_records_that_are_not_what_was_committed_are_refused_with_what_to_do(sidecar: Operated) -> None:
    sidecar.start_ready()
    sidecar.send(sample(1, 1.0), sample(1, 1.0))
    sidecar.wait_until_read()
    assert sidecar.process.terminate() == 0
    topic, note = sidecar.deployment.input_topic, _note_of_any_topic(sidecar)
    sidecar.delete_topic(topic)
    sidecar.make_topic(topic)
    sidecar.send(sample(8, 1.0), sample(9, 1.0), sample(9, 1.0))
    sidecar.commit_as_somebody_else(2, note)  # a broker that kept the offsets, or a backup that brought them back
    message = _refusal(sidecar)
    assert f"{topic}[0] from 0 to 2 replays to other windows" in message
    assert "not the one it was" in message and "--accept-changed-replay" in message
    sidecar.start_ready(accept_changed_replay=True)
    sidecar.send(close(9))
    (result,) = sidecar.wait_for_results(1)
    assert result.metrics["rollout/num_training_samples"] == 2


def test_a_topic_made_anew_that_ends_before_what_was_committed_is_refused(sidecar: Operated) -> None:
    sidecar.start_ready()
    sidecar.send(*([sample(1, 1.0), close(1)] * 1), *([sample(2, 1.0)] * 8))
    sidecar.wait_until_read()
    assert sidecar.process.terminate() == 0
    topic, note = sidecar.deployment.input_topic, _note_of_any_topic(sidecar)
    committed = sidecar.deployment.committed()[0]
    sidecar.delete_topic(topic)
    sidecar.make_topic(topic)
    sidecar.commit_as_somebody_else(committed, note.replace('"replay_from":0', f'"replay_from":{committed - 1}'))
    message = _refusal(sidecar)
    assert f"{topic}[0]" in message and "made anew" in message and "--group-id" in message


def test_a_topic_deleted_and_made_again_while_nobody_ran_is_read_from_its_start(sidecar: Operated) -> None:
    sidecar.start_ready()
    sidecar.send(*([sample(1, 1.0)] * 8))
    sidecar.wait_until_read()
    assert sidecar.process.terminate() == 0
    topic = sidecar.deployment.input_topic
    sidecar.delete_topic(topic)  # the broker forgets the offsets committed of it
    sidecar.make_topic(topic)
    sidecar.send(sample(1, 0.0), close(1))
    sidecar.start_ready()
    (result,) = sidecar.wait_for_results(1)
    assert (result.metrics["rollout/num_training_samples"], result.metrics["rollout/episode_raw_reward"]) == (1, 0.0)


def _note_of_any_topic(sidecar: Operated) -> str:
    """Returns the committed note as from a broker that gives topics no ids: all else has to be noticed without."""
    note = sidecar.deployment.committed_note()
    return re.sub(r'"topic_id":"[^"]+"', '"topic_id":""', note)
