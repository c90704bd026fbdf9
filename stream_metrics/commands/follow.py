"""`stream-metrics follow`: sends the step files that verl or prime-rl writes, as they are written."""

from __future__ import annotations

import signal
import sys
import threading
from pathlib import Path
from typing import Any, Final

from stream_metrics.config import Problem, Settings, SettingsError
from stream_metrics.exit_codes import ExitCode
from stream_metrics.producers import RolloutProducer
from stream_metrics.producers.follow import LAYOUTS, Follower
from stream_metrics.producers.follow_stream import StreamFollower

STREAM: Final = "prime-rl"
"""The layout that is no file a step."""

_LOOK_SECONDS: Final = 1.0


def main(
    settings: Settings,
    directory: str,
    layout: str,
    run_id: str,
    *,
    scope: str | None = None,
    attempt: int | None = None,
    state: str | None = None,
    settle_seconds: float = 5.0,
    is_once: bool = False,
) -> int:
    """Follows the directory until SIGTERM or SIGINT, or with `is_once` sends what is there and ends.

    Args:
        settings: Where to.
        directory: What the trainer writes to.
        layout: `verl`, `prime-rl`, or `prime-rl-steps` for what prime-rl wrote before.
        run_id: The run.
        scope: Prefix of the metrics' keys; None is `rollout`.
        attempt: The trainer's try; None goes on with the remembered one, else takes the time.
        state: The file that remembers what is sent; None is one in the directory.
        settle_seconds: How long a file must rest to be whole.
        is_once: Take all that is there for whole.

    Raises:
        SettingsError: The layout is unknown, or the client refuses its settings.
    """
    known = (STREAM, *LAYOUTS)
    if layout not in known:
        raise SettingsError([Problem("--layout", f"must be one of {', '.join(known)}, not {layout!r}")])

    def make_producer(attempt: int) -> RolloutProducer:
        return RolloutProducer(
            settings.bootstrap_servers,
            settings.input_topic,
            run_id=run_id,
            attempt=attempt,
            client_config=settings.kafka_config,
            spool_directory="",  # the files themselves keep what isn't sent
            budget_seconds=60.0,
            close_seconds=30.0,
        )

    try:
        how: dict[str, Any] = {
            "attempt": attempt,
            "scope": scope,
            "state": None if state is None else Path(state),
            "settle_seconds": 0.0 if is_once else settle_seconds,
        }
        follower: Follower | StreamFollower
        if layout == STREAM:
            follower = StreamFollower(Path(directory), make_producer, **how)
        else:
            follower = Follower(Path(directory), LAYOUTS[layout](), make_producer, **how)
    except ValueError as error:
        raise SettingsError([Problem("follow", str(error))]) from None
    stop = threading.Event()
    previous = [(kind, signal.signal(kind, lambda *_: stop.set())) for kind in (signal.SIGTERM, signal.SIGINT)]
    try:
        while not stop.is_set():
            is_new = follower.look()
            if is_once and not is_new:
                break
            # What is new may be only a part: a full queue pauses the reading.
            stop.wait(0.01 if is_new else _LOOK_SECONDS)
        is_done = follower.close()
    finally:
        for kind, handler in previous:
            signal.signal(kind, handler)
    samples, closes = follower.sent()
    print(f"follow: {samples} samples and {closes} closes sent", file=sys.stderr)
    return ExitCode.OK if is_done else ExitCode.KAFKA_REFUSED
