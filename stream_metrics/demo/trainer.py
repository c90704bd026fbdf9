"""Plays simulated steps as a trainer would: samples when they are done, then the step's close marker."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Final

from stream_metrics.demo.simulation import SimulatedStep
from stream_metrics.producers import RolloutProducer

_SLICES: Final = 12
"""A step's time is cut into so many parts; what is done in one is sent at its end."""

Progress = Callable[[SimulatedStep, int], None]
"""Told of a step and how many of its samples are sent."""


def play(
    producer: RolloutProducer,
    steps: Iterable[SimulatedStep],
    step_seconds: float,
    stopping: threading.Event,
    progress: Progress = lambda _step, _sent: None,
) -> None:
    """Sends the steps, one after another; returns when all are sent, or when asked to stop.

    Args:
        producer: Sends.
        steps: What to play.
        step_seconds: How long a step takes.
        stopping: Set to ask for an end.
        progress: Told as it goes on.
    """
    before: SimulatedStep | None = None
    for step in steps:
        sent = 0
        for part in range(_SLICES):
            if stopping.wait(step_seconds / _SLICES):
                return
            until = (part + 1) / _SLICES
            done = [one.fields for one in step.samples[sent:] if one.done_at <= until or part == _SLICES - 1]
            if done:
                producer.emit_step(done, step=step.step)
                sent += len(done)
            if before is not None and part == _SLICES // 2:
                for late in before.late:
                    producer.emit(late.fields, step=before.step)
            progress(step, sent)
        producer.close_step(step.step, dropped=step.dropped or None)
        before = step
