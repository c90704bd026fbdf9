"""`stream-metrics demo`: a simulated run from its first sample to a plot, with the real sidecar in between.

Embedded broker (or one that is given) → simulated trainer → `stream-metrics run` as a process of its own → a reader of
the output topic, which shows each step as it closes. What is shown is compared with a direct computation.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import itertools
import logging
import math
import signal
import sys
import threading
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from stream_metrics.config import Settings, load
from stream_metrics.demo.embedded import EmbeddedBroker
from stream_metrics.demo.results import ResultsReader
from stream_metrics.demo.sidecar_process import SidecarProcess
from stream_metrics.demo.simulation import (
    GROUPS,
    ROLLOUTS_PER_GROUP,
    STEPS,
    SimulatedStep,
    direct_rewards,
    simulate_step,
)
from stream_metrics.demo.trainer import play
from stream_metrics.exit_codes import ExitCode
from stream_metrics.producers import EmitError, RolloutProducer

if TYPE_CHECKING:
    from stream_metrics.demo.view import Row, View

STEP_SECONDS: Final = 0.6
FAST_STEP_SECONDS: Final = 0.06
PRODUCE_STEP_SECONDS: Final = 2.0
_START_SECONDS: Final = 60.0
_LAST_RESULT_SECONDS: Final = 15.0
_ANSWER_SECONDS: Final = 5.0
_TOLERANCE: Final = 1e-12
_FORMATS: Final = (".png", ".svg", ".pdf")
_PAGE_PORT: Final = 8080

_MOCK: Final = (
    "Broker: librdkafka's mock cluster at {address}, embedded in this process. It is for show only: it keeps no "
    "transactional offsets and shows aborted messages. --bootstrap-servers HOST:PORT takes a real one."
)
_MISSING: Final = (
    "demo: needs {missing}: install the extra with `pip install 'stream-metrics[demo]'`, or use `make demo`. "
    "--produce-only does without."
)


class _DemoError(Exception):
    """The demo can't go on; the message says why, and the exit code goes with it."""

    def __init__(self, message: str, exit_code: ExitCode) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def main(arguments: Sequence[str]) -> int:
    """Runs the demo and returns the exit code.

    Args:
        arguments: What follows `demo`.

    Raises:
        SystemExit: For help, and usage that argparse refuses (code 2).
        SettingsError: An address or a client property is wrong.
    """
    given = _parser().parse_args(arguments)
    settings = _settings(given)
    steps = given.steps if given.steps is not None else None if given.produce_only else STEPS
    seconds = FAST_STEP_SECONDS if given.fast else PRODUCE_STEP_SECONDS if given.produce_only else STEP_SECONDS
    # What the producer has to say of a broker that is away; without a handler Python would print it bare.
    logging.basicConfig(level=logging.WARNING, format="demo: %(message)s")
    with _terminated_as_interrupted():
        try:
            if given.produce_only:
                return _produce_only(settings, given.seed, steps, seconds)
            return _Demo(settings, given, steps or STEPS, seconds).run()
        except _DemoError as error:
            _complain(str(error))
            return error.exit_code
        except KafkaException as error:
            _complain(error.args[0].str())
            return ExitCode.KAFKA_REFUSED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="stream-metrics demo",
        description="Watch a simulated agentic RL run whose long sessions are compacted into several training samples: "
        "each step's mean over samples beside its mean over rollouts, as the real sidecar publishes them. Without "
        "--bootstrap-servers an embedded broker serves (librdkafka's mock, for show only). Ends by itself after about "
        "half a minute and saves a plot.",
        allow_abbrev=False,
    )
    parser.add_argument("--steps", type=_positive, metavar="N", help=f"steps to play (default: {STEPS})")
    parser.add_argument("--seed", type=int, default=4, metavar="N", help="names the simulated run (default: 4)")
    parser.add_argument("--fast", action="store_true", help="play as fast as it can still be seen")
    parser.add_argument(
        "--output",
        type=Path,
        default=Path("stream-metrics-demo.png"),
        metavar="FILE",
        help="where the plot goes (default: stream-metrics-demo.png in the current directory)",
    )
    parser.add_argument(
        "--page",
        type=_port,
        nargs="?",
        const=_PAGE_PORT,
        metavar="PORT",
        help=f"serve the live page too, and stay until Ctrl-C (default port: {_PAGE_PORT})",
    )
    real = parser.add_argument_group("on a real broker")
    real.add_argument("--bootstrap-servers", metavar="HOST:PORT,...", help="brokers to start from")
    real.add_argument(
        "--kafka-config", action="append", metavar="NAME=VALUE", help="a property of the Kafka client; repeatable"
    )
    real.add_argument(
        "--keep-topics", action="store_true", help="leave the demo's own topics there; otherwise they are deleted"
    )
    produce = parser.add_argument_group("as a producer alone")
    produce.add_argument(
        "--produce-only",
        action="store_true",
        help="only send samples, to the topic of a sidecar that runs elsewhere; without --steps, until it is stopped",
    )
    produce.add_argument(
        "--input-topic", metavar="NAME", help="the sidecar's input topic (default: rollout-samples); is waited for"
    )
    return parser


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return number


