"""The only loop: consume, fold, perform what the fold asks for in one transaction with the offsets.

A turn: 1. take what the consumer has; 2. fold it, partition by partition; 3. commit if a result waits or the interval
has passed; 4. look at the timers and the like once a second. All state is in `Owned` partitions, which come and go with
rebalances.

The client's callbacks run inside `poll` and `consume`. They never raise: a record already taken would be lost with the
exception. What goes wrong in them is kept and raised by the loop.
"""

from __future__ import annotations

import gc
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, NoReturn, cast

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from stream_metrics.config import Settings
from stream_metrics.core import compiled
from stream_metrics.core.effects import SetAside
from stream_metrics.core.record import Record
from stream_metrics.core.window import Window
from stream_metrics.sidecar import logs
from stream_metrics.sidecar.commits import Commits
from stream_metrics.sidecar.errors import (
    CLIENT_ERRORS,
    FencedError,
    Meaning,
    RestartError,
    StateRefusedError,
    StoppingError,
    WrongSettingsError,
    client_error,
    meaning,
    refused,
)
from stream_metrics.sidecar.health import Health
from stream_metrics.sidecar.input_topic import SILENT_LOOKS, InputTopic, made_anew
from stream_metrics.sidecar.membership import is_replaced, member_with
from stream_metrics.sidecar.owned import Owned
from stream_metrics.sidecar.self_metrics import SelfMetrics
from stream_metrics.sidecar.takeover import Takeover, say_lost
from stream_metrics.sidecar.topics import Topics
from stream_metrics.sidecar.transactions import (
    CALL_SECONDS,
    Transactions,
    broker_answers,
)

BATCH: Final = 1_000
"""So many records, with all that is made of them, stay in a core's own cache."""

POLL_SECONDS: Final = 0.1
TICK_SECONDS: Final = 1.0
CLOSE_SECONDS: Final = 5.0
AHEAD_SHARE: Final = 0.02
"""Working ahead takes no more of a processor than that, however often a lull is followed by one more sample."""

STOP_GRACE_SECONDS: Final = 3.0
RESTORE_STALL_SECONDS: Final = 30.0
FENCED_MEMBER: Final = "the group may have given my instance id to another member"
FORGOTTEN_SECONDS: Final = 10.0
"""A consumer that finds no broker for so long, where a new client finds one, won't find it any more."""


