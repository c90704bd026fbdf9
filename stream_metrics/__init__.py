"""Exact per-rollout step metrics for reinforcement learning runs, from a Kafka topic of training samples."""

__version__ = "0.1.0"
