"""Random but seeded events of several trainers, with all that a real stream holds, and a producer that lets them flow.

What is drawn depends on the seed alone; when it is sent doesn't. In it: several runs and scopes, steps in parallel,
siblings, batches, duplicates by `sample_id`, samples without one, late and too late samples, several producers, markers
that overtake samples or expect more than ever comes, markers sent twice, new attempts with stragglers of the old one,
rewards that are missing, not finite or no numbers, poison and tombstones.
"""

from __future__ import annotations

import json
import math
import os
import random
import sys
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import Producer

from support.topics import NewRecord
from support.waiting import DEADLINE_SECONDS

# None is so large that it would hide an error in the others.
_REWARDS = (0.0, 1.0, 1.0, 0.5, 0.1, 0.7, 1 / 3, -2.5, True, False)
_ODD_REWARDS = (None, math.nan, math.inf, 10**400, {"accuracy": 1.0})


def draw_seed() -> int:
    """Returns the seed that SEED gives, or a new one, and says which; pytest shows it where the test fails."""
    seed = int(os.environ.get("SEED") or random.SystemRandom().randrange(10**9))
    sys.stdout.write(f"SEED={seed} gives this traffic again\n")
    return seed


@dataclass
class _Step:
    number: int
    producers: int
    unheard: list[str]
    sent: dict[str, int]
    owed: int = 0  # samples that a marker announced and that are still to come
    seen: list[dict[str, Any]] = field(default_factory=list)


@dataclass
class _Trainer:
    run_id: str
    scope: str
    partition: int
    attempt: int = 0
    next_step: int = 0
    open: list[_Step] = field(default_factory=list)
    closed: list[_Step] = field(default_factory=list)

    def event(self, kind: str, step: _Step, **fields: Any) -> dict[str, Any]:
        made = {"type": kind, "run_id": self.run_id, "step": step.number, **fields}
        if self.scope != "rollout":
            made["scope"] = self.scope
        if self.attempt:
            made["attempt"] = self.attempt
        return made


