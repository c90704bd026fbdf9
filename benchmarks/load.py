"""The load: 20,000 samples a step in rollouts of 1 to 8, neighbours shuffled, then the step's close marker.

The same samples in five forms, each in a topic of one partition: an event each or 64 to an event, JSON or MessagePack,
and with all that our client writes beside them.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import msgspec
from confluent_kafka import KafkaError, Producer
from rig import create_topic

STEP = 20_000
GROUP = 8
MAX_SIBLINGS = 8
SHUFFLED = 256
"""How far a sample may come from its place."""

PER_EVENT = 64
RUN = "r"
MSGPACK_HEADERS = [("content-type", b"application/msgpack")]


class Step(NamedTuple):
    """One step of the load: its samples in order, and what must come out."""

    number: int
    samples: list[dict[str, Any]]
    num_rollouts: int
    episode_raw_reward: float


class Form(NamedTuple):
    """How samples become records."""

    name: str
    is_msgpack: bool
    per_event: int
    is_clients: bool = False


JSON = Form("JSON, a sample an event", is_msgpack=False, per_event=1)
MSGPACK = Form("MessagePack, a sample an event", is_msgpack=True, per_event=1)
JSON_BATCHES = Form(f"JSON, {PER_EVENT} samples an event", is_msgpack=False, per_event=PER_EVENT)
MSGPACK_BATCHES = Form(f"MessagePack, {PER_EVENT} samples an event", is_msgpack=True, per_event=PER_EVENT)
CLIENTS = Form(
    f"JSON, {PER_EVENT} samples an event, as our client writes them",
    is_msgpack=False,
    per_event=PER_EVENT,
    is_clients=True,
)
FORMS = (JSON, MSGPACK, JSON_BATCHES, MSGPACK_BATCHES, CLIENTS)


class Topic(NamedTuple):
    """A topic that holds the load."""

    form: Form
    name: str
    events: int


def steps(count: int, seed: int = 7, step_samples: int = STEP) -> Iterator[Step]:
    """Yields steps of so many samples in all."""
    rng = random.Random(seed)
    group = index = 0
    for number in range(math.ceil(count / step_samples)):
        want = min(step_samples, count - index)
        made: list[tuple[float, dict[str, Any]]] = []
        means: list[float] = []
        while len(made) < want:
            for rollout in range(group * GROUP, (group + 1) * GROUP):
                rewards = [rng.randrange(-100, 101) / 100 for _ in range(rng.randint(1, MAX_SIBLINGS))]
                del rewards[want - len(made) :]
                if not rewards:
                    break
                means.append(math.fsum(rewards) / len(rewards))
                for reward in rewards:
                    chance = rng.random()
                    sample = {
                        "group_index": group,
                        "index": index,
                        "rollout_id": rollout,
                        "reward": reward,
                        "response_length": rng.randrange(64, 8192),
                        "status": "completed" if chance < 0.9 else "truncated" if chance < 0.98 else "aborted",
                    }
                    made.append((len(made) + rng.random() * SHUFFLED, sample))
                    index += 1
            group += 1
        made.sort(key=lambda one: one[0])
        yield Step(number, [sample for _, sample in made], len(means), math.fsum(means) / len(means))


def records(step: Step, form: Form, run_id: str = RUN) -> Iterator[bytes]:
    """Yields the values of a step's records, its close marker last."""
    encode = msgspec.msgpack.encode if form.is_msgpack else msgspec.json.encode
    head = {"run_id": run_id, "step": step.number}
    if form.per_event == 1:
        for sample in step.samples:
            yield encode({"type": "sample", **head, **sample})
    else:
        samples = step.samples
        if form.is_clients:
            samples = [{**one, **_of_client(place, step)} for place, one in enumerate(samples)]
        for start in range(0, len(samples), form.per_event):
            yield encode({"type": "samples", **head, "samples": samples[start : start + form.per_event]})
    yield encode({"type": "close", **head})


def _of_client(place: int, step: Step) -> dict[str, Any]:
    """Returns what `RolloutProducer` adds to each sample, and the weight version that most trainers have in it."""
    return {"sample_id": f"rank-0#{place}", "position": place, "weight_versions": [str(step.number)]}


class Writer:
    """A producer that raises where a record isn't delivered."""

    def __init__(self, bootstrap: str, **config: Any) -> None:
        self._failures: list[KafkaError] = []
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "compression.type": "lz4",
                "linger.ms": 50,
                "batch.size": 1_000_000,
                "batch.num.messages": 100_000,
                "queue.buffering.max.messages": 1_000_000,
                "enable.idempotence": True,
                "log_level": 0,
                **config,
            }
        )

    def write(self, topic: str, value: bytes, headers: Sequence[tuple[str, bytes]] = ()) -> None:
        while True:
            try:
                self._producer.produce(topic, value, RUN, headers=list(headers), on_delivery=self._on_delivery)
                return
            except BufferError:
                self._producer.poll(0.1)

    def serve(self) -> None:
        self._producer.poll(0)

    def flush(self) -> None:
        left = self._producer.flush(120)
        if left or self._failures:
            raise RuntimeError(f"{left} records not delivered, {len(self._failures)} refused: {self._failures[:1]}")

    def _on_delivery(self, error: KafkaError | None, _: Any) -> None:
        if error is not None:
            self._failures.append(error)


def write(bootstrap: str, count: int, forms: Sequence[Form]) -> tuple[list[Topic], list[Step]]:
    """Writes the load in each form to a topic of its own; returns the topics, and the steps without their samples."""
    writer = Writer(bootstrap)
    names = [create_topic(bootstrap, "bench-in") for _ in forms]
    events = [0] * len(forms)
    expected = []
    for step in steps(count):
        for place, form in enumerate(forms):
            headers = MSGPACK_HEADERS if form.is_msgpack else ()
            for value in records(step, form):
                writer.write(names[place], value, headers)
                events[place] += 1
            writer.serve()
        expected.append(step._replace(samples=[]))
    writer.flush()
    return [Topic(*one) for one in zip(forms, names, events, strict=True)], expected