class Sidecar:
    """One replica, from its first connection to its exit.

    Args:
        settings: All settings.
        transactional_id: Identity of its producer, shared with its replacement.
        health: What the HTTP server answers.
        metrics: The sidecar's own metrics.
        monotonic: Seconds that never jump.
        unix_ms: The wall clock.
        show_open: Gets the open windows once a second, to be looked at and not kept.
    """

    def __init__(
        self,
        settings: Settings,
        transactional_id: str,
        health: Health,
        metrics: SelfMetrics,
        monotonic: Callable[[], float] = time.monotonic,
        unix_ms: Callable[[], int] = lambda: int(time.time() * 1000),
        show_open: Callable[[list[Window]], None] | None = None,
    ) -> None:
        # As it is when asked, also while the loop waits.
        metrics.is_ready.set_function(lambda: not health.why_not_ready())
        self._settings = settings
        self._transactional_id = transactional_id
        self._health = health
        self._metrics = metrics
        self._monotonic = monotonic
        self._unix_ms = unix_ms
        self._show_open = show_open
        self._is_stopping = False
        self._stop_seen_at: float | None = None
        self._has_joined = False
        self._missing = ""
        self._member_id = ""
        self._owned: dict[int, Owned] = {}
        self._failure: BaseException | None = None
        self._is_behind = False
        self._rest_until = 0.0
        self._split_runs: set[tuple[str, str]] = set()
        self._is_flood_said = False
        self._last_tick = self._answered_at = monotonic()
        self._consumer: Consumer = None  # type: ignore[assignment]  # made by each start
        self._transactions: Transactions = None  # type: ignore[assignment]
        self._commits: Commits = None  # type: ignore[assignment]
        self._takeover: Takeover = None  # type: ignore[assignment]
        self._input_topic: InputTopic = None  # type: ignore[assignment]

    def stop(self) -> None:
        """Asks for an end: the transaction is finished, the group left, `run` returns. Safe in a signal handler."""
        self._is_stopping = True  # a flag and no lock: the main thread may be inside any of them

    def run(self) -> None:
        """Runs until `stop`.

        Raises:
            SidecarError: It can't go on; the message says why and what to do.
        """
        pause = 0.0
        while not self._is_stopping:
            began = self._monotonic()
            try:
                why, is_replaced_perhaps = self._work()
                if is_replaced_perhaps:
                    self._raise_if_replaced()
                if why:
                    self._metrics.restarts.inc()
                    pause = 0.0 if self._monotonic() - began > 60 else min(pause * 2 + 0.1, 10.0)
                    logs.warning("beginning anew from the committed offsets", why=why, in_seconds=pause)
            finally:
                self._close()
            self._pause(pause)

    def _work(self) -> tuple[str, bool]:
        """Works until a stop or until it must begin anew; returns why, and whether it may have been replaced.

        Not the exception itself: see `transactions._failure` for what calls of the client keep while one is handled.
        """
        try:
            self._start_as_configured()
            self._turn_until_stopped()
        except StoppingError:
            pass
        except RestartError as error:
            return str(error), error.is_replaced_perhaps
        return "", False

    def _raise_if_replaced(self) -> None:
        """Asks until it is known whether another replica has our instance id by now.

        A static member must ask before it joins again: it would push out a replacement that it doesn't know of.

        Raises:
            FencedError: One has.
        """
        instance_id = self._settings.instance_id
        if instance_id is None:
            return
        self._health.not_ready = f"asking the group who has the instance id {instance_id}"
        with suppress(StoppingError):
            if is_replaced(
                lambda: member_with(self._settings, instance_id),
                self._is_me,
                self._is_identity_ours,
                self._settings.session_timeout_seconds,
                self._monotonic,
                self._pause,
                self._must_stop,
            ):
                raise FencedError(
                    f"another live replica runs with --instance-id {instance_id} and took over: "
                    "give each replica of the group its own"
                )

    def _is_me(self, member_id: str) -> bool:
        # The client may have joined once more since we heard of it, and forgets its id where its session ends.
        consumer = self._consumer
        return member_id == self._member_id or (consumer is not None and member_id == consumer.memberid())

    def _is_identity_ours(self) -> bool | None:
        transactions, consumer = self._transactions, self._consumer
        return None if consumer is None else transactions.is_ours(self._settings.input_topic, consumer)

    def _heartbeat_seconds(self) -> float:
        return max(0.1, min(3.0, self._settings.session_timeout_seconds / 4))

    def _must_leave(self) -> bool:
        """Returns whether a transaction under way has had its time to end after a stop was asked for."""
        if not self._is_stopping:
            return False
        if self._stop_seen_at is None:
            self._stop_seen_at = self._monotonic()
        return self._monotonic() - self._stop_seen_at > STOP_GRACE_SECONDS

    def _must_stop(self) -> bool:
        self._health.turn()
        return self._is_stopping

    def _show_why(self, not_ready: str) -> None:
        self._health.not_ready = not_ready

    def _pause(self, seconds: float) -> None:
        """Sleeps, but not through a stop."""
        until = self._monotonic() + seconds
        while not self._is_stopping and (left := until - self._monotonic()) > 0:
            time.sleep(min(left, POLL_SECONDS))

    # --- start and end -------------------------------------------------------------------------------------------

    def _start_as_configured(self) -> None:
        try:
            self._start()
        except KafkaException as error:
            if error.args[0].code() != KafkaError._INVALID_ARG:
                raise
            raise WrongSettingsError(f"kafka-config: {error.args[0].str()}") from None

    def _start(self) -> None:
        settings = self._settings
        self._health.not_ready = "preparing topics"
        topics = Topics(settings, lambda: self._is_stopping, self._health.turn, self._pause, self._show_why)
        topics.prepare()
        self._say_broker_back()
        max_dead_letter_bytes = topics.dead_letter_max_bytes()
        self._input_topic = topics.input_topic()
        # The identity first: a predecessor's open transaction would hold up the committed offsets.
        self._health.not_ready = "waiting for the transaction coordinator"
        self._transactions = Transactions(
            {"log_level": 2, **settings.client_config(), "error_cb": self._on_producer_error},
            self._transactional_id,
            settings.transaction_timeout_seconds,
            self._must_leave,
            self._health.turn,
        )
        self._transactions.init()
        self._health.not_ready = "joining the group"
        self._has_joined = False  # a member id alone comes earlier, and a group may be waited for as long as a session
        self._member_id = ""
        self._consumer = Consumer(self._consumer_config(), logger=logs.CLIENT_LOGGER)
        self._commits = Commits(
            settings,
            self._owned,
            self._consumer,
            self._transactions,
            max_dead_letter_bytes,
            self._health,
            self._metrics,
            self._monotonic,
            self._unix_ms,
        )
        self._takeover = Takeover(
            settings, self._consumer, self._input_topic, self._metrics, self._monotonic, self._pause, self._must_stop
        )
        self._consumer.subscribe(
            [settings.input_topic], on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_lost
        )
        self._last_tick = self._answered_at = self._monotonic()
        logs.info(
            "started",
            group=settings.group_id,
            transactional_id=self._transactional_id,
            input=settings.input_topic,
            output=settings.output_topic,
            reader="compiled" if compiled.IS_THERE and not settings.pure_python else "python",
        )

    def _consumer_config(self) -> dict[str, Any]:
        settings = self._settings
        config: dict[str, Any] = {
            # A fast consumer empties the queue in less than the default second of this back-off. What waits in it takes
            # several times its own size in memory, and the less of it there is the more stays in the processor's cache.
            "fetch.queue.backoff.ms": 10,
            "queued.min.messages": 1_000_000,
            "queued.max.messages.kbytes": 16_384,
            "topic.metadata.refresh.interval.ms": 10_000,
            "fetch.message.max.bytes": 1_048_576,
            "log_level": 2,
            **settings.client_config(),
            "group.id": settings.group_id,
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "auto.offset.reset": "error",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "session.timeout.ms": int(settings.session_timeout_seconds * 1000),
            "heartbeat.interval.ms": int(self._heartbeat_seconds() * 1000),
            "max.poll.interval.ms": max(300_000, int(settings.session_timeout_seconds * 1000)),
            "partition.assignment.strategy": "cooperative-sticky" if settings.assignment == "cooperative" else "range",
            "error_cb": self._on_error,
        }
        if settings.instance_id is not None:
            config["group.instance.id"] = settings.instance_id
        return config

    def _close(self) -> None:
        """Leaves the group and drops all state; bounded in time, since a broker that is away answers nothing."""
        consumer, transactions = self._consumer, self._transactions
        self._consumer = self._transactions = None  # type: ignore[assignment]
        self._health.not_ready = "stopped"
        if consumer is not None:
            self._owned.clear()
            closing = threading.Thread(target=_close_quietly, args=(consumer,), name="close", daemon=True)
            closing.start()
            closing.join(self._seconds_to_close())
        if transactions is not None:
            transactions.close()
        self._owned.clear()
        gc.collect()  # some clients are in cycles, and the collector looks seldom: each start would leave its own

    def _seconds_to_close(self) -> float:
        """Returns how long leaving the group may take: less where a transaction has had its share of a stop's time."""
        if self._stop_seen_at is None:
            return CLOSE_SECONDS
        return max(CLOSE_SECONDS - (self._monotonic() - self._stop_seen_at), 1.0)

    # --- the loop ------------------------------------------------------------------------------------------------

    def _turn_until_stopped(self) -> None:
        while not self._is_stopping:
            self._turn()
        self._commits.commit(self._owned.values())

    def _turn(self) -> None:
        self._health.turn()
        messages = self._consume()
        self._raise_failure()
        if messages:
            self._fold(messages)
        else:
            self._work_ahead()
        self._commits.commit_if_due(is_behind=self._is_behind)
        self._transactions.serve()
        now = self._monotonic()
        if now - self._last_tick >= TICK_SECONDS:
            self._last_tick = now
            self._tick(now)

    def _consume(self) -> list[Message]:
        # A consume() that may wait would wait for a full batch: one record is waited for, the rest is taken as it is.
        try:
            first = self._consumer.poll(POLL_SECONDS)
            if first is None:
                self._is_behind = False
                return []
            messages = [first, *self._consumer.consume(BATCH - 1, 0)]
            self._is_behind = len(messages) == BATCH
            return messages
        except CLIENT_ERRORS as error:
            # What consume() had taken is lost with it, so there is no going on with this consumer.
            self._raise_lost(client_error(error))

    def _fold(self, messages: list[Message]) -> None:
        ends = [message for message in messages if message.error() is not None]
        if ends:
            messages = [message for message in messages if message.error() is None]
        for partition, records in _by_partition(messages).items():
            owned = self._owned.get(partition)
            if owned is not None:  # else taken away after it was fetched
                self._feed(owned, records)
        for message in ends:
            self._take_error(message)

    def _work_ahead(self) -> None:
        """Nothing comes, so there is time for what the next close would wait for; a small share of the time at most."""
        now = self._monotonic()
        if now < self._rest_until:
            return
        for owned in self._owned.values():
            if not owned.is_restoring and owned.fold.work_ahead():
                self._rest_until = now + (self._monotonic() - now) / AHEAD_SHARE
                return

    def _feed(self, owned: Owned, records: Sequence[Record]) -> None:
        was_restoring, before = owned.is_restoring, len(owned.pending)
        new = owned.feed(records)
        counts = owned.fold.counts
        if was_restoring:
            self._metrics.replayed_records.inc(len(records) - new)
            if owned.is_restoring:
                counts.clear()
                return
            self._say_restored(owned)
        if new:
            self._health.count(new, sum(isinstance(one, SetAside) for one in owned.pending[before:]))
            self._metrics.take(new, counts)
        for notice in owned.notices:
            logs.warning(
                notice.message,
                event=notice.kind,
                run_id=notice.run_id,
                scope=notice.scope,
                step=notice.step,
                attempt=notice.attempt,
                partition=owned.partition,
            )
        owned.notices.clear()

    def _take_error(self, message: Message) -> None:
        error = cast(KafkaError, message.error())
        code = error.code()
        if code == KafkaError._PARTITION_EOF:
            owned = self._owned.get(cast(int, message.partition()))
            if owned is not None:
                was_restoring = owned.is_restoring
                owned.reach_end(cast(int, message.offset()))
                if was_restoring and not owned.is_restoring:
                    self._say_restored(owned)
            return
        if code == KafkaError._AUTO_OFFSET_RESET:
            owned = self._owned.get(cast(int, message.partition()))
            if owned is not None:
                self._take_out_of_range(owned)
            return
        if meaning(error) is not Meaning.WAIT:
            self._raise_lost(error)
        if code == KafkaError.UNKNOWN_TOPIC_OR_PART:
            self._missing = f"topic {self._settings.input_topic!r} is missing"
            self._input_topic.look_soon()  # it may be made anew
        logs.warning("the consumer says", error=error.str(), topic=message.topic(), partition=message.partition())

    def _raise_lost(self, error: KafkaError) -> NoReturn:
        """Raises what follows from an error that ends the consumer."""
        if meaning(error) is Meaning.FENCED:
            raise RestartError(FENCED_MEMBER, is_replaced_perhaps=True)
        if meaning(error) is Meaning.REFUSED:
            raise refused(error, self._as_a_member())
        raise RestartError(f"the consumer is done for: {error.str()}")

    def _as_a_member(self) -> str:
        return f"reading {self._settings.input_topic!r} in group {self._settings.group_id!r}"

    def _take_out_of_range(self, owned: Owned) -> None:
        """The next offset isn't in the log: retention was faster than we, or the log was made anew."""
        low, high = self._takeover.watermarks(owned.partition)
        if owned.next_offset > high:
            raise StateRefusedError(_made_anew(owned.topic, owned.partition, owned.next_offset, high))
        lost_from = owned.next_offset
        if owned.is_restoring or low <= lost_from:
            raise RestartError(f"offset {lost_from} of {owned.topic}[{owned.partition}] can't be read")
        say_lost("retention removed what had not been read", self._metrics, owned.place(), lost_from, low)
        owned.lose(low)
        try:
            self._read_on(owned)
        except KafkaException as error:
            raise RestartError(f"reading on from offset {low} failed: {error.args[0].str()}") from None

    def _read_on(self, owned: Owned) -> None:
        """Reads a partition from our next offset; the client won't seek in one whose own isn't in the log."""
        places = [owned.place()]
        if self._settings.assignment == "cooperative":
            self._consumer.incremental_unassign(places)
        else:
            places = [one.place() for one in self._owned.values()]
        self._assign(self._consumer, places)

    def _assign(self, consumer: Consumer, places: list[TopicPartition]) -> None:
        if self._settings.assignment == "cooperative":
            consumer.incremental_assign(places)
        else:
            consumer.assign(places)
        if places and self._commits.are_failing:
            consumer.pause(places)

    def _tick(self, now: float) -> None:
        if self._health.is_broker_away or not self._has_joined:
            self._look_for_broker(now)
        else:
            self._answered_at = now
        self._look_at_topic(now)
        self._look_for_silence()
        for owned in list(self._owned.values()):
            if owned.is_restoring:
                if now - owned.began_at > RESTORE_STALL_SECONDS and owned.next_offset < owned.committed:
                    self._look_at_stalled(owned)
            elif owned.is_caught_up and not owned.lost_windows and not self._commits.are_failing:
                due = owned.timers.due(owned.fold, now, self._unix_ms())
                if due:
                    self._commits.write_timeouts(owned, due)
        self._look_for_split_runs()
        self._look_for_standstills(now)
        self._say_flood()
        self._measure()

    def _look_for_broker(self, now: float) -> None:
        # The answer comes after that of a fetch under way, which the broker may hold for half a second.
        if self._consumer_finds_broker():
            self._answered_at = now
            self._say_broker_back()
        elif now - self._answered_at > FORGOTTEN_SECONDS:
            self._answered_at = now  # a new client takes its time, so not at each tick
            if broker_answers(self._settings.client_config()) and not self._consumer_finds_broker():
                raise RestartError("the consumer doesn't find the broker any more")

    def _look_for_silence(self) -> None:
        """Who is idle notices a broker that is silent without hanging up by asking: the client waits for a minute."""
        if self._input_topic.silent_looks < SILENT_LOOKS or self._health.is_broker_away:
            return
        if self._consumer_finds_broker():
            self._input_topic.begin_anew()
        else:
            self._say_broker_away(KafkaError(KafkaError._TIMED_OUT, "no answer"))

    def _consumer_finds_broker(self) -> bool:
        try:
            self._consumer.list_topics(self._settings.input_topic, timeout=CALL_SECONDS)
        except KafkaException:
            return False
        return True

    def _look_at_stalled(self, owned: Owned) -> None:
        """A log that ends before what was committed from it isn't the log it was."""
        _, high = self._takeover.watermarks(owned.partition)
        if high < owned.committed:
            raise StateRefusedError(_made_anew(owned.topic, owned.partition, owned.committed, high))

    def _look_at_topic(self, now: float) -> None:
        """A topic made anew under us is another log, even where it goes on beyond our offsets."""
        topic_id = self._input_topic.look(now)
        for owned in self._owned.values():
            if topic_id and owned.topic_id and topic_id != owned.topic_id:
                if owned.next_offset:
                    raise StateRefusedError(made_anew(owned.topic, topic_id, owned.topic_id, owned.next_offset))
                owned.topic_id = topic_id  # nothing had been read of it

    def _look_for_split_runs(self) -> None:
        if len(self._owned) < 2:
            return
        seen: dict[tuple[str, str], int] = {}
        for owned in self._owned.values():
            for run in owned.fold.runs():
                other = seen.setdefault(run, owned.partition)
                if other != owned.partition and run not in self._split_runs:
                    self._split_runs.add(run)
                    self._metrics.split_runs.inc()
                    logs.error(
                        "a run is on two partitions: its steps come out in parts; key all its events by run_id, with "
                        "the same partitioner, and don't add partitions while it runs",
                        run_id=run[0],
                        scope=run[1],
                        partitions=f"{other},{owned.partition}",
                    )

    def _look_for_standstills(self, now: float) -> None:
        can_read = not self._commits.are_failing and not self._health.is_broker_away
        for owned in self._owned.values():
            waiting = self._lag(owned) if can_read and owned.is_caught_up else 0
            stands = owned.standstill.look(owned.next_offset, waiting, now)
            if stands:
                logs.warning(
                    "a producer's transaction is open: nothing from this offset on can be read until it ends",
                    partition=owned.partition,
                    offset=owned.next_offset,
                    waiting=waiting,
                )
            elif stands is False:
                logs.info("a partition is read on: the transaction has ended", partition=owned.partition)

    def _say_flood(self) -> None:
        share = self._health.flood()
        if share is not None and not self._is_flood_said:
            logs.error(
                "most of what comes in can't be used: see the dead-letter topic",
                share=round(share, 3),
                limit=self._settings.dead_letter_limit,
                topic=self._settings.dead_letter_topic,
            )
        elif share is None and self._is_flood_said:
            logs.info("the flood of dead letters is over")
        self._is_flood_said = share is not None

    def _measure(self) -> None:
        metrics, owned = self._metrics, list(self._owned.values())
        open_windows = [window for one in owned for window in one.fold.open_windows()]
        if self._show_open is not None:
            self._show_open(open_windows)
        metrics.partitions.set(len(owned))
        metrics.open_windows.set(len(open_windows))
        metrics.windows.set(sum(len(list(one.fold.windows())) for one in owned))
        metrics.held_samples.set(sum(one.fold.held_samples for one in owned))
        metrics.replay_distance.set(
            sum(one.next_offset - one.fold.replay_from(one.next_offset) for one in owned if not one.is_restoring)
        )
        opened = [window.opened_unix_ms for window in open_windows if window.opened_unix_ms is not None]
        metrics.oldest_open_seconds.set(max(0.0, (self._unix_ms() - min(opened)) / 1000) if opened else 0.0)
        ask_until = self._monotonic() + CALL_SECONDS
        metrics.lag.set(sum(self._lag(one, ask_until) for one in owned))
        self._health.not_ready = self._why_not_ready(owned)

    def _lag(self, owned: Owned, ask_until: float = 0.0) -> int:
        """Returns how far the log goes beyond what has been read, 0 where that can't be known."""
        at, high = owned.place(), 0
        with suppress(KafkaException):
            _, high = self._consumer.get_watermark_offsets(at, cached=True)
            # A paused partition fetches nothing, so the client hears of no newer end.
            is_paused = self._commits.are_failing and not self._health.is_broker_away
            if is_paused and self._monotonic() < ask_until:
                _, high = self._consumer.get_watermark_offsets(at, timeout=POLL_SECONDS)
        return max(0, high - owned.next_offset)

    def _why_not_ready(self, owned: list[Owned]) -> str:
        if self._commits.are_failing:
            return "transactions fail"
        restoring = sum(one.is_restoring for one in owned)
        if restoring:
            return f"{restoring} partitions are being restored"
        if not self._has_joined:
            return self._missing or "joining the group"
        return ""

    # --- rebalances: callbacks, which never raise ----------------------------------------------------------------

    def _on_assign(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        try:
            self._metrics.rebalances.labels("assigned").inc()
            self._member_id = consumer.memberid() or ""
            self._assign(consumer, self._take_over(partitions) if partitions else [])
            self._has_joined, self._missing = True, ""
        except BaseException as error:
            self._keep_failure(error)

    def _on_revoke(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        try:
            self._metrics.rebalances.labels("revoked").inc()
            leaving = [self._owned[one.partition] for one in partitions if one.partition in self._owned]
            try:
                # So that the next owner starts from here. Where it fails, it starts from the last commit: as exact.
                if not self._commits.are_failing and self._failure is None:
                    self._commits.commit(leaving)
            finally:
                self._drop(consumer, partitions, "revoked")
        except BaseException as error:
            self._keep_failure(error)

    def _on_lost(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        try:
            self._metrics.rebalances.labels("lost").inc()
            self._has_joined = False
            self._drop(consumer, partitions, "lost")
            self._raise_unless_free_to_join()
        except BaseException as error:
            self._keep_failure(error)
        if isinstance(self._failure, RestartError):
            # Before this callback ends, or the client joins again by itself. It fails where the client knows already.
            with suppress(KafkaException):
                consumer.unsubscribe()

    def _raise_unless_free_to_join(self) -> None:
        """Asks the group once; what takes longer isn't for a callback.

        Raises:
            RestartError: Another member has our instance id, or the group doesn't say.
        """
        instance_id = self._settings.instance_id
        if instance_id is None or self._consumer is None:  # it leaves
            return
        with suppress(KafkaException):
            holder = member_with(self._settings, instance_id)
            if holder is None or self._is_me(holder):
                return
        raise RestartError(FENCED_MEMBER, is_replaced_perhaps=True)

    def _drop(self, consumer: Consumer, partitions: list[TopicPartition], how: str) -> None:
        if self._commits.are_failing:
            # The client keeps a partition's pause beyond its loss: given to us again it would stand still for good.
            consumer.resume(partitions)
        dropped = [one.partition for one in partitions if self._owned.pop(one.partition, None) is not None]
        if dropped:
            logs.info(f"partitions {how}", partitions=",".join(map(str, sorted(dropped))))

    def _on_error(self, error: KafkaError) -> None:
        try:
            if error.code() == KafkaError._ALL_BROKERS_DOWN:
                self._say_broker_away(error)
            elif meaning(error) is Meaning.REFUSED:
                self._keep_failure(refused(error, "talking to the broker"))
        except BaseException as failure:
            self._keep_failure(failure)

    def _on_producer_error(self, error: KafkaError) -> None:
        try:
            # Between transactions the broker may well hang up: nothing is asked of it.
            if error.code() == KafkaError._ALL_BROKERS_DOWN and self._health.is_committing:
                self._say_broker_away(error)
        except BaseException as failure:
            self._keep_failure(failure)

    def _say_broker_away(self, error: KafkaError) -> None:
        if not self._health.is_broker_away:
            self._health.is_broker_away = True  # at once: the next tick may have to wait for a transaction
            logs.warning("no broker answers; waiting for one", error=error.str())

    def _say_broker_back(self) -> None:
        if self._health.is_broker_away:
            self._health.is_broker_away = False
            logs.info("the broker answers again")

    def _keep_failure(self, error: BaseException) -> None:
        if self._failure is None:
            self._failure = error

    def _raise_failure(self) -> None:
        failure, self._failure = self._failure, None
        if failure is None:
            return
        if isinstance(failure, KafkaException):
            error: KafkaError = failure.args[0]
            if meaning(error) is Meaning.REFUSED:
                raise refused(error, self._as_a_member())
            raise RestartError(f"a rebalance failed: {error.str()}")
        raise failure

    def _take_over(self, partitions: list[TopicPartition]) -> list[TopicPartition]:
        """Makes the partitions ours and returns where to read each of them from."""
        if self._settings.assignment == "eager":
            self._owned.clear()
        taken = self._takeover.take(partitions)
        self._owned.update((owned.partition, owned) for owned in taken)
        logs.info("partitions assigned", partitions=",".join(f"{one.partition}@{one.next_offset}" for one in taken))
        return [one.place() for one in taken]

    def _say_restored(self, owned: Owned) -> None:
        seconds = self._monotonic() - owned.began_at
        self._metrics.restores.inc()
        self._metrics.restore_seconds.observe(seconds)
        logs.info(
            "partition restored",
            partition=owned.partition,
            replayed=owned.replayed,
            windows=len(list(owned.fold.windows())),
            samples=owned.fold.held_samples,
            seconds=round(seconds, 3),
        )


def _by_partition(messages: list[Message]) -> Mapping[int, list[Record]]:
    # A message without error is a Record: the stubs say Optional of what is then always there. Casting each would take
    # as long as all else here.
    records = cast(list[Record], messages)
    partitions = cast(list[int], [message.partition() for message in messages])
    if messages and partitions.count(partitions[0]) == len(partitions):
        return {partitions[0]: records}
    made: defaultdict[int, list[Record]] = defaultdict(list)
    for partition, record in zip(partitions, records, strict=True):
        made[partition].append(record)
    return made


def _close_quietly(consumer: Consumer) -> None:
    try:
        consumer.close()
    except Exception as error:
        logs.debug("closing the consumer", error=str(error))


def _made_anew(topic: str, partition: int, wanted: int, high: int) -> str:
    return (
        f"{topic}[{partition}] ends at {high}, before offset {wanted} that was committed from it: the topic was made "
        "anew or cut at its end. Use another --group-id to fold what is there now"
    )
