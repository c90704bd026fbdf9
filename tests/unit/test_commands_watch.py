"""`watch` as a process of its own, on a page that the test fills: as lines, and in a terminal."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from stream_metrics import cli
from stream_metrics.exit_codes import ExitCode
from support.page import served
from support.results import result
from support.sidecar_process import plain_environment
from support.waiting import wait_until

SECONDS = 40.0


class Watching:
    """The process, and what it has written so far."""

    def __init__(self, process: subprocess.Popen[bytes], output: int, errors: Any = None) -> None:
        self.process = process
        self.output = b""
        self.errors = b""
        self._threads = [threading.Thread(target=self._read, args=("output", output), daemon=True)]
        if errors is not None:
            self._threads.append(threading.Thread(target=self._read, args=("errors", errors.fileno()), daemon=True))
        for thread in self._threads:
            thread.start()

    def _read(self, name: str, fd: int) -> None:
        try:
            while got := os.read(fd, 65_536):
                setattr(self, name, getattr(self, name) + got)
        except OSError:
            pass  # a terminal whose program has ended

    @property
    def text(self) -> str:
        return self.output.decode("utf-8", "replace")

    def wait_for(self, text: str, *, is_error: bool = False) -> None:
        def found() -> bool:
            assert self.process.poll() is None, (self.text, self.errors)
            return text in (self.errors.decode() if is_error else self.text)

        try:
            wait_until(found, text, SECONDS)
        except AssertionError as error:
            error.add_note(f"{self.text[-3000:]}\n{self.errors!r}")
            raise

    def exit_code(self) -> int:
        code = self.process.wait(SECONDS)
        for thread in self._threads:
            thread.join(SECONDS)
        return code


@contextmanager
def watching(*arguments: str, encoding: str = "utf-8") -> Iterator[Watching]:
    """`watch` with its output in pipes."""
    process = subprocess.Popen(
        [sys.executable, "-m", "stream_metrics", "watch", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**plain_environment(), "PYTHONIOENCODING": encoding},
    )
    assert process.stdout is not None
    try:
        yield Watching(process, process.stdout.fileno(), process.stderr)
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
        process.stderr.close()  # type: ignore[union-attr]


@contextmanager
def in_terminal(*arguments: str) -> Iterator[tuple[Watching, int]]:
    """`watch` in a terminal of 100 columns and 40 lines, and where to type."""
    ours, its = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "stream_metrics", "watch", *arguments],
        stdin=its,
        stdout=its,
        stderr=its,
        start_new_session=True,
        env={**plain_environment(), "TERM": "xterm-256color", "COLUMNS": "100", "LINES": "40", "PYTHONUTF8": "1"},
    )
    os.close(its)
    try:
        yield Watching(process, ours), ours
    finally:
        process.kill()
        process.wait()
        os.close(ours)


def test_as_lines_it_writes_the_last_step_of_each_run_and_each_step_that_closes_then() -> None:
    with served() as page:
        page.board.take_results(
            [result(1, run="a"), result(2, run="a"), result(7, run="b", scope="eval", closed_unix_ms=10**12 * 2)]
        )
        with watching(page.url) as shown:
            shown.wait_for("b eval  step 7")
            page.board.take_results(
                [result(3, run="a", correction=True, late_samples=2, complete=False, reason="timeout")]
            )
            shown.wait_for("step 3")
            shown.process.send_signal(signal.SIGINT)
            assert shown.exit_code() == ExitCode.OK
        lines = [line.split("  ", 1)[1] for line in shown.text.splitlines()]
        numbers = "4 samples  2 rollouts  by rollout 0.500  by sample 0.750  gap +0.250"
        assert lines == [
            f"a  step 2  {numbers}",
            f"b eval  step 7  {numbers}",
            f"a  step 3  {numbers}  ▲ incomplete: timeout, ◆ corrected, 2 late",
        ]
        assert shown.errors == b""


def test_of_one_run_it_writes_its_steps_alone() -> None:
    with served() as page:
        page.board.take_results([result(step, run="a") for step in range(30)] + [result(1, run="b")])
        with watching(page.url, "--run", "a") as shown:
            shown.wait_for("step 29")
            page.board.take_results([result(2, run="b"), result(30, run="a")])
            shown.wait_for("step 30")
            shown.process.terminate()
            assert shown.exit_code() == ExitCode.OK
        assert re.findall(r"step (\d+)", shown.text) == [str(step) for step in range(10, 31)]
        assert "  b  " not in shown.text


def test_new_dead_letters_are_lines_too() -> None:
    prefix = "stream_metrics."
    with served() as page:
        page.board.take_letter([(f"{prefix}reason", b"too_late")], 1, prefix)
        page.board.take_results([result(1)])
        with watching(page.url) as shown:
            shown.wait_for("step 1")
            told = {
                "reason": "undecodable",
                "message": "Expected \x1b[31m`int`",
                "topic": "t",
                "partition": "0",
                "offset": "7",
            }
            page.board.take_letter([(prefix + name, text.encode()) for name, text in told.items()], 2, prefix)
            shown.wait_for("dead letter t[0]@7  undecodable: Expected ␛[31m`int`")
        assert "too_late" not in shown.text


@pytest.mark.parametrize("name", ["\x1b]0;title\x07", "\x9b31m", "a\nb\rc", "[red]markup[/red]", "\u202eabc"])
def test_no_name_can_steer_the_terminal(name: str) -> None:
    with served() as page:
        page.board.take_results([result(1, run=name, scope=name, reason=name, complete=False)])
        with watching(page.url) as lines:
            lines.wait_for("step 1")
        with in_terminal(page.url) as (screen, _):
            screen.wait_for("closed step")
            screen.wait_for("incomplete")
        unseen = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", screen.text)  # what the screen itself is drawn with
        for text in (lines.text, unseen):
            assert not re.search(r"[\x00-\x09\x0b\x0c\x0e-\x1f\x7f-\x9f\u202e]", text)
        assert ("[red]" in lines.text) == (name[:1] == "[")
        assert len(lines.text.splitlines()) == 1


def test_a_reader_without_unicode_gets_plain_text() -> None:
    with served() as page:
        page.board.take_results([result(1, run="é", complete=False)])
        with watching(page.url, encoding="ascii") as shown:
            shown.wait_for("step 1")
        assert "?  step 1" in shown.text and "! incomplete" in shown.text


@pytest.mark.parametrize("of", [(), ("--run", "r")])
def test_it_waits_for_a_sidecar_and_goes_on_after_its_restart(of: tuple[str, ...]) -> None:
    with served() as page:
        port = page.port
    with watching(f"127.0.0.1:{port}", *of) as shown:
        shown.wait_for("trying again", is_error=True)
        with served(port) as page:
            page.board.take_results([result(1)])
            shown.wait_for("step 1")
        wait_until(lambda: shown.errors.count(b"trying again") == 2, "it says that the sidecar is gone", SECONDS)
        with served(port) as page:
            page.board.take_results([result(1), result(2)])
            shown.wait_for("connected again", is_error=True)
            shown.wait_for("step 2")
            page.board.take_results([result(3)])
            shown.wait_for("step 3")
        shown.process.send_signal(signal.SIGINT)
        assert shown.exit_code() == ExitCode.OK
        assert re.findall(r"step (\d+)", shown.text) == ["1", "2", "3"]


def test_the_screen_shows_run_steps_and_state_and_ends_with_q() -> None:
    with served() as page:
        page.board.take_results([result(step, run="run-a") for step in range(20)] + [result(7, run="run-b")])
        with in_terminal(page.url, "--run", "run-a") as (screen, keys):
            screen.wait_for("run-a")
            screen.wait_for("step 19")
            screen.wait_for("by sample 0.750")
            screen.wait_for("live")
            page.board.take_results([result(20, run="run-a")])
            screen.wait_for("step 20")
            os.write(keys, b"\x1b[B")
            screen.wait_for("step 7")
            page.not_ready = "the broker is away"
            screen.wait_for("not ready: the broker is away")
            os.write(keys, b"q")
            assert screen.exit_code() == ExitCode.OK
        assert "\x1b[?1049l" in screen.text  # the terminal is as it was


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_screen_and_leaves_the_terminal_as_it_was(how: signal.Signals) -> None:
    with served() as page, in_terminal(page.url) as (screen, _):
        screen.wait_for("no step has closed yet")
        screen.process.send_signal(how)
        assert screen.exit_code() == ExitCode.OK
        assert screen.text.rstrip().endswith("\x1b[?25h\x1b[?1049l")


def test_the_screen_says_that_the_sidecar_is_gone() -> None:
    with served() as page:
        port = page.port
        with in_terminal(f"http://127.0.0.1:{port}") as (screen, keys):
            screen.wait_for("live")
            page.close()
            screen.wait_for("trying again")
            with served(port) as again:
                again.board.take_results([result(1, run="after")])
                screen.wait_for("after")
                os.write(keys, b"q")
                assert screen.exit_code() == ExitCode.OK


def test_the_command_line_gives_it_address_run_and_form(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []
    monkeypatch.setattr("stream_metrics.commands.watch.main", lambda *given, **named: calls.append((given, named)) or 0)
    assert cli.main(["watch"]) == ExitCode.OK
    assert cli.main(["watch", "h:1", "--run", "r", "--scope", "eval", "--lines"]) == ExitCode.OK
    assert cli.main(["watch", "--bootstrap-servers", "h:1"]) == ExitCode.WRONG_SETTINGS
    assert calls == [
        (("http://127.0.0.1:8080",), {"run": None, "scope": None, "is_lines": False}),
        (("h:1",), {"run": "r", "scope": "eval", "is_lines": True}),
    ]


@pytest.mark.parametrize("url", ["ftp://x", "http://", "http://h:99999", "http://[", ":"])
def test_what_is_no_address_is_wrong_usage(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["watch", url]) == ExitCode.WRONG_SETTINGS
    assert "is no address of a sidecar's page" in capsys.readouterr().err


def test_a_server_that_is_no_sidecar_is_said() -> None:
    with served() as page, watching(f"{page.url}/elsewhere") as shown:
        assert shown.exit_code() == ExitCode.WRONG_SETTINGS
        assert b"HTTP 404" in shown.errors


def test_without_rich_the_screen_says_what_to_install_and_lines_do_without(monkeypatch: pytest.MonkeyPatch) -> None:
    program = (
        "import sys; sys.modules['rich'] = None; from stream_metrics.cli import main; sys.exit(main(sys.argv[1:]))"
    )
    ours, its = pty.openpty()
    try:
        done = subprocess.run(
            [sys.executable, "-c", program, "watch", "http://127.0.0.1:1"],
            stdin=its,
            stdout=its,
            stderr=subprocess.PIPE,
            env={**plain_environment(), "TERM": "xterm"},
            timeout=SECONDS,
            check=False,
        )
    finally:
        os.close(its)
        os.close(ours)
    assert done.returncode == ExitCode.WRONG_SETTINGS
    assert b"pip install 'stream-metrics[watch]'" in done.stderr


def test_it_needs_no_kafka() -> None:
    script = (
        "import sys, stream_metrics.commands.watch; sys.exit('confluent_kafka' in sys.modules or 'rich' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
