"""`stream-metrics watch`: the sidecar's live page in a terminal, or as lines where there is none."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import select
import signal
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any, Final

from stream_metrics.exit_codes import ExitCode
from stream_metrics.web import terminal
from stream_metrics.web.client import NoSidecarError, Row, RunKey, Watcher

_DRAW_SECONDS: Final = 0.25
_STEPS: Final = "2000"
"""Closed steps asked for; no terminal shows more."""

_FIRST_LINES: Final = 20
_MAX_SAID: Final = 20_000
_UP: Final = ("\x1b[A", "\x1bOA", "k", "p")
_DOWN: Final = ("\x1b[B", "\x1bOB", "j", "n", "\t")
_END: Final = ("q", "Q", "\x03", "\x04")


def main(url: str, *, run: str | None = None, scope: str | None = None, is_lines: bool = False) -> int:
    """Shows what a sidecar does until it is ended with q, SIGINT or SIGTERM, and returns the exit code.

    Args:
        url: Where the sidecar serves its page.
        run: The run to show; None is the one with the newest result and, as lines, all.
        scope: Its scope; None is `rollout`.
        is_lines: Write lines to a terminal too.
    """
    is_screen = sys.stdin.isatty() and sys.stdout.isatty() and os.environ.get("TERM") != "dumb" and not is_lines
    if is_screen and importlib.util.find_spec("rich") is None:
        print(
            "watch: the screen needs rich: pip install 'stream-metrics[watch]'; --lines does without", file=sys.stderr
        )
        return ExitCode.WRONG_SETTINGS
    changed = threading.Event()
    ended = threading.Event()
    selected = None if run is None else (run, "rollout" if scope is None else scope)
    try:
        watcher = Watcher(url, _now_unix_ms, changed.set)
        with _ended_by_signals(ended, changed):
            if is_screen:
                _Screen(watcher, url, selected, changed, ended).run()
            else:
                _Lines(watcher, url, selected, changed, ended).run()
    except NoSidecarError as error:
        print(f"watch: {error}", file=sys.stderr)
        return ExitCode.WRONG_SETTINGS
    return ExitCode.OK


class _Lines:
    """One line for each step that closes, after the last one of each run."""

    def __init__(
        self, watcher: Watcher, url: str, selected: RunKey | None, changed: threading.Event, ended: threading.Event
    ) -> None:
        self._watcher = watcher
        self._url = url
        self._selected = selected
        self._changed = changed
        self._ended = ended
        self._wholes = 0
        self._said: OrderedDict[Any, Any] = OrderedDict()
        self._letters: list[Row] | None = None
        self._is_lost_said = False
        self._is_plain = not (sys.stdout.encoding or "").lower().replace("-", "").startswith("utf")

    def run(self) -> None:
        if self._selected is None:
            self._watcher.start(all="1")
        else:
            self._watcher.start(run=self._selected[0], scope=self._selected[1], count=str(_FIRST_LINES))
        try:
            while not self._ended.is_set():
                self._changed.wait()
                self._changed.clear()
                self._turn()
        finally:
            self._watcher.stop()

    def _turn(self) -> None:
        watcher = self._watcher
        if watcher.refused is not None:
            raise watcher.refused
        with watcher.lock:
            known, lost, connections = watcher.known, watcher.lost, watcher.connections
            rows, known.fresh = known.fresh, []
            if known.wholes != self._wholes and self._selected is None:
                newest = known.newest_runs()[:_FIRST_LINES]
                rows = [known.runs[key] for key in reversed(newest) if key in known.runs] + rows
            self._wholes = known.wholes
            rows = [row for row in rows if self._is_new(row)]
            lines = [terminal.line(row, known.reasons) for row in rows]
            lines += self._new_letters(known.letters) if known.share is None else []
        if lost and lost != "connecting" and not self._is_lost_said:
            self._say(f"no answer from {self._url} ({lost}); trying again")
            self._is_lost_said = True
        elif not lost and self._is_lost_said:
            self._is_lost_said = False
            self._say("connected again" if connections > 1 else "connected")
        for line in lines:
            print(terminal.plain(line) if self._is_plain else line)
        if lines:
            sys.stdout.flush()

    def _is_new(self, row: Row) -> bool:
        """Returns whether a step hasn't been written so: after a new connection they all come again."""
        key = row["run"], row["scope"], row["step"]
        told = [row[name] for name in ("attempt", "samples", "flags", "late")]
        if self._said.get(key) == told:
            return False
        self._said[key] = told
        if len(self._said) > _MAX_SAID:
            self._said.popitem(last=False)
        return True

    def _new_letters(self, letters: list[Row]) -> list[str]:
        """Returns a line for each dead letter that wasn't there at the last look, or at the first."""
        before, self._letters = self._letters, letters
        return [] if before is None else [terminal.letter_line(one) for one in letters if one not in before]

    def _say(self, text: str) -> None:
        print(f"watch: {terminal.visible(text, 300)}", file=sys.stderr, flush=True)


