"""The sending end, pumped by hand: no threads, a clock that stands still, and a broker that does as it is told."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from confluent_kafka import KafkaError, KafkaException
from hypothesis import strategies as st

from stream_metrics import events
from stream_metrics.producers.courier import Courier
from stream_metrics.producers.outbox import Outbox, Window
from stream_metrics.producers.spool import Spool

SPOOL_AFTER = 10.0


class Sender:
    """An outbox and a courier of one process."""

    def __init__(self, kafka: Any, clock: Any, directory: Path | None, *, max_spool_bytes: int = 10**6) -> None:
        self.clock = clock
        self.outbox = Outbox(max_bytes=10**6, clock=clock)
        self.spool = None if directory is None else Spool(directory, topic="t", run_id="r", max_bytes=max_spool_bytes)
        if self.spool is not None:
            self.spool.adopt()
        self.courier = Courier(
            self.outbox,
            self.spool,
            kafka.connect,
            topic="t",
            run_id="r",
            attempt=7,
            spool_after_seconds=SPOOL_AFTER,
            clock=clock,
        )
        self.kafka = kafka

    def put(self, step: int, count: int, padding: int = 0) -> None:
        window = self.outbox.window("rollout", step)
        first = window.samples
        window.samples += count
        payloads = [
            json.dumps({"sample_id": n, "reward": 1.0, "padding": "x" * padding}).encode()
            for n in range(first, first + count)
        ]
        assert self.outbox.put(window, payloads, 0.0) == count

    def close(self, step: int) -> None:
        def make(window: Window) -> events.StepClose:
            return events.StepClose(
                step=step, run_id="r", attempt=7, expected_samples=window.samples, dropped=dict(window.dropped) or None
            )

        self.outbox.put_marker(self.outbox.window("rollout", step), make)

    def pump(self, times: int = 20) -> None:
        for _ in range(times):
            self.courier.pump(0.0)

    def outlast(self, seconds: float) -> None:
        self.clock.now += seconds
        self.courier.pump(0.0)


@pytest.fixture
def sender(kafka: Any, clock: Any, tmp_path: Path) -> Sender:
    return Sender(kafka, clock, tmp_path)


def refuse_once(kafka: Any, code: int) -> None:
    def refuse(values: list[bytes]) -> KafkaError | None:
        kafka.refuse = lambda values: None
        return KafkaError(code)

    kafka.refuse = refuse


def test_samples_of_a_step_travel_together_under_the_run(sender: Sender) -> None:
    sender.put(1, 3)
    sender.put(2, 1)
    sender.close(1)
    sender.pump()
    batch, single, close = sender.kafka.events
    assert (batch.run_id, batch.scope, batch.attempt, batch.step) == ("r", "rollout", 7, 1)
    assert [one.sample_id for one in batch.samples] == [0, 1, 2]
    assert (single.run_id, single.attempt, single.step, single.sample_id) == ("r", 7, 2, 0)
    assert (close.step, close.expected_samples) == (1, 3)
    assert sender.kafka.keys == [b"r"] * 3
    assert sender.courier.is_idle


def test_a_marker_leaves_only_when_its_samples_are_acknowledged(sender: Sender) -> None:
    sender.kafka.is_up = False
    sender.put(1, 3)
    sender.close(1)
    sender.pump()
    assert [len(client_queue) for client_queue in [sender.courier._client.queue]] == [1]  # type: ignore[union-attr]
    sender.kafka.is_up = True
    sender.pump()
    assert sender.kafka.kinds == ["3", "close"]


def test_a_marker_waits_for_samples_that_had_to_be_sent_again(sender: Sender) -> None:
    refuse_once(sender.kafka, KafkaError.NOT_ENOUGH_REPLICAS)
    sender.put(1, 3)
    sender.close(1)
    sender.pump()
    assert sender.kafka.log == []
    sender.outlast(1.0)
    sender.pump()
    assert sender.kafka.kinds == ["3", "close"]


def test_refused_markers_of_two_steps_keep_behind_their_samples(sender: Sender) -> None:
    for step in (1, 2):
        sender.put(step, 2)
        sender.close(step)
    refusals = iter([True, False, True, True, False, False, True] + [False] * 20)
    sender.kafka.refuse = lambda values: KafkaError(KafkaError.NOT_ENOUGH_REPLICAS) if next(refusals) else None
    for _ in range(40):
        sender.outlast(3.0)
    kinds = [(event.step, isinstance(event, events.StepClose)) for event in sender.kafka.events]
    assert kinds.index((1, True)) > kinds.index((1, False))
    assert kinds.index((2, True)) > kinds.index((2, False))
    assert len(kinds) == 4
    assert sender.courier.is_idle


def test_another_steps_samples_do_not_hold_a_marker_up(sender: Sender) -> None:
    sender.put(1, 1)
    sender.pump()
    sender.kafka.is_up = False
    sender.put(2, 1)
    sender.pump()
    sender.close(1)
    sender.pump()
    assert len(sender.courier._client.queue) == 2  # type: ignore[union-attr]


def test_after_a_while_without_acknowledgement_all_is_on_disk_and_then_comes_in_order(
    sender: Sender, tmp_path: Path
) -> None:
    sender.kafka.is_up = False
    for step in (1, 2):
        sender.put(step, 3)
        sender.close(step)
    sender.pump(3)
    assert list(tmp_path.iterdir()) == []
    sender.outlast(SPOOL_AFTER)
    lines = b"".join(path.read_bytes() for path in tmp_path.glob("*.jsonl")).splitlines()
    assert [events.decode(line).step for line in lines] == [1, 1, 2, 2]
    assert sender.outbox.snapshot().spooled == 6
    assert sender.outbox.snapshot().pending == 0
    sender.put(3, 1)
    sender.kafka.is_up = True
    sender.pump()
    assert sender.kafka.kinds == ["3", "close", "3", "close", "1"]
    assert sender.courier.is_idle
    assert list(tmp_path.glob("*.jsonl")) == []


def test_an_outage_while_the_spool_is_sent_sends_it_once_more_and_nothing_is_lost(sender: Sender) -> None:
    sender.kafka.is_up = False
    for step in range(5):
        sender.put(step, 2)
        sender.close(step)
    sender.outlast(SPOOL_AFTER)
    sender.kafka.is_up = True
    sender.pump(2)
    sender.kafka.is_up = False
    sender.pump(2)
    sender.put(9, 1)
    sender.outlast(SPOOL_AFTER)
    sender.outlast(SPOOL_AFTER)
    sender.kafka.is_up = True
    sender.pump()
    steps = {event.step for event in sender.kafka.events}
    assert steps == {0, 1, 2, 3, 4, 9}
    for step in range(5):
        kinds = [isinstance(e, events.StepClose) for e in sender.kafka.events if e.step == step]
        assert kinds.index(True) > kinds.index(False)
    assert sender.courier.is_idle


def test_what_finds_no_room_on_disk_waits_in_memory_behind_what_did(kafka: Any, clock: Any, tmp_path: Path) -> None:
    sender = Sender(kafka, clock, tmp_path, max_spool_bytes=350)
    kafka.is_up = False
    for step in range(4):
        sender.put(step, 2)
        sender.close(step)
    sender.outlast(SPOOL_AFTER)
    sender.put(4, 1)
    sender.outlast(SPOOL_AFTER)
    assert 0 < sender.outbox.snapshot().spooled < 8
    kafka.is_up = True
    sender.pump()
    assert [event.step for event in kafka.events] == [0, 0, 1, 1, 2, 2, 3, 3, 4]
    assert kafka.kinds == ["2", "close"] * 4 + ["1"]
    assert sender.courier.is_idle
    assert sender.outbox.snapshot().dropped.total() == 0


def test_at_the_end_the_rest_is_on_disk_and_the_next_process_sends_it_first(
    kafka: Any, clock: Any, tmp_path: Path
) -> None:
    first = Sender(kafka, clock, tmp_path)
    kafka.is_up = False
    first.put(1, 3)
    first.close(1)
    first.pump(3)
    first.put(2, 1)
    first.courier.finish()
    assert first.outbox.snapshot().spooled == 4
    kafka.is_up = True
    second = Sender(kafka, clock, tmp_path)
    second.put(3, 1)
    second.pump()
    assert [event.step for event in kafka.events] == [1, 1, 2, 3]
    assert kafka.kinds == ["3", "close", "1", "1"]
    second.courier.finish()
    assert list(tmp_path.iterdir()) == []


def test_without_a_spool_what_is_left_at_the_end_is_counted_as_unsent(
    kafka: Any, clock: Any, caplog: pytest.LogCaptureFixture
) -> None:
    sender = Sender(kafka, clock, None)
    kafka.is_up = False
    sender.put(1, 3)
    sender.pump(3)
    sender.put(1, 2)
    sender.close(1)
    sender.courier.finish()
    counts = sender.outbox.snapshot()
    assert counts.dropped == {"unsent": 5}
    assert counts.pending == 0
    assert "5 samples and 1 close markers of run 'r' are lost" in caplog.text


def test_without_a_spool_an_outage_costs_nothing_while_memory_lasts(kafka: Any, clock: Any) -> None:
    sender = Sender(kafka, clock, None)
    kafka.is_up = False
    sender.put(1, 3)
    sender.close(1)
    for _ in range(50):
        sender.outlast(SPOOL_AFTER)
    kafka.is_up = True
    sender.pump()
    assert kafka.kinds == ["3", "close"]
    assert kafka.clients == 1


@pytest.mark.parametrize("has_outage", [False, True])
def test_a_sample_over_the_brokers_limit_is_set_aside_alone_and_the_marker_says_so(
    sender: Sender, tmp_path: Path, has_outage: bool
) -> None:
    if has_outage:
        sender.kafka.is_up = False
    sender.kafka.refuse = lambda values: (
        KafkaError(KafkaError.MSG_SIZE_TOO_LARGE) if any(len(value) > 2000 for value in values) else None
    )
    sender.put(1, 3)
    sender.put(1, 1, padding=5000)
    sender.put(1, 2)
    sender.close(1)
    if has_outage:
        sender.outlast(SPOOL_AFTER)
        sender.kafka.is_up = True
    sender.pump(40)
    assert [one["sample_id"] for one in sender.kafka.samples] == [0, 1, 2, 4, 5]
    (close,) = sender.kafka.closes
    assert (close.expected_samples, close.dropped) == (6, {"too_large": 1})
    assert sender.outbox.snapshot().dropped == {"too_large": 1}
    assert sender.courier.is_idle
    (rejected,) = tmp_path.glob("*.rejected")
    assert json.loads(rejected.read_bytes())["sample_id"] == 3


def test_a_sample_over_the_clients_own_limit_is_set_aside_too(sender: Sender) -> None:
    sender.kafka.max_bytes = 2000
    sender.put(1, 1, padding=5000)
    sender.put(1, 1)
    sender.close(1)
    sender.pump(40)
    assert sender.kafka.kinds == ["1", "close"]
    assert sender.kafka.closes[0].dropped == {"too_large": 1}


def test_a_split_batch_keeps_nonfinite_numbers(sender: Sender) -> None:
    window = sender.outbox.window("rollout", 1)
    sender.outbox.put(window, [b'{"reward":NaN}', b'{"reward":-Infinity}'], 0.0)
    refuse_once(sender.kafka, KafkaError.MSG_SIZE_TOO_LARGE)
    sender.pump(40)
    assert b"NaN" in sender.kafka.log[0]
    assert b"-Infinity" in sender.kafka.log[1]


def test_a_fatal_error_replaces_the_client_and_loses_nothing(sender: Sender) -> None:
    refuse_once(sender.kafka, KafkaError._FATAL)
    sender.put(1, 2)
    sender.close(1)
    sender.pump()
    sender.outlast(1.0)
    sender.pump()
    assert sender.kafka.clients == 2
    assert sender.kafka.kinds == ["2", "close"]


def test_a_client_that_cannot_be_made_is_tried_again(sender: Sender, kafka: Any) -> None:
    real = kafka.connect
    failures = [KafkaException(KafkaError(KafkaError._FAIL))] * 2

    def connect(on_error: Any) -> Any:
        if failures:
            raise failures.pop()
        return real(on_error)

    sender.courier._connect = connect
    sender.put(1, 1)
    for _ in range(4):
        sender.outlast(1.0)
    assert kafka.kinds == ["1"]


def test_a_full_client_queue_loses_nothing(sender: Sender) -> None:
    sender.kafka.is_full = True
    sender.put(1, 2)
    sender.close(1)
    sender.pump()
    sender.kafka.is_full = False
    sender.pump()
    assert sender.kafka.kinds == ["2", "close"]


def test_a_torn_line_of_a_killed_process_is_set_aside_and_the_rest_is_sent(
    kafka: Any, clock: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = Sender(kafka, clock, tmp_path)
    kafka.is_up = False
    first.put(1, 1)
    first.courier.finish()
    (path,) = tmp_path.glob("*.jsonl")
    path.write_bytes(path.read_bytes() + b'{"type":"sample","st')
    kafka.is_up = True
    second = Sender(kafka, clock, tmp_path)
    second.pump()
    assert kafka.kinds == ["1"]
    assert second.courier.is_idle
    assert "is no event" in caplog.text
    assert next(tmp_path.glob("*.rejected")).read_bytes() == b'{"type":"sample","st\n'


def test_each_cause_is_logged_once_and_again_after_a_recovery(sender: Sender, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(2):
        refusals = iter([True] * 5 + [False] * 99)
        sender.kafka.refuse = lambda values, refusals=refusals: (  # type: ignore[misc]
            KafkaError(KafkaError.NOT_ENOUGH_REPLICAS) if next(refusals) else None
        )
        sender.put(1, 1)
        for _ in range(10):
            sender.outlast(9.0)
    assert caplog.text.count("NOT_ENOUGH_REPLICAS") == 2
    assert caplog.text.count("takes events of run 'r' again") == 2


def test_an_error_of_the_client_is_noted_and_cleared_by_the_next_acknowledgement(sender: Sender) -> None:
    sender.pump(1)
    sender.courier._client.on_error(KafkaError(KafkaError._ALL_BROKERS_DOWN))  # type: ignore[union-attr]
    sender.pump(1)
    assert sender.courier.is_down
    sender.put(1, 1)
    sender.pump()
    assert not sender.courier.is_down


ERRORS = [KafkaError.NOT_ENOUGH_REPLICAS, KafkaError.MSG_SIZE_TOO_LARGE, KafkaError._FATAL]
actions = st.one_of(
    st.tuples(st.just("put"), st.integers(0, 2), st.integers(1, 3)),
    st.tuples(st.just("close"), st.integers(0, 2), st.just(0)),
    st.tuples(st.sampled_from(["up", "down", "full", "room", "pump", "restart"]), st.just(0), st.just(0)),
    st.tuples(st.just("wait"), st.integers(1, 12), st.just(0)),
    st.tuples(st.just("refuse"), st.integers(0, len(ERRORS) - 1), st.integers(1, 3)),
)


@hypothesis.settings(max_examples=300, deadline=None)
@hypothesis.example(  # what is tried alone was joined by the next marker, and then taken for too large
    script=[("close", 1, 0), ("put", 0, 1), ("refuse", 1, 2), ("close", 1, 0), ("pump", 0, 0)], max_spool_bytes=10**6
)
@hypothesis.given(script=st.lists(actions, max_size=40), max_spool_bytes=st.sampled_from([10**6, 300]))
def test_whatever_happens_no_sample_is_lost_and_no_marker_overtakes_one(
    make_kafka: Callable[[], Any], script: list[tuple[str, int, int]], max_spool_bytes: int
) -> None:
    kafka = make_kafka()
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory)
        sender = Sender(kafka, kafka.clock, path, max_spool_bytes=max_spool_bytes)
        put: dict[int, int] = {}
        closed: dict[int, int] = {}  # samples put before the first marker
        for action, number, count in script:
            if action == "put":
                # A restarted process counts on in the same step, so that each sample has an id of its own.
                sender.outbox.window("rollout", number).samples = put.get(number, 0)
                sender.put(number, count)
                put[number] = put.get(number, 0) + count
            elif action == "close":
                sender.close(number)
                closed.setdefault(number, put.get(number, 0))
            elif action == "refuse":
                left = [ERRORS[number]] * count

                def refuse(values: list[bytes], left: list[int] = left) -> KafkaError | None:
                    # Alone a record is taken in the end: none is really too large.
                    is_refusable = left and not (left[0] == KafkaError.MSG_SIZE_TOO_LARGE and len(values) == 1)
                    return KafkaError(left.pop()) if is_refusable else None

                kafka.refuse = refuse
            elif action == "restart" and max_spool_bytes > 1000:
                sender.courier.finish()
                sender = Sender(kafka, kafka.clock, path)
            elif action == "wait":
                sender.outlast(float(number))
            elif action == "pump":
                sender.pump(3)
            elif action in ("up", "down"):
                kafka.is_up = action == "up"
            elif action in ("full", "room"):
                kafka.is_full = action == "full"
        kafka.is_up, kafka.is_full, kafka.refuse = True, False, lambda values: None
        for _ in range(30):
            sender.outlast(5.0)
        assert sender.courier.is_idle
        assert sender.outbox.snapshot().pending == 0
        assert sender.outbox.snapshot().dropped.total() == 0
        seen: dict[int, set[Any]] = {}
        for event in kafka.events:
            if isinstance(event, events.StepClose):
                expected = set(range(closed.pop(event.step, 0)))
                assert expected <= seen.get(event.step, set()), f"the marker of step {event.step} overtook a sample"
            else:
                ids = [one.sample_id for one in getattr(event, "samples", [event])]
                seen.setdefault(event.step, set()).update(ids)
        assert closed == {}
        assert {step: len(ids) for step, ids in seen.items()} == put
        sender.courier.finish()
        assert list(path.iterdir()) == []
