"""Bad weather for a real deployment: what goes wrong, when, is drawn from a seed; what came of it is counted.

`Trainers` write through the proxy as careless producers do. `Weather` breaks replicas, lines and the broker, heals them
again, and watches that no replica ends in a way that it wasn't made to. `judge` compares the output topics with the
replay of the input log. The plan depends on the seed alone; the moments in which it hits don't.
"""

from __future__ import annotations

import contextlib
import dataclasses
import heapq
import itertools
import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewPartitions

from stream_metrics.exit_codes import ExitCode
from support.brokers import Broker
from support.oracle import Published, Replayed, StepId, _names
from support.proxy import Line, Proxy
from support.sidecar_process import POINTS, Deployment, SidecarProcess, Stumble
from support.topics import NewRecord
from support.traffic import Traffic
from support.waiting import wait_until

SETTINGS = {"session_timeout": 3, "transaction_timeout": 2, "commit_interval": 0.2, "close_grace": 1}
_SESSION_SECONDS = 3.0
_TICK_SECONDS = 0.02
_TRAINERS = "trainers"
_EXIT_SECONDS = 25.0
_STALL_SECONDS = 60.0
"""How long nothing at all may be acknowledged. On a busy machine all takes longer, but not for ever."""


class Trainers:
    """Producers that resend, send out of order, and retry without idempotence through a bad line, until `finish`.

    Each partition has trainers of its own, so that one added later leaves the runs where they are.

    Args:
        bootstrap: The proxy's address.
        topic: Where to.
        seed: Gives what is sent, not when.
        records_per_second: About how many.
    """

    def __init__(self, bootstrap: str, topic: str, seed: int, records_per_second: int = 250) -> None:
        self.counts: Counter[str] = Counter()
        self._topic = topic
        self._rng = random.Random(seed)
        self._traffics: dict[int, Traffic] = {}
        self._portion = max(1, int(records_per_second * _TICK_SECONDS))
        self._coming: list[int] = []
        self._held: list[tuple[int, int, NewRecord]] = []
        self._recent: list[NewRecord] = []
        self._is_stopping = threading.Event()
        self._failure: BaseException | None = None
        self._refused: list[object] = []
        self._thread = threading.Thread(target=self._run, name="trainers", daemon=True)
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "client.id": _TRAINERS,
                "enable.idempotence": False,  # a retry then writes twice, and overtakes
                "acks": "all",
                "linger.ms": 2,
                "reconnect.backoff.max.ms": 500,
                "topic.metadata.refresh.interval.ms": 1_000,
                "socket.timeout.ms": 6_000,
                "request.timeout.ms": 5_000,
                # Little at a time: after an outage a busy broker would need longer than the timeout for all that has
                # piled up, and it would be sent again, and again.
                "max.in.flight": 5,
                "batch.num.messages": 200,
                "message.timeout.ms": 0,
                "log_level": 0,
            }
        )

    def __enter__(self) -> Trainers:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_stopping.set()
        self._thread.join(30)
        self._producer.purge()

    def add(self, partition: int) -> None:
        """Two runs write to this partition too, as soon as the producer has heard of it."""
        self._coming.append(partition)

    def finish(self) -> None:
        """All is sent, the ends of open steps included, and acknowledged."""
        self._is_stopping.set()
        self._thread.join(30)
        if self._failure is not None:
            raise self._failure
        for _, _, record in sorted(self._held, key=lambda held: held[:2]):
            self._send(record)
        for partition, traffic in self._traffics.items():
            for record in traffic.finish():
                self._send(_moved(record, partition))
        left, progress_at = len(self._producer), time.monotonic()
        while left and time.monotonic() - progress_at < _STALL_SECONDS:
            if (still := self._producer.flush(1)) < left:
                left, progress_at = still, time.monotonic()
        assert not left and not self._refused, f"{left} records not delivered, {self._refused[:3]} refused"

    def _run(self) -> None:
        try:
            while not self._is_stopping.wait(_TICK_SECONDS):
                self._look_for_partitions()
                for _ in range(self._portion if self._traffics else 0):
                    self._one()
                self._producer.poll(0)
        except BaseException as error:
            self._failure = error

    def _look_for_partitions(self) -> None:
        if not self._coming:
            return
        with contextlib.suppress(KafkaException):
            known = self._producer.list_topics(self._topic, timeout=0.2).topics[self._topic].partitions
            while self._coming and self._coming[0] in known:
                seed = self._rng.randrange(10**9)
                self._traffics[self._coming.pop(0)] = Traffic(seed, runs=2, partitions=1, samples=20)

    def _one(self) -> None:
        rng = self._rng
        partition = rng.choice(sorted(self._traffics))
        record = _moved(self._traffics[partition].take(1)[0], partition)
        now = self.counts["records"]
        if rng.random() < 0.05:
            self.counts["out of order"] += 1
            heapq.heappush(self._held, (now + rng.randrange(1, 200), self.counts["out of order"], record))
        else:
            self._send(record)
            self._recent = [*self._recent[-30:], record]
        if rng.random() < 0.004:
            again = self._recent[-rng.randrange(1, 30) :]
            self.counts["resent"] += len(again)
            for one in again:
                self._send(one)
        while self._held and self._held[0][0] <= self.counts["records"]:
            self._send(heapq.heappop(self._held)[2])

    def _send(self, record: NewRecord) -> None:
        self.counts["records"] += 1
        self._producer.produce(
            self._topic,
            value=record.value,
            key=record.key,
            partition=record.partition,
            on_delivery=lambda error, _: self._refused.append(error) if error else None,
        )