class Traffic:
    """An endless stream of records.

    Args:
        seed: Gives the stream.
        runs: Trainers; the n-th writes to partition n modulo `partitions`.
        partitions: Of the input topic.
        samples: Mean number of samples of a step.
        has_faults: Whether there are poison, new attempts and stragglers in it too.
    """

    def __init__(
        self, seed: int, runs: int = 6, partitions: int = 4, samples: int = 20, *, has_faults: bool = True
    ) -> None:
        self._rng = random.Random(seed)
        self._samples = samples
        self._has_faults = has_faults
        self._next_id = 0
        self._trainers = [_Trainer(f"run-{number}", "rollout", number % partitions) for number in range(runs)]
        if has_faults:
            first = self._trainers[0]
            self._trainers.append(_Trainer(first.run_id, "eval/aime24", first.partition))

    def take(self, count: int) -> list[NewRecord]:
        """Returns the next records."""
        return [self._next() for _ in range(count)]

    def finish(self) -> list[NewRecord]:
        """Returns the records that end all steps that are open."""
        records = []
        for trainer in self._trainers:
            for step in trainer.open:
                while step.unheard:
                    records.append(self._marker(trainer, step, is_exact=True))
                for _ in range(step.owed):
                    records.append(self._sample(trainer, step))
            trainer.closed += trainer.open
            trainer.open = []
        return records

    def _next(self) -> NewRecord:
        rng = self._rng
        trainer = rng.choice(self._trainers)
        if len(trainer.open) < 3 and (not trainer.open or rng.random() < 0.04):
            names = [""] if rng.random() < 0.7 else ["a", "b"]
            step = _Step(trainer.next_step, len(names), list(names), dict.fromkeys(names, 0))
            trainer.next_step += rng.choice([1, 1, 1, 1, 2])
            trainer.open.append(step)
        kind = rng.random()
        if self._has_faults and kind < 0.03:
            return self._odd(trainer)
        if trainer.closed and kind < 0.10:  # late, too late, or a duplicate of what was in time
            step = trainer.closed[-1 - min(int(rng.expovariate(0.8)), len(trainer.closed) - 1, 5)]
            return self._duplicate(trainer, step) if rng.random() < 0.5 else self._sample(trainer, step)
        step = rng.choice(trainer.open)
        if not step.unheard:
            if step.owed and rng.random() < 0.5:
                step.owed -= 1
                return self._sample(trainer, step)
            if not step.owed or rng.random() < 0.1:  # 0.1: what was announced never comes
                trainer.open.remove(step)
                trainer.closed = [*trainer.closed[-5:], step]
            return self._marker(trainer, step)
        if kind < 0.16:
            return self._duplicate(trainer, step)
        if sum(step.sent.values()) and rng.random() < 2.0 * step.producers / self._samples:
            return self._marker(trainer, step)
        if kind < 0.3:
            return self._batch(trainer, step)
        return self._sample(trainer, step)

    def _fields(self, step: _Step) -> dict[str, Any]:
        rng = self._rng
        fields: dict[str, Any] = {"rollout_id": rng.randrange(8), "group_index": rng.randrange(3)}
        if rng.random() < 0.1:
            del fields["rollout_id"]
            if rng.random() < 0.5:
                fields["index"] = rng.randrange(8)
        if rng.random() < 0.1:
            fields["group_index"] = None
        if rng.random() < 0.8:
            self._next_id += 1
            fields["sample_id"] = self._next_id
        odd = self._has_faults and rng.random() < 0.05
        reward = rng.choice(_ODD_REWARDS if odd else _REWARDS) if rng.random() < 0.7 else rng.random()
        if rng.random() < 0.05:
            fields["metadata"] = {"raw_reward": reward}
        else:
            fields["reward"] = reward
        if rng.random() < 0.3:
            fields["position"] = rng.randrange(1000)
        fields["response_length"] = rng.randrange(4000)
        step.sent[rng.choice(sorted(step.sent))] += 1
        return fields

    def _sample(self, trainer: _Trainer, step: _Step) -> NewRecord:
        event = trainer.event("sample", step, **self._fields(step))
        step.seen = [*step.seen[-20:], event]
        return self._record(trainer, event)

    def _batch(self, trainer: _Trainer, step: _Step) -> NewRecord:
        items = [self._fields(step) for _ in range(self._rng.randrange(5))]
        return self._record(trainer, trainer.event("samples", step, samples=items))

    def _duplicate(self, trainer: _Trainer, step: _Step) -> NewRecord:
        named = [event for event in step.seen if "sample_id" in event]
        return self._record(trainer, self._rng.choice(named)) if named else self._sample(trainer, step)

    def _marker(self, trainer: _Trainer, step: _Step, *, is_exact: bool = False) -> NewRecord:
        rng = self._rng
        if not step.unheard:  # once more, as producers do that aren't sure of the first
            return self._record(trainer, trainer.event("close", step, producer=rng.choice(sorted(step.sent))))
        name = step.unheard.pop(rng.randrange(len(step.unheard)))
        marker = trainer.event("close", step, producer=name, producers=step.producers)
        if rng.random() < 0.5:
            more = 0 if is_exact or rng.random() < 0.6 else rng.randrange(1, 4)
            marker["expected_samples"] = step.sent[name] + more
            step.owed += more
        if rng.random() < 0.2:
            marker["dropped"] = {"aborted": rng.randrange(3)}
        return self._record(trainer, marker)

    def _odd(self, trainer: _Trainer) -> NewRecord:
        rng = self._rng
        kind = rng.random()
        if kind < 0.3:
            values = (b"\xff\xfe", b'{"type":"sample","step":-1}', b"", b'{"type":"close","step":"1"}', b"[]")
            return NewRecord(rng.choice(values), key=trainer.run_id.encode(), partition=trainer.partition)
        if kind < 0.5:
            return NewRecord(None, key=trainer.run_id.encode(), partition=trainer.partition)
        step = rng.choice(trainer.open)
        if kind < 0.6 and step.number:
            old = self._sample(trainer, step)  # of the attempt that ends here
            trainer.attempt += rng.choice([1, 1, 2])
            trainer.next_step = max(0, min(one.number for one in trainer.open) - rng.randrange(3))
            trainer.open = []
            trainer.closed = []
            return old
        if kind < 0.8 and trainer.attempt:
            event = trainer.event("sample", step, **self._fields(step))
            event["attempt"] = trainer.attempt - 1
            return self._record(trainer, event)
        return self._sample(trainer, step)

    def _record(self, trainer: _Trainer, event: dict[str, Any]) -> NewRecord:
        return NewRecord(json.dumps(event).encode(), key=trainer.run_id.encode(), partition=trainer.partition)


