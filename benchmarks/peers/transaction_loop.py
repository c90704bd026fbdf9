"""The quickest loop that publishes exactly once: at a close marker one transaction with the result and the offsets.

    transaction_loop.py BOOTSTRAP INPUT OUTPUT GROUP

It keeps two numbers a rollout, publishes two metrics a step, and a crash loses what it holds.
"""

from __future__ import annotations

import json
import sys

import msgspec
from confluent_kafka import Consumer, Producer, TopicPartition
from plain_fast import Close, Sample


def main(bootstrap: str, source: str, output: str, group: str) -> None:
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
        }
    )
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": group, "linger.ms": 0})
    producer.init_transactions(30)
    consumer.subscribe([source], on_assign=lambda *_: print('{"is":"ready"}', flush=True))
    decode = msgspec.json.Decoder(Sample | Close).decode
    steps: dict = {}
    while True:
        first = consumer.poll(0.1)
        if first is None:
            continue
        for message in [first, *consumer.consume(999, 0)]:
            if message.error():
                raise RuntimeError(message.error())
            event = decode(message.value())
            step = event.run_id, event.step
            if type(event) is Sample:
                kept = steps.setdefault(step, {}).setdefault((event.group_index, event.rollout_id), [0, 0.0])
                kept[0] += 1
                kept[1] += event.reward
                continue
            rollouts = steps.pop(step)
            result = {
                "step": event.step,
                "num_training_samples": sum(count for count, _ in rollouts.values()),
                "episode_raw_reward": sum(total / count for count, total in rollouts.values()) / len(rollouts),
            }
            offsets = [TopicPartition(message.topic(), message.partition(), message.offset() + 1)]
            producer.begin_transaction()
            producer.produce(output, json.dumps(result), f"{event.run_id}/{event.step}")
            producer.send_offsets_to_transaction(offsets, consumer.consumer_group_metadata(), 30)
            producer.commit_transaction(30)


if __name__ == "__main__":
    main(*sys.argv[1:])