def _moved(record: NewRecord, partition: int) -> NewRecord:
    """Returns a record of the partition's own runs."""
    name = b"p%d-run-" % partition
    value, key = record.value, record.key
    return dataclasses.replace(
        record,
        value=None if value is None else value.replace(b'"run-', b'"' + name),
        key=None if key is None else key.replace(b"run-", name),
        partition=partition,
    )


@dataclass
class _Slot:
    """A place for a replica: an identity, and the process that has it now."""

    name: str
    is_static: bool
    host: str
    process: SidecarProcess | None = None
    is_busy: bool = False

    @property
    def is_alive(self) -> bool:
        return self.process is not None and self.process.exit_code is None


@dataclass(eq=False)
class _Life:
    """What a process was made to suffer, so what ends are right for it."""

    process: SidecarProcess
    slot: _Slot
    stumble: Stumble | None
    is_killed: bool = False
    is_leaving: bool = False
    has_twin: bool = False
    is_over: bool = False


class Weather:
    """Breaks things and heals them.

    Args:
        broker: Stopped, killed and paused.
        proxy: Between it and all clients but the oracle's.
        deployed: Gets the replicas.
        trainers: Get the partitions that are added.
        seed: Gives the plan.

    Attributes:
        faults: How many of each kind have happened.
        exits: How many replicas ended in which way.
    """

    def __init__(self, broker: Broker, proxy: Proxy, deployed: Deployment, trainers: Trainers, seed: int) -> None:
        self.faults: Counter[str] = Counter()
        self.exits: Counter[str] = Counter()
        self._broker = broker
        self._proxy = proxy
        self._deployed = deployed
        self._trainers = trainers
        self._rng = random.Random(seed)
        self._lives: list[_Life] = []
        self._slots = [
            _Slot("a", True, "host-a"),
            _Slot("b", True, "host-b"),
            _Slot("c", False, "host-c"),
            _Slot("d", False, "host-d"),
        ]
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._is_broker_up = True
        self._aside = ThreadPoolExecutor(1, thread_name_prefix="broker")
        self._is_cut_off = False
        self._newest: dict[int, int] = {}
        self._max_partitions = deployed.partitions + 3
        self._kinds: list[tuple[int, Callable[[], bool]]] = [
            (16, self._kill),
            (8, self._freeze),
            (7, self._make_zombie),
            (8, self._leave),
            (10, self._join),
            (12, self._cut),
            (8, self._hold),
            (8, self._slow),
            (12, self._reset),
            (4, self._cut_trainers),
            (3, self._cut_everybody),
            (1, self._pause_broker),
            (1, self._stop_broker),
            (1, self._kill_broker),
            (1, self._add_partition),
        ]

    def blow(self, seconds: float, min_faults: int) -> None:
        """Faults have happened for so long, and at least so many.

        Raises:
            AssertionError: A replica ended as it shouldn't have, or the faults weren't to be had in time.
        """
        for slot in self._slots[:3]:
            self._start(slot)
        self._slots[0].process.wait_for("partitions assigned")  # type: ignore[union-attr]
        began = next_fault = fault_at = time.monotonic()
        num_faults = 0
        # One of the rare kinds each at a drawn moment, so that no run is without them.
        sure: list[Callable[[], bool]] = [
            self._pause_broker, self._stop_broker, self._kill_broker, self._cut_everybody,
            # Only so many may be added, and chance may have added them all.
            lambda: self.faults["partition added"] > 0 or self._add_partition(),
        ]  # fmt: skip
        moments = sorted(self._rng.uniform(0.05, 0.9) * seconds for _ in sure)
        self._rng.shuffle(sure)
        planned = list(zip(moments, sure, strict=True))
        while (now := time.monotonic()) < began + seconds or self.faults.total() < min_faults or planned:
            if self.faults.total() != num_faults:
                num_faults, fault_at = self.faults.total(), now
            assert now < fault_at + _STALL_SECONDS, f"only {num_faults} faults, and no more for {_STALL_SECONDS:g} s"
            self._do_what_is_due(now)
            self._watch()
            # One that can't be just now, such as a stop of a broker that is away, holds up no other.
            if planned and now >= began + planned[0][0] and planned[0][1]():
                planned.pop(0)
            elif now >= next_fault:
                next_fault = now + self._rng.expovariate(2.2)
                self._draw()
            else:
                threading.Event().wait(_TICK_SECONDS)

    def clear(self) -> None:
        """All is healed, at least two replicas live, and none has a stumble before it."""
        while self._due:
            self._do_what_is_due(time.monotonic())
            self._watch()
            threading.Event().wait(_TICK_SECONDS)
        for name in [*(slot.name for slot in self._slots), _TRAINERS]:
            self._proxy.change(name, Line())
        self._aside.shutdown()
        self._broker.start()
        for life in self._lives:
            if life.stumble is not None and not life.is_over:
                life.is_killed = True
                life.process.kill()
        self._watch()
        for slot in self._slots[:2]:
            if not slot.is_alive:
                self._start(slot, is_mortal=False)
        self.note_offsets()

    def calm(self) -> None:
        """All replicas have ended in order, one after the other."""
        for life in self._lives:
            if not life.is_over:
                life.is_leaving = True
                life.process.terminate(_EXIT_SECONDS)
                self._watch()
        for life in self._lives:
            assert life.is_over, life.process.told()
            for line in life.process.log():
                said = line["message"]
                assert "Traceback" not in said and not said.startswith("internal error"), life.process.told()

    def note_offsets(self) -> None:
        """No committed offset has gone back, nor past the end of the log."""
        committed, ends = self._deployed.committed(), self._deployed.ends()
        for partition, offset in committed.items():
            newest = self._newest.get(partition, -1)
            assert newest <= offset <= ends[partition], f"partition {partition}: {newest}, {offset}, {ends[partition]}"
            self._newest[partition] = offset

    # --- the loop ------------------------------------------------------------------------------------------------

    def _later(self, seconds: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._due, (time.monotonic() + seconds, next(self._order), action))

    def _do_what_is_due(self, now: float) -> None:
        while self._due and self._due[0][0] <= now:
            heapq.heappop(self._due)[2]()

    def _draw(self) -> None:
        weights, kinds = zip(*self._kinds, strict=True)
        for _ in range(30):
            if self._rng.choices(kinds, weights)[0]():
                return

    def _watch(self) -> None:
        """Looks at how replicas ended, and at those that stand still by their own stumble."""
        for life in self._lives:
            if life.is_over:
                continue
            code = life.process.exit_code
            if code is None:
                stumble = life.stumble
                if stumble is not None and stumble.how == signal.SIGSTOP and _is_stopped(life.process):
                    life.stumble = None
                    self.faults["frozen at a point of a transaction"] += 1
                    self._wake_later(life)
                continue
            life.is_over = True
            is_its_own = code == -signal.SIGKILL and life.stumble is not None and not life.is_killed
            if is_its_own:
                self.faults["kill -9 at a point of a transaction"] += 1
                self.exits["killed"] += 1
            elif code == -signal.SIGKILL and life.is_killed:
                self.exits["killed"] += 1
            elif code == ExitCode.OK and life.is_leaving:
                self.exits["left"] += 1
            elif code == -signal.SIGTERM and life.is_leaving and not life.process.log():
                self.exits["left before they could say anything"] += 1
            elif code == ExitCode.FENCED and life.has_twin:
                self.exits["fenced"] += 1
            else:
                raise AssertionError(f"{life.process.name} ended with {code}; its log:\n{life.process.told()}")
            if life.slot.process is life.process and not life.is_leaving and not life.slot.is_busy:
                self._restart_later(life.slot)

    def _life(self, slot: _Slot) -> _Life:
        return next(life for life in reversed(self._lives) if life.process is slot.process)

    # --- replicas ------------------------------------------------------------------------------------------------

    def _start(self, slot: _Slot, *, is_mortal: bool = True) -> None:
        rng = self._rng
        stumble = None
        if is_mortal and rng.random() < 0.3:
            how = signal.SIGKILL if rng.random() < 0.7 else signal.SIGSTOP
            stumble = Stumble(rng.choice(POINTS), rng.randrange(1, 12), how)
        if not slot.is_static and rng.random() < 0.2:  # as a pod made anew
            slot.host = f"host-{slot.name}-{len(self._lives)}"
        identity = {"instance_id": slot.name} if slot.is_static else {}
        slot.process = self._deployed.start(
            f"{slot.name}-{len(self._lives)}",
            stumble,
            slot.host,
            bootstrap_servers=self._broker.proxied_bootstrap,
            kafka_config=f"client.id={slot.name}",
            **identity,
        )
        life = _Life(slot.process, slot, stumble)
        for twin in self._lives:
            if twin.slot is slot and not twin.is_over and twin.process.exit_code is None:
                life.has_twin = twin.has_twin = True
        self._lives.append(life)

    def _restart_later(self, slot: _Slot) -> None:
        slot.is_busy = True

        def restart() -> None:
            slot.is_busy = False
            self._start(slot)

        self._later(self._rng.uniform(0.0, 0.8), restart)

    def _one_alive(self) -> _Slot | None:
        alive = [slot for slot in self._slots if slot.is_alive and not slot.is_busy]
        return self._rng.choice(alive) if alive else None

    def _kill(self) -> bool:
        slot = self._one_alive()
        if slot is None:
            return False
        self._life(slot).is_killed = True
        assert slot.process is not None
        slot.process.kill()
        self.faults["kill -9"] += 1
        self._restart_later(slot)
        return True

    def _freeze(self) -> bool:
        slot = self._one_alive()
        if slot is None or self._life(slot).stumble is not None:
            return False
        process = slot.process
        assert process is not None
        process.freeze()
        slot.is_busy = True
        self.faults["frozen within its session"] += 1

        def thaw() -> None:
            slot.is_busy = False
            process.thaw()

        self._later(self._rng.uniform(0.1, 1.2), thaw)
        return True

    def _make_zombie(self) -> bool:
        slot = self._one_alive()
        if slot is None or self._life(slot).stumble is not None:
            return False
        assert slot.process is not None
        slot.process.freeze()
        self.faults["frozen past its session (zombie)"] += 1
        self._wake_later(self._life(slot))
        return True

    def _wake_later(self, life: _Life) -> None:
        """A frozen replica's session ends, its identity may be given to another one, and then it wakes."""
        slot, rng = life.slot, self._rng
        slot.is_busy = True
        is_replaced = rng.random() < 0.5

        def replace() -> None:
            self._start(slot)
            slot.is_busy = False

        def wake() -> None:
            if life.process.exit_code is None:
                life.process.thaw()
            if not is_replaced:
                slot.is_busy = False

        if is_replaced:
            self._later(rng.uniform(0.0, _SESSION_SECONDS), replace)
        self._later(_SESSION_SECONDS + rng.uniform(0.2, 2.0), wake)

    def _leave(self) -> bool:
        slot = self._one_alive()
        if slot is None or sum(one.is_alive for one in self._slots) < 2 or self._life(slot).stumble is not None:
            return False
        life, slot.is_busy = self._life(slot), True
        life.is_leaving = True
        assert slot.process is not None
        os.kill(slot.process.pid, signal.SIGTERM)
        self.faults["a replica leaves (SIGTERM)"] += 1
        until = time.monotonic() + _EXIT_SECONDS

        def look() -> None:
            if life.process.exit_code is not None:
                slot.process = None
                slot.is_busy = False
                return
            assert time.monotonic() < until, f"no end {_EXIT_SECONDS} s after SIGTERM:\n{life.process.told()}"
            self._later(0.1, look)

        look()
        return True

    def _join(self) -> bool:
        empty = [slot for slot in self._slots if slot.process is None and not slot.is_busy]
        if not empty:
            return False
        self._start(self._rng.choice(empty))
        self.faults["a replica joins"] += 1
        return True

    # --- lines ---------------------------------------------------------------------------------------------------

    def _for_a_while(self, clients: list[str], line: Line, low: float, high: float) -> None:
        self._change(clients, line)
        self._later(self._rng.uniform(low, high), lambda: self._change(clients, Line()))

    def _change(self, clients: list[str], line: Line) -> None:
        for client in clients:
            self._proxy.change(client, line)

    def _cut(self) -> bool:
        slot = self._one_alive()
        if slot is None:
            return False
        self._for_a_while([slot.name], Line(is_cut=True), 0.1, 1.4 * _SESSION_SECONDS)
        self.faults["network cut"] += 1
        return True

    def _hold(self) -> bool:
        slot = self._one_alive()
        if slot is None:
            return False
        self._for_a_while([slot.name], Line(is_held=True), 0.2, 1.4 * _SESSION_SECONDS)
        self.faults["network silent"] += 1
        return True

    def _slow(self) -> bool:
        slot = self._one_alive()
        if slot is None:
            return False
        line = Line(delay_seconds=self._rng.uniform(0.01, 0.3), bytes_per_second=self._rng.choice([0, 20_000, 200_000]))
        self._for_a_while([slot.name], line, 0.5, 4.0)
        self.faults["network slow"] += 1
        return True

    def _reset(self) -> bool:
        slot = self._one_alive()
        if slot is None:
            return False
        self._proxy.reset(slot.name)
        self.faults["connections reset"] += 1
        return True

    def _cut_trainers(self) -> bool:
        line = self._rng.choice([Line(is_cut=True), Line(is_held=True), Line(delay_seconds=0.1)])
        self._for_a_while([_TRAINERS], line, 0.1, 2.5)
        self.faults["producers' network cut, silent or slow"] += 1
        return True

    def _cut_everybody(self) -> bool:
        if self._is_cut_off or not self._is_broker_up:
            return False
        self._is_cut_off = True
        seconds = self._rng.uniform(0.5, 1.4 * _SESSION_SECONDS)
        self._for_a_while([slot.name for slot in self._slots], Line(is_cut=True), seconds, seconds)
        self._later(seconds, lambda: setattr(self, "_is_cut_off", False))
        self.faults["network cut for all replicas"] += 1
        return True

    # --- the broker ----------------------------------------------------------------------------------------------

    def _pause_broker(self) -> bool:
        return self._break_broker("broker silent", self._broker.pause, 1.8 * _SESSION_SECONDS)

    def _stop_broker(self) -> bool:
        return self._break_broker("broker stopped and started", self._broker.stop, 2.0)

    def _kill_broker(self) -> bool:
        return self._break_broker("broker killed and started", self._broker.kill, 2.0)

    def _break_broker(self, kind: str, how: Callable[[], None], max_seconds: float) -> bool:
        """It takes its time to go and to come back, and all else goes on meanwhile."""
        if not self._is_broker_up:
            return False
        self._is_broker_up = False
        seconds = self._rng.uniform(0.3, max_seconds)

        def go_and_come() -> None:
            how()
            threading.Event().wait(seconds)
            self._broker.start()

        self.faults[kind] += 1
        healing = self._aside.submit(go_and_come)

        def look() -> None:
            if not healing.done():
                self._later(0.1, look)
                return
            healing.result()
            self._is_broker_up = True
            self._later(1.0, self._look_at_offsets)

        look()
        return True

    def _look_at_offsets(self) -> None:
        if self._is_broker_up:
            self.note_offsets()

    def _add_partition(self) -> bool:
        count = self._deployed.partitions
        if not self._is_broker_up or count >= self._max_partitions:
            return False
        admin = AdminClient({"bootstrap.servers": self._broker.bootstrap, "log_level": 0})
        topic = self._deployed.input_topic

        def is_there() -> bool:
            with contextlib.suppress(KafkaException):
                partitions = admin.list_topics(topic, timeout=10).topics[topic].partitions
                if count in partitions:
                    return partitions[count].leader >= 0
                admin.create_partitions([NewPartitions(topic, count + 1)], request_timeout=10)[topic].result(30)
            return False

        wait_until(is_there, f"partition {count} of {topic}", _STALL_SECONDS)
        for isolation in ("read_committed", "read_uncommitted"):  # what it asks with has to know of it too
            self._deployed._watcher(isolation).list_topics(topic, timeout=30)
        self._deployed.partitions = count + 1
        self._trainers.add(count)
        self.faults["partition added"] += 1
        return True