class _Screen:
    """The whole terminal, drawn anew on changes and once a second."""

    def __init__(
        self, watcher: Watcher, url: str, selected: RunKey | None, changed: threading.Event, ended: threading.Event
    ) -> None:
        self._watcher = watcher
        self._selected = selected
        self._is_chosen = selected is not None
        self._changed = changed
        self._ended = ended
        encoding = (sys.stdout.encoding or "").lower().replace("-", "")
        self._screen = terminal.Screen(url, is_unicode=encoding.startswith("utf"))

    def run(self) -> None:
        from rich.console import Console
        from rich.live import Live

        console = Console(highlight=False, markup=False, emoji=False)
        if self._selected is None:
            self._watcher.start()
        else:
            self._watcher.start(run=self._selected[0], scope=self._selected[1], count=_STEPS)
        drawn_at = 0.0
        try:
            with _keys() as fd, Live(console=console, screen=True, auto_refresh=False) as live:
                while not self._ended.is_set():
                    if self._watcher.refused is not None:
                        raise self._watcher.refused
                    now = time.monotonic()
                    if self._changed.is_set() or now - drawn_at >= 1.0:
                        self._changed.clear()
                        drawn_at = now
                        live.update(self._draw(console.width, console.height), refresh=True)
                    if select.select([fd], [], [], _DRAW_SECONDS)[0]:
                        self._key(os.read(fd, 64).decode("utf-8", "replace"))
        finally:
            self._watcher.stop()

    def _draw(self, width: int, height: int) -> Any:
        with self._watcher.lock:
            known = self._watcher.known
            runs = known.newest_runs()
        if self._selected is None and runs:
            self._select(runs[0])
        with self._watcher.lock:
            now = _now_unix_ms() + known.offset_ms
            return self._screen.draw(known, self._selected, self._watcher.lost, now, width, height)

    def _key(self, key: str) -> None:
        if not key or key in _END:  # nothing to read: the terminal has gone
            self._ended.set()
        elif key in _UP or key in _DOWN:
            with self._watcher.lock:
                runs = self._watcher.known.newest_runs()
            if runs:
                place = runs.index(self._selected) if self._selected in runs else -1
                self._select(runs[(place + (1 if key in _DOWN else -1)) % len(runs)])

    def _select(self, key: RunKey) -> None:
        self._selected = key
        self._watcher.select(key, count=_STEPS)
        self._changed.set()


@contextlib.contextmanager
def _keys() -> Iterator[int]:
    """Gives standard input's descriptor, whose keys come one by one and unseen."""
    import termios
    import tty

    fd = sys.stdin.fileno()
    before = termios.tcgetattr(fd)
    try:
        tty.setcbreak(fd)
        yield fd
    finally:
        termios.tcsetattr(fd, termios.TCSADRAIN, before)


@contextlib.contextmanager
def _ended_by_signals(ended: threading.Event, changed: threading.Event) -> Iterator[None]:
    def end(*_: Any) -> None:
        ended.set()
        changed.set()

    kinds = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [(kind, signal.signal(kind, end)) for kind in kinds]
    try:
        yield
    finally:
        for kind, handler in before:
            signal.signal(kind, handler)


def _now_unix_ms() -> int:
    return int(time.time() * 1000)
