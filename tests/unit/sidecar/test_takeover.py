"""Where a partition begins, with a consumer that answers as the test says."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from stream_metrics.config import Settings
from stream_metrics.core.fold import Fold
from stream_metrics.core.replay_note import ReplayNote
from stream_metrics.sidecar import takeover as module
from stream_metrics.sidecar.errors import RestartError, StateRefusedError
from stream_metrics.sidecar.owned import Owned
from stream_metrics.sidecar.self_metrics import SelfMetrics
from stream_metrics.sidecar.takeover import Takeover
from stream_metrics.testing import MemoryLog, sample

TOPIC = Settings().input_topic


def _note(topic_id: str = "") -> ReplayNote:
    log = MemoryLog()
    for _ in range(3):
        log.append(sample(1, 1.0))
    fold = Fold(Settings().fold(), TOPIC, 0)
    fold.feed(log.records)
    return msgspec.structs.replace(fold.note(3), topic_id=topic_id)


def _take(offset: int, note: str | None, topic_id: str, *, errors: int = 0, **settings: Any) -> Owned:
    left = errors

    def ask() -> str:
        nonlocal left
        left -= 1
        if left >= 0:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
        return topic_id

    committed = TopicPartition(TOPIC, 0, offset, metadata=note or "")
    consumer: Any = SimpleNamespace(
        committed=lambda *_, **__: [committed], get_watermark_offsets=lambda *_, **__: (0, 100)
    )
    takeover = Takeover(
        Settings(**settings),
        consumer,
        SimpleNamespace(id=ask),  # type: ignore[arg-type]
        SelfMetrics(),
        lambda: 0.0,
        lambda _: None,
        lambda: False,
    )
    (owned,) = takeover.take([TopicPartition(TOPIC, 0)])
    return owned


@pytest.mark.parametrize(("noted", "now"), [("A", "A"), ("", "A"), ("A", ""), ("", "")])
def test_a_partition_of_the_topic_that_was_read_is_restored(noted: str, now: str) -> None:
    owned = _take(3, _note(noted).encode(), now)
    assert owned.is_restoring and owned.next_offset == 0
    assert owned.topic_id == now


def test_a_partition_of_another_topic_of_this_name_is_refused_with_what_to_do() -> None:
    with pytest.raises(StateRefusedError) as caught:
        _take(3, _note("A").encode(), "B")
    for part in (
        TOPIC,
        "made anew",
        "its id is B",
        "A was read up to offset 3",
        "--group-id",
        "--accept-changed-replay",
    ):
        assert part in str(caught.value)


def test_another_topic_is_gone_on_in_where_that_is_wanted() -> None:
    owned = _take(3, _note("A").encode(), "B", accept_changed_replay=True)
    assert owned.is_restoring and owned.topic_id == "B"


def test_a_topic_of_which_nothing_had_been_read_may_be_made_anew() -> None:
    note = msgspec.structs.replace(Fold(Settings().fold(), TOPIC, 0).note(0), topic_id="A")
    owned = _take(0, note.encode(), "B")
    assert owned.next_offset == 0 and owned.topic_id == "B"


def test_a_first_start_knows_the_topic_it_reads() -> None:
    assert _take(-1001, None, "B").topic_id == "B"


def test_a_broker_that_does_not_say_which_topic_it_is_is_asked_again() -> None:
    assert _take(3, _note("A").encode(), "A", errors=3).topic_id == "A"


@pytest.mark.parametrize("code", [KafkaError.UNSTABLE_OFFSET_COMMIT, KafkaError._TIMED_OUT, KafkaError.NOT_COORDINATOR])
@pytest.mark.parametrize("answers_after", [60.0, None], ids=["in time", "never"])
def test_offsets_that_an_open_transaction_holds_up_are_waited_for_with_one_word_and_not_for_ever(
    monkeypatch: pytest.MonkeyPatch, code: int, answers_after: float | None
) -> None:
    said: list[str] = []
    monkeypatch.setattr(module.logs, "warning", lambda message, **_: said.append(message))
    now = 0.0

    def pause(seconds: float) -> None:
        nonlocal now
        now += seconds

    def committed(partitions: list[TopicPartition], timeout: float) -> list[TopicPartition]:
        pause(timeout)
        if answers_after is None or now < answers_after:
            raise KafkaException(KafkaError(code))
        return partitions

    consumer: Any = SimpleNamespace(committed=committed, get_watermark_offsets=lambda *_, **__: (0, 100))
    topic: Any = SimpleNamespace(id=lambda: "A")
    takeover = Takeover(Settings(), consumer, topic, SelfMetrics(), lambda: now, pause, lambda: False)
    if answers_after is not None:
        (owned,) = takeover.take([TopicPartition(TOPIC, 0)])
        assert owned.next_offset == 0
    else:
        with pytest.raises(RestartError, match="the broker doesn't answer"):
            takeover.take([TopicPartition(TOPIC, 0)])
        assert now < module.BUDGET_SECONDS + 5
    assert said == ["waiting for the broker to say where to start"]