class Flow:
    """Traffic that flows into a topic from a thread of its own, until `finish`.

    Args:
        bootstrap: The broker.
        topic: Where to.
        traffic: What.
        records_per_second: About how many.
        transactional_id: Sends in small transactions, one in four of them aborted and sent again; gives the log gaps.
    """

    _PORTION_SECONDS = 0.02

    def __init__(
        self,
        bootstrap: str,
        topic: str,
        traffic: Traffic,
        records_per_second: int = 400,
        transactional_id: str | None = None,
    ) -> None:
        config: dict[str, Any] = {"bootstrap.servers": bootstrap, "linger.ms": 0, "log_level": 0}
        if transactional_id is None:
            self._producer = Producer({**config, "enable.idempotence": True})
        else:
            self._producer = Producer({**config, "transactional.id": transactional_id})
        self._producer.list_topics(topic, timeout=30)  # connected before the clock of anything starts
        self._is_transactional = transactional_id is not None
        if self._is_transactional:
            self._producer.init_transactions(DEADLINE_SECONDS)
        self._topic = topic
        self._traffic = traffic
        self._portion = max(1, int(records_per_second * self._PORTION_SECONDS))
        self._is_stopping = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._portions = 0
        self.sent = 0

    def __enter__(self) -> Flow:
        self._thread.start()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self._is_stopping.set()
        self._thread.join(2 * DEADLINE_SECONDS)

    def finish(self) -> None:
        """All is sent, the ends of open steps included, and acknowledged."""
        self._is_stopping.set()
        self._thread.join(2 * DEADLINE_SECONDS)
        assert not self._thread.is_alive()
        if self._failure is not None:
            raise self._failure
        self._send(self._traffic.finish())

    def _run(self) -> None:
        try:
            while not self._is_stopping.wait(self._PORTION_SECONDS):
                self._send(self._traffic.take(self._portion))
        except BaseException as error:
            self._failure = error

    def _send(self, records: list[NewRecord]) -> None:
        if self._is_transactional:
            self._portions += 1
            if self._portions % 4 == 0:
                self._transact(records, is_aborted=True)
            self._transact(records, is_aborted=False)
        else:
            self._write(records)

    def _transact(self, records: Iterable[NewRecord], *, is_aborted: bool) -> None:
        self._producer.begin_transaction()
        self._write(records)
        if is_aborted:
            self._producer.abort_transaction(DEADLINE_SECONDS)
        else:
            self._producer.commit_transaction(DEADLINE_SECONDS)

    def _write(self, records: Iterable[NewRecord]) -> None:
        failures: list[object] = []
        for record in records:
            made = {"value": record.value, "key": record.key, "partition": record.partition}
            self._producer.produce(
                self._topic, **made, on_delivery=lambda error, _: failures.append(error) if error else None
            )
            self.sent += 1
        left = self._producer.flush(DEADLINE_SECONDS)  # a test may take the broker away
        assert not left and not failures, f"{left} records not delivered, {failures[:3]} refused"
