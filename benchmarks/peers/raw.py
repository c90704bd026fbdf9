"""The ceiling: consume everything and look at nothing. Arguments as `plain_fast.py`; writes no results."""

from __future__ import annotations

import json
import sys
import time

from confluent_kafka import Consumer

bootstrap, source, _, group, events, _ = sys.argv[1:]
consumer = Consumer(
    {
        "bootstrap.servers": bootstrap,
        "group.id": group,
        "auto.offset.reset": "earliest",
        "queued.min.messages": 1_000_000,
        "queued.max.messages.kbytes": 1_048_576,
        "fetch.queue.backoff.ms": 10,
    }
)
began: list[float] = []
consumer.subscribe([source], on_assign=lambda *_: began.append(time.time()))
left = int(events)
while left > 0:
    left -= len(consumer.consume(5000, 0.1))
print(json.dumps({"began": began[0], "ended": time.time()}), flush=True)
sys.stdin.read()
