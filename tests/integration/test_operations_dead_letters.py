"""Records that can't be used: set aside untouched, never in the way of what can be, and loud where they are many."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from confluent_kafka import Producer

from stream_metrics.testing import close, sample
from support.brokers import Broker
from support.operations import Operated, operated
from support.topics import NewRecord, Record, create_topic

PREFIX = "stream_metrics."
POISON = 20_000


@pytest.fixture
def sidecar(broker: Broker, tmp_path: Path) -> Iterator[Operated]:
    with operated(broker.bootstrap, tmp_path, dead_letter_limit=1) as made:
        yield made


def _origin(letter: Record) -> dict[str, str]:
    return {
        name.removeprefix(PREFIX): (value or b"").decode() for name, value in letter.headers if name.startswith(PREFIX)
    }


def test_what_can_not_be_read_is_set_aside_byte_for_byte_and_the_step_goes_on(sidecar: Operated) -> None:
    odd_headers = [("h", b"1"), ("h", None), ("h", b""), ("x", b"\xff\x00\n"), ("content-type", None), ("é", b"\xe9")]
    poison = [
        NewRecord(b"not json", key=b"\xff\x00", partition=0, headers=odd_headers, timestamp_ms=1_700_000_000_000),
        NewRecord(b"", key=None, partition=0),
        NewRecord(b"null", key=b"null", partition=0),
        NewRecord(b"\xff\xfe\x00", key=b"", partition=0),
        NewRecord(b'{"type":"sample","step":1', partition=0),
        NewRecord(b'{"type":"sample","step":true}', partition=0),
        NewRecord(b'{"type":"sample","step":1,"reward":"1"}', partition=0),
        NewRecord(b'{"type":"sample","step":9007199254740992}', partition=0),
        NewRecord(b'{"type":"sample","step":1,"run_id":"\xff"}', partition=0),
        NewRecord(rb'{"type":"sample","step":1,"run_id":"\ud800"}', partition=0),
        NewRecord(b'{"type":"sample","step":1,"x":' + b"[" * 100_000, partition=0),
        NewRecord(b'\xef\xbb\xbf{"type":"sample","step":1}', partition=0),
        NewRecord(b'{"type":"sample","step":1}{"type":"sample","step":1}', partition=0),
        NewRecord(b'{"type":"other","step":1}', partition=0),
        NewRecord(b"\x81\xc1", partition=0, headers=[("content-type", b"application/msgpack")]),
    ]
    sidecar.start_ready()
    sidecar.send(sample(1, 1.0), *(event for one in poison for event in (one, sample(1, 0.0))), None, close(1))
    (result,) = sidecar.wait_for_results(1)
    assert result.metrics["rollout/num_training_samples"] == 1 + len(poison)
    letters = sidecar.wait_for_letters(len(poison))
    for place, (letter, sent) in enumerate(zip(letters, poison, strict=True)):
        assert (letter.key, letter.value) == (sent.key, sent.value)
        assert letter.headers[: len(sent.headers)] == tuple(sent.headers)
        origin = _origin(letter)
        assert (origin["topic"], origin["partition"]) == (sidecar.deployment.input_topic, "0")
        assert origin["offset"] == str(1 + 2 * place)
        assert origin["reason"] == "undecodable" and origin["error"] == "EventError" and origin["message"]
    assert _origin(letters[0])["timestamp"] == "1700000000000"
    assert sidecar.metric("tombstones_total") == 1


def test_a_sample_of_MessagePack_counts_like_one_of_JSON(sidecar: Operated) -> None:
    packed = msgspec.msgpack.encode({"type": "sample", "step": 1, "reward": math.nan})
    sidecar.send(
        NewRecord(packed, partition=0, headers=[("Content-Type", b"Application/MsgPack; v=1")]),
        b'{"type":"sample","step":1,"reward":1e400}',
        b'{"type":"sample","step":1,"reward":NaN}',
        sample(1, 1.0),
        close(1),
    )
    sidecar.start_ready()
    (result,) = sidecar.wait_for_results(1)
    assert result.metrics["rollout/num_training_samples"] == 4
    assert result.metrics["rollout/nonfinite_rewards"] == 3
    assert result.metrics["rollout/episode_raw_reward"] == 1.0
    assert sidecar.letters() == []


@pytest.mark.parametrize("queue", [100_000, 100])
def test_nothing_but_poison_and_tombstones_moves_the_offset_to_the_end(sidecar: Operated, queue: int) -> None:
    """However few records the client takes before it says that its queue is full."""
    sidecar.start_ready(kafka_config=f"queue.buffering.max.messages={queue}")
    sidecar.send(*([b"poison"] * POISON), *([None] * 500))
    sidecar.wait_until_read()
    assert sidecar.deployment.committed()[0] == POISON + 500
    sidecar.wait_until(lambda: sidecar.metric("consumer_lag") == 0, "lag 0")
    origins = [_origin(letter)["offset"] for letter in sidecar.letters()]
    assert origins == [str(offset) for offset in range(POISON)]  # each once, and in their order
    sidecar.restart()
    sidecar.send(sample(1, 1.0), close(1))
    sidecar.wait_for_results(1)
    sidecar.wait_until_read()
    assert len(sidecar.letters()) == POISON  # a restart sets nothing aside again
    assert sidecar.process.exit_code is None


def test_late_too_late_and_superseded_samples_are_set_aside_with_their_reason(sidecar: Operated) -> None:
    sidecar.start_ready(late="dead_letter", remember_steps=1)
    for step in (1, 2, 3):
        sidecar.send(sample(step, 1.0), close(step), run_id="r")
    sidecar.wait_for_results(3)
    sidecar.send(sample(3, 0.0), sample(1, 0.0), sample(1, 1.0, attempt=1), sample(3, 0.0), run_id="r")
    reasons = [_origin(letter)["reason"] for letter in sidecar.wait_for_letters(3)]
    assert reasons == ["late", "too_late", "superseded"]
    sidecar.wait_until_read()  # records that no result comes of move the offset too
    sidecar.wait_until(lambda: sidecar.metric("consumer_lag") == 0, "lag 0")


def test_a_dead_letter_larger_than_its_topic_takes_is_cut_and_leaves_its_hash(broker: Broker, tmp_path: Path) -> None:
    with operated(broker.bootstrap, tmp_path) as sidecar:
        letters = create_topic(broker.bootstrap, "small", config={"max.message.bytes": "20000"})
        sidecar.deployment.dead_letter_topic = letters
        noise = b"".join(hashlib.sha256(b"%d" % number).digest() for number in range(30_000))  # doesn't compress
        sidecar.send(noise, NewRecord(b"x", key=noise[:600_000], partition=0), sample(1, 1.0), close(1))
        sidecar.start_ready()
        sidecar.wait_for_results(1)
        cut, keyed = sidecar.wait_for_letters(2)
        assert cut.value is not None and noise.startswith(cut.value) and 15_000 < len(cut.value) < 20_000
        assert _origin(cut)["cut_from_bytes"] == str(len(noise))
        assert _origin(cut)["value_sha256"] == hashlib.sha256(noise).hexdigest()
        assert keyed.value == b"x" and keyed.key is not None and noise.startswith(keyed.key)
        assert not sidecar.process.said("a dead letter was too large")


def test_values_of_ten_megabytes_are_read_like_any_other(broker: Broker, tmp_path: Path) -> None:
    with operated(broker.bootstrap, tmp_path) as sidecar:
        topic = create_topic(broker.bootstrap, "large", config={"max.message.bytes": "20000000"})
        sidecar.deployment.input_topic = topic
        noise = b"".join(hashlib.sha256(b"%d" % number).digest() for number in range(330_000)).hex()[:10_000_000]
        producer = Producer({"bootstrap.servers": broker.bootstrap, "message.max.bytes": 20_000_000, "log_level": 0})
        for event in (sample(1, 1.0, metadata={"prompt": noise}), sample(1, 0.0, metadata={"prompt": noise})):
            producer.produce(topic, json.dumps(event).encode(), partition=0)
        producer.produce(topic, noise.encode(), partition=0)
        producer.produce(topic, json.dumps(close(1)).encode(), partition=0)
        assert producer.flush(60) == 0
        sidecar.start_ready()
        (result,) = sidecar.wait_for_results(1)
        assert result.metrics["rollout/episode_raw_reward"] == 0.5
        (letter,) = sidecar.wait_for_letters(1)
        assert _origin(letter)["value_sha256"] == hashlib.sha256(noise.encode()).hexdigest()
        sidecar.restart()
        sidecar.wait_until_read()


def test_a_limit_lowered_while_running_is_found_by_trying_and_does_not_loop(sidecar: Operated) -> None:
    sidecar.start_ready()
    sidecar.set_topic_config(sidecar.deployment.dead_letter_topic, "max.message.bytes", "30000")
    noise = b"".join(hashlib.sha256(b"%d" % number).digest() for number in range(10_000))
    sidecar.send(noise, sample(1, 1.0), close(1))
    sidecar.wait_for_results(1)
    (letter,) = sidecar.letters()
    assert _origin(letter)["value_sha256"] == hashlib.sha256(noise).hexdigest()
    assert sidecar.process.said("a dead letter was too large")
    sidecar.wait_until_read()
    sidecar.wait_until(lambda: sidecar.get("/readyz")[0] == 200, "ready again")


def test_a_flood_of_dead_letters_is_loud_and_fails_the_health_check_but_stops_nothing(
    broker: Broker, tmp_path: Path
) -> None:
    with operated(broker.bootstrap, tmp_path, dead_letter_limit=0.5) as sidecar:
        sidecar.start_ready()
        assert sidecar.get("/healthz")[0] == 200
        sidecar.send(*([b"poison"] * 100), sample(1, 1.0), close(1))
        (result,) = sidecar.wait_for_results(1)
        assert result.complete
        status, body = sidecar.get("/healthz")
        assert status == 503 and "dead letters" in json.loads(body)["reason"]
        line = sidecar.process.wait_for("most of what comes in can't be used")
        assert line["level"] == "error" and line["topic"] == sidecar.deployment.dead_letter_topic
        sidecar.wait_until_read()
        assert len(sidecar.letters()) == 100
        sidecar.send(*([sample(2, 1.0)] * 200), close(2))
        sidecar.process.wait_for("the flood of dead letters is over")
        assert sidecar.get("/healthz")[0] == 200


def test_a_dead_letter_topic_that_vanished_holds_consuming_until_it_is_back(
    stoppable_broker: Broker, tmp_path: Path
) -> None:
    # On a broker of our own: others may make the topic anew by themselves.
    with operated(stoppable_broker.bootstrap, tmp_path) as sidecar:
        sidecar.start_ready()
        sidecar.wait_until(lambda: sidecar.get("/readyz")[0] == 200, "ready")
        letters = sidecar.deployment.dead_letter_topic
        sidecar.delete_topic(letters)
        sidecar.send(b"poison", sample(1, 1.0), close(1))
        sidecar.wait_until(lambda: sidecar.get("/readyz")[0] == 503, "not ready")
        assert sidecar.results() == []
        sidecar.make_topic(letters)
        (result,) = sidecar.wait_for_results(1, deadline_seconds=60)
        assert result.complete
        (letter,) = sidecar.wait_for_letters(1)
        assert letter.value == b"poison"
        sidecar.wait_until(lambda: sidecar.get("/readyz")[0] == 200, "ready again")
