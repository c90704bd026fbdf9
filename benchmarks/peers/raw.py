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
consumer.subscribe([source])
left, began = int(events), 0.0
while left > 0:
    taken = len(consumer.consume(5000, 0.1))
    if taken and not began:
        began = time.time()
    left -= taken
print(json.dumps({"began": began, "ended": time.time()}), flush=True)
sys.stdin.read()
