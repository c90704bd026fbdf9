"""How a simulated step is played: all of it, in order, and closed once; late samples after the close."""

from __future__ import annotations

import threading
from typing import Any, cast

from stream_metrics.demo.simulation import LATE_EVERY, SimulatedStep, simulate_step
from stream_metrics.demo.trainer import play
from stream_metrics.producers import RolloutProducer


class NotedCalls:
    """Stands for the producer, and notes what it is asked."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def emit_step(self, samples: list[dict[str, Any]], *, step: int) -> None:
        self.calls += [("sample", step, one) for one in samples]

    def emit(self, sample: dict[str, Any], *, step: int) -> None:
        self.calls.append(("sample", step, sample))

    def close_step(self, step: int, *, dropped: dict[str, int] | None) -> None:
        self.calls.append(("close", step, dropped))


def played(steps: list[SimulatedStep], stopping: threading.Event | None = None, **how: Any) -> list[tuple[Any, ...]]:
    producer = NotedCalls()
    play(cast(RolloutProducer, producer), steps, 0.0, stopping or threading.Event(), **how)
    return producer.calls


def test_all_samples_of_a_step_are_sent_before_its_close() -> None:
    step = simulate_step(4, 1)
    calls = played([step])
    assert [call[2] for call in calls[:-1]] == [one.fields for one in step.samples]
    assert calls[-1] == ("close", 1, step.dropped or None)


def test_late_samples_come_after_their_steps_close_and_before_the_next_one() -> None:
    late_step = simulate_step(4, LATE_EVERY - 2)
    assert late_step.late
    calls = played([late_step, simulate_step(4, LATE_EVERY - 1)])
    closes = [place for place, call in enumerate(calls) if call[0] == "close"]
    late = [
        place
        for place, call in enumerate(calls)
        if call[:2] == ("sample", late_step.step) and any(call[2] is one.fields for one in late_step.late)
    ]
    assert len(late) == len(late_step.late)
    assert all(closes[0] < place < closes[1] for place in late)


def test_progress_ends_with_all_samples_of_each_step() -> None:
    told: dict[int, int] = {}
    steps = [simulate_step(4, number) for number in range(3)]
    played(steps, progress=lambda step, sent: told.update({step.step: sent}))
    assert told == {step.step: len(step.samples) for step in steps}


def test_asked_to_stop_it_sends_nothing_more() -> None:
    stopping = threading.Event()
    stopping.set()
    assert played([simulate_step(4, 0)], stopping) == []
