from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stream_metrics import events
from stream_metrics.producers import EmitError, RolloutProducer
from support.waiting import wait_until


@pytest.fixture
def make(kafka: Any, tmp_path: Path) -> Iterator[Any]:
    made: list[RolloutProducer] = []

    def make(**options: Any) -> RolloutProducer:
        # The fake's clock moves when its client waits; these producers go by real time.
        producer = RolloutProducer(
            "nowhere:1", **{"connect": kafka.connect, "run_id": "r", "spool_directory": tmp_path, **options}
        )
        made.append(producer)
        return producer

    yield make
    for producer in made:
        producer.close(0.0)


def test_a_step_arrives_with_ids_positions_and_its_expected_count(make: Any, kafka: Any) -> None:
    with make() as producer:
        assert producer.emit_step([{"reward": 1.0}, {"reward": 0.0}], step=3) == 2
        assert producer.close_step(3)
    assert [(one["sample_id"], one["position"], one["reward"]) for one in kafka.samples] == [(-1, 0, 1.0), (-2, 1, 0.0)]
    (close,) = kafka.closes
    assert close == events.StepClose(step=3, run_id="r", expected_samples=2)


def test_several_producers_give_ids_that_cannot_meet(make: Any, kafka: Any) -> None:
    for name in ("rank0", "rank1"):
        with make(producer=name, producers=2) as producer:
            producer.emit({"reward": 1.0}, step=1)
            producer.close_step(1)
    assert [one["sample_id"] for one in kafka.samples] == ["rank0#0", "rank1#0"]
    assert [(close.producer, close.producers, close.expected_samples) for close in kafka.closes] == [
        ("rank0", 2, 1),
        ("rank1", 2, 1),
    ]


def test_a_step_may_come_in_parts_and_one_by_one(make: Any, kafka: Any) -> None:
    with make() as producer:
        producer.emit(step=1, reward=1.0)
        producer.emit_step([{"reward": 2.0}], step=1)
        producer.emit_step([{"reward": 3.0}], step=1)
        producer.emit({"reward": 4.0, "step": 1})
        producer.close_step(1)
    assert [one["position"] for one in kafka.samples] == [0, 1, 2, 3]
    assert kafka.closes[0].expected_samples == 4


def test_a_repeated_step_has_the_same_ids_and_the_same_count(make: Any, kafka: Any) -> None:
    with make() as producer:
        for _ in range(2):
            producer.emit_step([{"reward": 1.0}] * 3, step=1)
            producer.close_step(1)
    assert [one["sample_id"] for one in kafka.samples] == [-1, -2, -3] * 2
    assert [close.expected_samples for close in kafka.closes] == [3, 3]


def test_a_late_sample_has_an_id_of_its_own(make: Any, kafka: Any) -> None:
    with make() as producer:
        producer.emit_step([{"reward": 1.0}], step=1)
        producer.close_step(1)
        producer.emit({"reward": 0.0}, step=1)
    assert [one["sample_id"] for one in kafka.samples] == [-1, -2]


def test_a_sample_keeps_its_own_id_and_a_repeat_of_it_is_not_expected_twice(make: Any, kafka: Any) -> None:
    with make() as producer:
        for sample_id in ("a", "b", "a"):
            producer.emit({"sample_id": sample_id}, step=1)
        producer.emit({}, step=1)
        producer.close_step(1)
    assert [one["sample_id"] for one in kafka.samples] == ["a", "b", "a", -4]
    assert kafka.closes[0].expected_samples == 3


