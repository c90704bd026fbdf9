"""Exact per-rollout step metrics for reinforcement learning runs, from a Kafka topic of training samples."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stream_metrics.library import aggregate

__all__ = ["__version__", "aggregate"]
__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    # Imported only when it's used: a trainer that imports the package pays for nothing else.
    if name == "aggregate":
        from stream_metrics.library import aggregate

        return aggregate
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
