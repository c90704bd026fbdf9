"""Sends training samples to the input topic from inside a trainer, without ever hurting training."""

from stream_metrics.producers.client import EmitError, RolloutProducer, StepEmitter
from stream_metrics.producers.outbox import Counts

__all__ = ["Counts", "EmitError", "RolloutProducer", "StepEmitter"]