def _is_stopped(process: SidecarProcess) -> bool:
    with contextlib.suppress(ChildProcessError):
        state = os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOHANG | os.WNOWAIT)
        return state is not None and state.si_code == os.CLD_STOPPED
    return False


@dataclass
class Verdict:
    """Where the output topics and the log's replay part.

    Attributes:
        lost: Results, corrections and dead letters that the log gives and nobody can read.
        doubled: Those that can be read more often than the log gives them.
        wrong: Those with other bytes than the log gives, and those that it doesn't give at all.
    """

    lost: list[object] = field(default_factory=list)
    doubled: list[object] = field(default_factory=list)
    wrong: list[object] = field(default_factory=list)

    def __bool__(self) -> bool:
        return not (self.lost or self.doubled or self.wrong)


def judge(want: Replayed, got: Published) -> Verdict:
    """Returns where what is published parts from what the log says."""
    made = Verdict()
    wanted = Counter(line for lines in want.on_time.values() for line in lines)
    visible = Counter(value for _, value in got.on_time)
    wanted_steps, visible_steps = _names(wanted.elements()), _names(visible.elements())
    made.lost += (wanted_steps - visible_steps).elements()
    _sort_in(made, visible_steps - wanted_steps, wanted_steps)
    steps_right: Counter[StepId] = _names((wanted & visible).elements())
    made.wrong += ((wanted_steps & visible_steps) - steps_right).elements()
    made.lost += [("correction", step) for step in want.corrections.keys() - got.corrections.keys()]
    made.wrong += [
        ("correction", step) for step, value in got.corrections.items() if want.corrections.get(step) != value
    ]
    made.lost += (want.dead_letters - got.dead_letters).elements()
    _sort_in(made, got.dead_letters - want.dead_letters, want.dead_letters)
    return made


def _sort_in(made: Verdict, extra: Counter[object], wanted: Counter[object]) -> None:
    for one, count in extra.items():
        (made.doubled if one in wanted else made.wrong).extend([one] * count)
