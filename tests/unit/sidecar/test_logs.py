"""A log line is one line, whatever is in it."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator

import pytest

from stream_metrics.sidecar import logs

NASTY = 'a\nb\r\u2028"quoted" = x \x1b[31m \x00 \ud800 é'


@pytest.fixture(autouse=True)
def _logger_as_it_was() -> Iterator[None]:
    logger = logs.LOGGER
    before = logger.handlers[:], logger.level, logger.propagate
    yield
    logger.handlers[:], logger.level, logger.propagate = before[0], before[1], before[2]


def _lines(form: str, level: str = "info") -> io.StringIO:
    stream = io.StringIO()
    logs.setup(form, level, stream)  # type: ignore[arg-type]  # a literal
    return stream


def test_fields_follow_the_message() -> None:
    stream = _lines("text")
    logs.info("step closed", run_id="r", step=3, mean=0.1 + 0.2, nothing=None)
    line = stream.getvalue()
    assert line.endswith("info    step closed run_id=r step=3 mean=0.3\n")


def test_a_text_line_stays_one_line_and_its_fields_can_be_told_apart() -> None:
    stream = _lines("text")
    logs.warning("said", run_id=NASTY, empty="")
    (line,) = stream.getvalue().splitlines()
    assert line.isprintable()
    assert line.endswith(' empty=""')
    assert json.loads(line[line.index("run_id=") + 7 : line.index(" empty=")]) == NASTY


def test_a_JSON_line_is_one_object_with_time_level_and_message() -> None:
    stream = _lines("json")
    logs.error("bad", run_id=NASTY, step=2**53, what=object)
    (line,) = stream.getvalue().split("\n")[:-1]
    told = json.loads(line)
    assert (told["level"], told["message"], told["run_id"], told["step"]) == ("error", "bad", NASTY, 2**53)
    assert told["time"].endswith("Z") and "T" in told["time"]
    assert line.isascii()


def test_an_exception_is_inside_the_JSON_object() -> None:
    stream = _lines("json")
    try:
        raise ValueError("two\nlines")
    except ValueError:
        logs.LOGGER.exception("internal error")
    (line,) = stream.getvalue().split("\n")[:-1]
    assert "two\nlines" in json.loads(line)["exception"]


def test_lines_below_the_level_are_left_out() -> None:
    stream = _lines("text", "warning")
    logs.info("quiet")
    logs.debug("quieter")
    logs.warning("loud")
    assert len(stream.getvalue().splitlines()) == 1


def test_setting_up_twice_says_nothing_twice() -> None:
    _lines("text")
    stream = _lines("text")
    logs.info("once")
    assert len(stream.getvalue().splitlines()) == 1