def test_a_sample_that_cannot_be_encoded_is_dropped_named_and_missed(
    make: Any, kafka: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with make() as producer:
        assert (
            producer.emit_step([{"reward": 1.0}, {"reward": "x"}, {"group_index": 1.5}, {"reward": "y"}], step=1) == 1
        )
        assert not producer.emit({"reward": object()}, step=1)
        producer.close_step(1)
        assert producer.counts.dropped == {"unencodable": 4}
    assert kafka.closes[0].expected_samples == 5
    assert kafka.closes[0].dropped == {"unencodable": 4}
    assert caplog.text.count("unencodable: reward: ") == 1


@pytest.mark.parametrize("step", [-1, 2**53, "1", 1.5, None, True, object()])
def test_a_step_that_is_none_drops_the_samples_and_the_marker(make: Any, kafka: Any, step: Any) -> None:
    with make() as producer:
        assert producer.emit_step([{}, {}], step=step) == 0
        assert not producer.close_step(step)
        assert producer.counts.dropped == {"unencodable": 2}
    assert kafka.log == []


def test_nothing_a_sample_does_reaches_the_trainer(make: Any) -> None:
    class Evil:
        @property
        def reward(self) -> float:
            raise ZeroDivisionError("in the trainer's own property")

    def evil_samples() -> Iterator[Any]:
        yield {}
        raise KeyError("in the trainer's own generator")

    producer = make()
    assert producer.emit_step([Evil()], step=1) == 0
    assert producer.emit_step(evil_samples(), step=1) == 0
    assert producer.emit_step(7, step=1) == 0  # type: ignore[arg-type]
    assert not producer.emit(Evil(), step=1, reward=1.0)
    assert not producer.close_step(1, dropped={"filtered": "many"})  # type: ignore[dict-item]
    assert not producer.close_step(1, scope=7)  # type: ignore[arg-type]


def test_errors_are_raised_where_asked_and_a_retry_then_changes_nothing(make: Any, kafka: Any) -> None:
    with make(raise_errors=True) as producer:
        with pytest.raises(EmitError, match="reward: str instead of a number"):
            producer.emit_step([{"reward": 1.0}, {"reward": "x"}], step=1)
        assert producer.emit_step([{"reward": 1.0}, {"reward": 0.0}], step=1) == 2
        with pytest.raises(EmitError, match="step"):
            producer.close_step(-1)
        producer.close_step(1)
    assert [one["sample_id"] for one in kafka.samples] == [-1, -2]
    assert kafka.closes[0].expected_samples == 2


def test_a_full_queue_costs_the_budget_and_the_marker_tells(make: Any, kafka: Any) -> None:
    kafka.is_full = True
    with make(max_queue_bytes=2000, budget_seconds=0.05, spool_directory="") as producer:
        start = time.perf_counter()
        taken = producer.emit_step([{"reward": 1.0}] * 100, step=1)
        producer.close_step(1)
        took = time.perf_counter() - start
        assert 0 < taken < 100
        kafka.is_full = False
        assert producer.flush(5)
        assert took < 0.05 + 0.2  # the budget, and generously what a busy machine adds
        assert producer.counts.dropped == {"queue_full": 100 - taken}
    assert kafka.closes[0].dropped == {"queue_full": 100 - taken}
    assert kafka.closes[0].expected_samples == 100
    assert len(kafka.samples) == taken


def test_a_full_queue_overflows_to_disk_and_nothing_is_dropped(make: Any, kafka: Any) -> None:
    kafka.is_up = False
    with make(max_queue_bytes=2000, budget_seconds=5.0, close_seconds=0.2, spool_after_seconds=0.05) as producer:
        for step in range(5):
            assert producer.emit_step([{"reward": 1.0}] * 100, step=step) == 100
            producer.close_step(step)
        kafka.is_up = True
        assert producer.flush(10)
    assert len(kafka.samples) == 500
    assert [close.expected_samples for close in kafka.closes] == [100] * 5


def test_an_exception_in_the_block_closes_the_client_and_sends_no_marker(make: Any, kafka: Any) -> None:
    producer = make()
    with pytest.raises(RuntimeError, match="training failed"), producer, producer.step(1) as step:  # noqa: PT012
        step.emit(reward=1.0)
        raise RuntimeError("training failed")
    assert kafka.kinds == ["1"]
    assert not producer.emit({"reward": 1.0}, step=1)
    assert producer.counts.dropped == {"closed": 1}


def test_a_step_context_closes_the_step_when_it_ends_well(make: Any, kafka: Any) -> None:
    with make() as producer, producer.step(4, scope="eval/x") as step:
        step.emit_step([{"reward": 1.0}, {"reward": 1.0}])
    assert kafka.kinds == ["2", "close"]
    assert (kafka.closes[0].scope, kafka.closes[0].step) == ("eval/x", 4)


def test_what_the_trainer_filtered_goes_with_the_marker_and_is_not_expected(make: Any, kafka: Any) -> None:
    with make() as producer:
        producer.emit({"reward": 1.0}, step=1)
        producer.close_step(1, dropped={"aborted": 3}, producers=2)
    assert (kafka.closes[0].dropped, kafka.closes[0].expected_samples) == ({"aborted": 3}, 1)
    assert kafka.closes[0].producers == 2


def test_threads_share_a_producer_and_lose_nothing(make: Any, kafka: Any) -> None:
    with make() as producer:

        def work(thread: int) -> None:
            for n in range(200):
                producer.emit({"rollout_id": f"{thread}-{n}", "reward": 1.0}, step=n % 3)

        threads = [threading.Thread(target=work, args=(thread,)) for thread in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for step in range(3):
            producer.close_step(step)
    assert len({one["rollout_id"] for one in kafka.samples}) == 800
    assert sum(close.expected_samples or 0 for close in kafka.closes) == 800


def test_a_nonfinite_reward_stays_nonfinite_beside_others(make: Any, kafka: Any) -> None:
    with make() as producer:
        producer.emit_step([{"reward": 1.0}, {"reward": math.nan}, {"reward": math.inf}], step=1)
    assert [str(one["reward"]) for one in kafka.samples] == ["1.0", "nan", "inf"]


def test_a_closed_step_is_acknowledged_without_anybody_waiting(make: Any, kafka: Any) -> None:
    producer = make()
    producer.emit({"reward": 1.0}, step=1)
    producer.close_step(1)
    wait_until(lambda: kafka.kinds == ["1", "close"], "the marker")


def test_a_flush_that_cannot_be_done_says_so_in_time(make: Any, kafka: Any) -> None:
    kafka.is_full = True
    producer = make()
    producer.emit({"reward": 1.0}, step=1)
    assert not producer.flush(0.05)
    assert producer.counts.pending == 1


@pytest.mark.parametrize(
    ("variables", "given", "attempt"),
    [
        ({}, None, 0),
        ({"TORCHELASTIC_RESTART_COUNT": "2", "SLURM_RESTART_COUNT": "5"}, None, 2),
        ({"SLURM_RESTART_COUNT": "5"}, None, 5),
        ({"STREAM_METRICS_ATTEMPT": "9", "TORCHELASTIC_RESTART_COUNT": "2"}, None, 9),
        ({"TORCHELASTIC_RESTART_COUNT": "two"}, None, 0),
        ({"TORCHELASTIC_RESTART_COUNT": "2"}, 1, 1),
    ],
)
def test_the_attempt_is_given_or_the_launchers_restart_counter(
    make: Any, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], given: int | None, attempt: int
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert make(attempt=given).attempt == attempt


@pytest.mark.parametrize(
    "options",
    [
        {"attempt": -1},
        {"attempt": 2**53},
        {"run_id": "r" * 500},
        {"run_id": "\ud800"},
        {"producers": 0},
        {"connect": None, "client_config": {"no.such.setting": "1"}},
    ],
)
def test_settings_that_make_no_sense_are_refused_at_once(make: Any, options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"."):
        make(**options)