def _port(text: str) -> int:
    number = int(text)
    if not 1 <= number <= 65_535:
        raise argparse.ArgumentTypeError("must be a port, 1 to 65535")
    return number


def _settings(given: argparse.Namespace) -> Settings:
    if given.produce_only and given.page is not None:
        _usage("--page is the sidecar's, which runs elsewhere with --produce-only")
    if given.produce_only and given.bootstrap_servers is None:
        _usage("--produce-only needs --bootstrap-servers")
    if given.input_topic is not None and not given.produce_only:
        _usage("--input-topic goes with --produce-only; the demo makes topics of its own")
    if given.bootstrap_servers is None and (given.kafka_config or given.keep_topics):
        _usage("--kafka-config and --keep-topics go with --bootstrap-servers")
    flags = {
        "bootstrap-servers": given.bootstrap_servers,
        "kafka-config": given.kafka_config,
        "input-topic": given.input_topic,
    }
    return load(flags, {})


def _usage(message: str) -> None:
    _parser().error(message)


def _complain(message: str) -> None:
    print(f"demo: {message}", file=sys.stderr)


@contextlib.contextmanager
def _terminated_as_interrupted() -> Iterator[None]:
    """Makes SIGTERM do what Ctrl-C does, where signals can be had."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _steps(seed: int, number: int | None) -> Iterator[SimulatedStep]:
    return (simulate_step(seed, step) for step in (itertools.count() if number is None else range(number)))


# --- as a producer alone -----------------------------------------------------------------------------------------


def _produce_only(settings: Settings, seed: int, steps: int | None, step_seconds: float) -> int:
    run_id = f"demo-{uuid.uuid4().hex[:8]}"
    try:
        _wait_for_topic(settings)
        with _producer(settings, run_id, settings.input_topic, raise_errors=False) as producer:
            play(producer, _told(run_id, _steps(seed, steps)), step_seconds, threading.Event())
            producer.flush(_LAST_RESULT_SECONDS)
            counts = producer.counts
    except KeyboardInterrupt:
        print("demo: stopped", flush=True)
        return ExitCode.OK
    is_all_there = counts.acknowledged == counts.emitted
    print(f"demo: {counts.acknowledged} of {counts.emitted} samples acknowledged", flush=True)
    return ExitCode.OK if is_all_there else ExitCode.KAFKA_REFUSED


def _told(run_id: str, steps: Iterator[SimulatedStep]) -> Iterator[SimulatedStep]:
    """Yields the steps, and says of each when the next is asked for."""
    for step in steps:
        yield step
        print(f"demo: run {run_id}: step {step.step} closed after {len(step.samples)} samples", flush=True)


def _wait_for_topic(settings: Settings) -> None:
    admin = AdminClient({"log_level": 0, **settings.client_config()})
    said = ""
    while True:
        try:
            # All topics: asking for one by name makes it on brokers that create topics by themselves.
            if settings.input_topic in admin.list_topics(timeout=_ANSWER_SECONDS).topics:
                return
            why = f"topic {settings.input_topic}, which the sidecar makes with --create-topics"
        except KafkaException as error:
            why = f"the broker at {settings.bootstrap_servers} ({error.args[0].str()})"
        if why != said:
            print(f"demo: waiting for {why}", flush=True)
            said = why
        time.sleep(0.5)


def _producer(settings: Settings, run_id: str, topic: str, *, raise_errors: bool) -> RolloutProducer:
    return RolloutProducer(
        settings.bootstrap_servers,
        topic,
        run_id=run_id,
        attempt=0,
        raise_errors=raise_errors,
        spool_directory="",
        client_config=settings.kafka_config,
    )


# --- the whole demo ----------------------------------------------------------------------------------------------


class _Demo:
    """One demo, from broker to plot."""

    def __init__(self, settings: Settings, given: argparse.Namespace, steps: int, step_seconds: float) -> None:
        missing = [name for name in ("rich", "matplotlib") if importlib.util.find_spec(name) is None]
        if missing:
            raise _DemoError(_MISSING.format(missing=" and ".join(missing)), ExitCode.WRONG_SETTINGS)
        self._output: Path = given.output
        if not self._output.absolute().parent.is_dir():
            raise _DemoError(f"--output: there is no folder {self._output.parent}", ExitCode.WRONG_SETTINGS)
        if self._output.suffix not in _FORMATS:
            raise _DemoError(f"--output: the name must end in {', '.join(_FORMATS)}", ExitCode.WRONG_SETTINGS)
        self._settings = settings
        self._keep_topics: bool = given.keep_topics
        self._page_port: int | None = given.page
        self._seed: int = given.seed
        self._num_steps = steps
        self._step_seconds = step_seconds
        self._embedded = None if given.bootstrap_servers else EmbeddedBroker()
        if self._embedded is not None:
            self._settings = load({"bootstrap-servers": self._embedded.bootstrap_servers}, {})
        self._run_id = f"demo-{uuid.uuid4().hex[:8]}"
        self._input, self._results, self._dead_letters = (
            f"{self._run_id}-{name}" for name in ("rollout-samples", "rollout-metrics", "rollout-dead-letters")
        )
        self._stopping = threading.Event()
        self._is_sent = threading.Event()
        self._trouble: list[str] = []
        self._sending = ""
        self._sent: dict[int, SimulatedStep] = {}
        self._rows: list[Row] = []

    def run(self) -> int:
        """Plays, shows, compares, plots; returns the exit code."""
        from stream_metrics.demo.view import View

        view = View(sys.stdout)
        try:
            with contextlib.ExitStack() as stack:
                if self._embedded is not None:
                    stack.callback(self._embedded.close)
                self._introduce(view)
                if self._embedded is None:
                    stack.callback(self._remove_topics)
                sidecar = self._play(view, stack)
                if self._page_port is not None:
                    return self._stay(view, sidecar)
        except KeyboardInterrupt:
            closed = len({row.step for row in self._rows})
            view.say(f"Interrupted after {closed} of {self._num_steps} steps; sidecar and broker are stopped.")
            return ExitCode.OK
        return self._conclude(view)

    def _introduce(self, view: View) -> None:
        if self._embedded is not None:
            view.say(_MOCK.format(address=self._settings.bootstrap_servers), style="dim")
            self._embedded.make_topics((self._input, self._results, self._dead_letters))
        else:
            admin = AdminClient({"log_level": 0, **self._settings.client_config()})
            try:
                admin.list_topics(timeout=_ANSWER_SECONDS)
            except KafkaException as error:
                address = self._settings.bootstrap_servers
                message = f"no answer from the broker at {address}: {error.args[0].str()}"
                raise _DemoError(message, ExitCode.KAFKA_REFUSED) from None
            fate = "kept" if self._keep_topics else "deleted at the end"
            view.say(
                f"Broker: {self._settings.bootstrap_servers}. Topics: {self._input}, {self._results}, "
                f"{self._dead_letters} ({fate}).",
                style="dim",
            )
        view.say(
            f"Run {self._run_id}: {self._num_steps} steps of {GROUPS} prompts × {ROLLOUTS_PER_GROUP} rollouts. Each "
            "compaction of a long session makes one more training sample of its rollout.\n"
            "Reward by sample is rollout/raw_reward, the sample-weighted mean; by rollout rollout/episode_raw_reward. "
            "The gap between them is the error of the first.\n"
        )
        if self._page_port is not None:
            view.say(f"Live page: {self._page()}\n", style="bold")

    def _play(self, view: View, stack: contextlib.ExitStack) -> SidecarProcess:
        """Shows all steps, and returns the sidecar, which the stack stops."""
        with contextlib.ExitStack() as playing:
            # Entered first and so left last: what is stopped may still say something.
            playing.enter_context(view)
            view.status("starting the sidecar …")
            sidecar = SidecarProcess(self._sidecar_arguments(), on_embedded_broker=self._embedded is not None)
            stack.callback(sidecar.stop)
            self._wait_for(sidecar)
            reader = ResultsReader(self._settings.client_config(), self._results, self._run_id)
            playing.callback(reader.close)
            trainer = threading.Thread(target=self._train, name="trainer", daemon=True)
            playing.callback(trainer.join, _ANSWER_SECONDS)
            playing.callback(self._stopping.set)
            trainer.start()
            self._watch(view, sidecar, reader)
        return sidecar

    def _page(self) -> str:
        return f"http://127.0.0.1:{self._page_port}/#run={self._run_id}&scope=rollout"

    def _stay(self, view: View, sidecar: SidecarProcess) -> int:
        """Concludes, and leaves the page there until Ctrl-C, which the sidecar gets too."""
        code = self._conclude(view)
        view.say(f"\nThe page stays until Ctrl-C: {self._page()}", style="bold")
        with contextlib.suppress(KeyboardInterrupt):
            while sidecar.exit_code is None:
                time.sleep(0.1)
        return code

    def _sidecar_arguments(self) -> list[str]:
        arguments = {
            "--bootstrap-servers": self._settings.bootstrap_servers,
            "--input-topic": self._input,
            "--output-topic": self._results,
            "--dead-letter-topic": self._dead_letters,
            "--group-id": self._run_id,
            "--input-partitions": "1",
            "--commit-interval": "0.1",  # a correction goes out with the next commit: here it should be seen at once
        }
        if self._page_port is not None:
            arguments["--http-port"] = str(self._page_port)
        listed = [text for pair in arguments.items() for text in pair]
        for name, value in self._settings.kafka_config.items():
            listed += ["--kafka-config", f"{name}={value}"]
        return listed if self._embedded is not None else [*listed, "--create-topics"]

    def _wait_for(self, sidecar: SidecarProcess) -> None:
        deadline = time.monotonic() + _START_SECONDS
        while not sidecar.is_ready:
            if sidecar.exit_code is not None or time.monotonic() > deadline:
                raise _stopped(sidecar, "the sidecar didn't start")
            time.sleep(0.05)

    def _train(self) -> None:
        """The trainer's thread."""

        def progress(step: SimulatedStep, sent: int) -> None:
            self._sent[step.step] = step
            self._sending = f"step {step.step} is rolled out: {sent} of {len(step.samples)} samples sent"

        try:
            with _producer(self._settings, self._run_id, self._input, raise_errors=True) as producer:
                play(producer, _steps(self._seed, self._num_steps), self._step_seconds, self._stopping, progress)
                producer.flush(_ANSWER_SECONDS)
        except (EmitError, KafkaException) as error:
            self._trouble.append(f"the producer failed: {error}")
        self._is_sent.set()

    def _watch(self, view: View, sidecar: SidecarProcess, reader: ResultsReader) -> None:
        from stream_metrics.demo.view import row_of

        deadline: float | None = None
        while True:
            if deadline is None and self._is_sent.is_set():
                deadline = time.monotonic() + _LAST_RESULT_SECONDS
            result = reader.poll(0.05)
            if result is not None:
                row = row_of(result)
                self._rows.append(row)
                view.add(row)
            elif sidecar.exit_code == ExitCode.OK:
                # It ends so on a signal only. Ctrl-C goes to both of us, and ours can be lost in a client's call.
                raise KeyboardInterrupt
            elif sidecar.exit_code is not None:
                raise _stopped(sidecar, "the sidecar ended")
            elif deadline is not None:
                view.status("waiting for the last results …")
                if not self._missing() or time.monotonic() > deadline:
                    return
            else:
                view.status(self._sending)

    def _final(self) -> dict[int, Row]:
        return {row.step: row for row in self._rows}

    def _missing(self) -> list[int]:
        """Returns the steps whose last result doesn't have all samples yet."""
        final = self._final()
        return [
            number
            for number in range(self._num_steps)
            if number not in final or final[number].samples < self._num_sent(number)
        ]

    def _num_sent(self, number: int) -> int:
        step = self._sent.get(number)
        return 0 if step is None else len(self._fields(step))

    def _fields(self, step: SimulatedStep) -> list[Mapping[str, Any]]:
        """Returns the samples of a step that were sent; what the last step has late has no step after it to come in."""
        is_last = step.step == self._num_steps - 1
        return [one.fields for one in step.samples] if is_last else list(step.all_fields)

    def _wrong(self) -> list[int]:
        """Returns the steps whose last result differs from the direct computation."""
        final = self._final()
        wrong = []
        for number, row in final.items():
            fields = self._fields(self._sent[number])
            by_sample, by_rollout = direct_rewards(fields)
            is_right = (
                row.samples == len(fields)
                and row.by_sample is not None
                and math.isclose(row.by_sample, by_sample, rel_tol=0, abs_tol=_TOLERANCE)
                and math.isclose(row.by_rollout, by_rollout, rel_tol=0, abs_tol=_TOLERANCE)
            )
            if not is_right:
                wrong.append(number)
        return wrong

    def _conclude(self, view: View) -> int:
        missing, wrong = self._missing(), self._wrong()
        final = self._final()
        if missing or self._trouble:
            view.say("")
            for trouble in self._trouble:
                _complain(trouble)
            if missing:
                _complain(f"no full result came for the steps {', '.join(map(str, missing))}")
            return ExitCode.INTERNAL_ERROR
        rows = [final[number] for number in sorted(final)]
        corrected = _counted(sum(row.is_correction for row in self._rows), "correction")
        verdict = (
            f"NOT equal to a direct computation from the samples sent: steps {', '.join(map(str, wrong))}"
            if wrong
            else "all equal to a direct computation from the samples sent"
        )
        view.say(
            f"\n{_counted(len(rows), 'step')} closed, {sum(row.samples for row in rows)} training samples of "
            f"{sum(row.rollouts for row in rows)} rollouts, {corrected} for late samples; {verdict}.\n"
            f"{_explanation(rows)}",
            style="red" if wrong else "bold",
        )
        self._plot(view)
        return ExitCode.INTERNAL_ERROR if wrong else ExitCode.OK

    def _plot(self, view: View) -> None:
        from stream_metrics.demo.plot import save_plot

        path = self._output.absolute()
        try:
            save_plot(self._rows, path, "Reward of a simulated agentic run with session compaction")
        except OSError as error:
            raise _DemoError(f"the plot can't be saved: {error}", ExitCode.WRONG_SETTINGS) from None
        view.say(f"\nPlot: {path}")

    def _remove_topics(self) -> None:
        if self._keep_topics:
            return
        admin = AdminClient({"log_level": 0, **self._settings.client_config()})
        topics = [self._input, self._results, self._dead_letters]
        removed: list[Any] = list(admin.delete_topics(topics, request_timeout=_ANSWER_SECONDS).values())
        removed += admin.delete_consumer_groups([self._run_id], request_timeout=_ANSWER_SECONDS).values()
        for future in removed:
            with contextlib.suppress(KafkaException):  # what wasn't made can't be deleted
                future.result(_ANSWER_SECONDS)


def _stopped(sidecar: SidecarProcess, what: str) -> _DemoError:
    code = sidecar.exit_code
    said = sidecar.complaints()
    lines = [what if code is None else f"{what} (exit code {code})", *said[-5:]]
    is_known = code is not None and code in set(ExitCode) and code != ExitCode.OK
    return _DemoError("\n  ".join(lines), ExitCode(code) if is_known and code else ExitCode.INTERNAL_ERROR)


def _explanation(rows: Sequence[Row]) -> str:
    """Returns what was seen, in one sentence."""
    first, last = rows[0], rows[-1]
    widest = max(rows, key=lambda row: abs(row.gap))
    return (
        f"A rollout compacted into n samples has n votes in a mean over samples: it went {_shown(first.by_sample)} → "
        f"{_shown(last.by_sample)}, when the rollouts went {first.by_rollout:.2f} → {last.by_rollout:.2f} "
        f"(largest error {widest.gap:+.2f}, step {widest.step})."
    )


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _shown(value: float | None) -> str:
    return "none" if value is None else f"{value:.2f}"
