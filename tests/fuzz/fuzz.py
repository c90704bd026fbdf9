"""Coverage-guided fuzzing of the decoder and the fold, from real events; `make fuzz`.

    python tests/fuzz/fuzz.py [--seconds 120] [--runs N] [--keep FOLDER] [INPUT ...]

An input is a list of records: each has a byte of flags, two bytes of length, and a value. What it has to hold:
- Any value is an event, or an `EventError`; an event that is encoded is decoded to itself.
- The fold never raises, holds no more than it may, and asks for nothing twice; its note fits and its results are JSON.
- However the records come in batches, read by the compiled part or not, and wherever a replay from the note takes
  over, the effects are the same bytes. What the compiled part reads is what the decoder reads.

An input that breaks this is written to the folder as `crash-...`; given as INPUT it is tried again, with its traceback,
with no need of the fuzzer. A finding becomes a test beside its subject.
"""

# ruff: noqa: T201  # a script that says what it does

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import struct
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

NO_ATHERIS = """\
make fuzz needs atheris, which isn't there: its wheels are for Linux, and not for every Python (pip install atheris
says which). The fuzz tests of hypothesis run everywhere: pytest tests/property/test_fuzz.py."""

TESTS = Path(__file__).parents[1]
sys.path.insert(0, str(TESTS))  # as pytest does, for `support`
MAX_BYTES = 8_192
MAX_SAMPLES = 40
DICTIONARY = [
    *(b'"%s":' % name for name in (
        b"type", b"run_id", b"scope", b"step", b"attempt", b"group_index", b"rollout_id", b"position", b"index",
        b"sample_id", b"reward", b"metadata", b"raw_reward", b"response_length", b"effective_response_length",
        b"status", b"data_source", b"weight_versions", b"values", b"samples", b"producer", b"producers",
        b"expected_samples", b"dropped", b"reason", b"seen_offset",
    )),
    b'"sample"', b'"samples"', b'"close"', b'"timeout"', b'"data_lost"', b'"completed"', b'"aborted"', b"null", b"true",
    b"\\u0000", b"NaN", b"-Infinity", b"1e999",
    b"9007199254740991", b"9007199254740992", b"-1", b"0", b"1.0", b"\\ud800",
    b"99999999999999999999999999", b"[[[[[[[[", b"{}", b"[]", b"\xff",
]  # fmt: skip


def seeds() -> Iterator[bytes]:
    """Yields inputs made of the cases of the tests, of the golden files and of random traffic."""
    from support import cases
    from support.traffic import Traffic

    for name in cases.NAMES:
        yield pack([(0, value) for value, _, _ in cases.values_of(cases.load(name))])
    lines = (TESTS / "wire" / "events_1.jsonl").read_text().splitlines()
    golden = [json.loads(line)["json"].encode() for line in lines if line.startswith('{"json"')]
    yield pack([(0, value) for value in golden])
    for value in golden:
        yield pack([(0, value)])
        with contextlib.suppress(ValueError, OverflowError):  # what MessagePack can't hold
            yield pack([(1, msgspec.msgpack.encode(json.loads(value)))])
    for seed in range(40):
        flow = Traffic(seed, runs=2, partitions=1, samples=4)
        yield pack([(0, record.value) for record in [*flow.take(12), *flow.finish()][:24]])


def pack(records: list[tuple[int, bytes | None]]) -> bytes:
    """Returns the input that `unpack` reads these from. Flags: 1 a header, 2 tombstone, 4 no timestamp, 8 gap."""
    made = b""
    for flags, value in records:
        value, flags = (b"", flags | 2) if value is None else (value, flags)
        made += struct.pack(">BH", flags, len(value)) + value
    return made


def unpack(data: bytes) -> list[tuple[int, bytes | None]]:
    records = []
    while len(data) >= 3:
        flags, length = struct.unpack(">BH", data[:3])
        records.append((flags, None if flags & 2 else data[3 : 3 + length]))
        data = data[3 + length :]
    return records


def check(data: bytes) -> None:
    """Raises if anything is broken by this input."""
    from stream_metrics.core.fold import Fold
    from stream_metrics.core.record import CREATE_TIME, NO_TIMESTAMP, LogRecord
    from stream_metrics.core.settings import FoldSettings

    given = unpack(data)
    records, offset = [], 0
    for flags, value in given:
        check_event(value)
        headers = [("content-type", b"application/msgpack")] if flags & 1 else None
        timestamp = (NO_TIMESTAMP, -1) if flags & 4 else (CREATE_TIME, 1_700_000_000_000 + offset)
        records.append(
            LogRecord(value=value, headers=headers, offset=offset, timestamp=timestamp, topic="t", partition=0)
        )
        offset += 1 + (flags >> 3) % 4
    how = sum(flags for flags, _ in given) + len(data)
    settings = FoldSettings(
        max_samples=MAX_SAMPLES,
        max_runs=1 + how % 3,
        remember_steps=1 + how % 2,
        remember_records=8,
        reward_key="a" if how % 5 == 0 else None,
        late="dead_letter" if how % 7 == 0 else "correct",
    )
    whole = Fold(settings, "t", 0, is_compiled=False)
    whole.feed(records)
    effects = told(whole.take_effects())
    assert whole.held_samples <= MAX_SAMPLES + max((batch_length(value) for _, value in given), default=0)
    for one in whole.runs():
        assert all(isinstance(name, str) for name in one)

    # The same in pieces, with a replay from its note in the middle: nothing else may come out.
    rng = random.Random(how)
    pieces = Fold(settings, "t", 0)
    got, next_offset, corrected = [], 0, False
    middle = rng.randrange(len(records) + 1)
    for place, record in enumerate(records):
        if place == middle:
            next_offset = record.offset()
            corrections = pieces.take_corrections()  # what a commit would carry
            corrected = bool(corrections)
            note = pieces.note(next_offset)
            encoded = note.encode()
            assert len(encoded) < 4096
            pieces = replayed(settings, encoded, records[:place], note.replay_from)
        pieces.feed([record])
        got += told(pieces.take_effects())
    if not corrected:
        assert got == effects, first_difference(got, effects)
    else:
        on_time = [one for one in effects if '"correction":true' not in one]
        assert [one for one in got if '"correction":true' not in one] == on_time
    assert pieces.digest() == whole.digest()
    last = told(whole.take_corrections())
    if not corrected:
        assert told(pieces.take_corrections()) == last


def replayed(settings: Any, encoded: str, records: list[Any], replay_from: int) -> Any:
    """Returns a fold as a replacement builds it."""
    from stream_metrics.core.fold import Fold
    from stream_metrics.core.replay_note import decode_note

    note = decode_note(encoded)
    fold = Fold.from_note(settings, "t", 0, note, is_compiled=note.replay_from % 2 == 0)
    fold.feed([record for record in records if record.offset() >= replay_from])
    fold.end_replay()
    assert fold.digest() == note.windows, "the replay gives other windows than were committed"
    return fold


def check_event(value: bytes | None) -> None:
    from stream_metrics.core import compiled
    from stream_metrics.events import EventError, decode, encode
    from support.compiled import decoded, read

    if value is None:
        return
    got = read(value) if compiled.IS_THERE else None
    assert got is None or got == decoded(value), value
    try:
        event = decode(value)
    except EventError as error:
        if not str(error):
            raise AssertionError("an error without a message") from error
        return
    again = encode(event)
    if not nonfinite(msgspec.to_builtins(event)):
        assert decode(again) == event, again


def nonfinite(value: Any) -> bool:
    """Returns whether a value holds what JSON can't say, or says as null."""
    if isinstance(value, float):
        return value != value or value in (float("inf"), float("-inf"))
    if isinstance(value, dict):
        return any(map(nonfinite, value.values()))
    return isinstance(value, list) and any(map(nonfinite, value))


def batch_length(value: bytes | None) -> int:
    from stream_metrics.events import EventError, SampleBatch, decode

    if value is None:
        return 0
    try:
        event = decode(value)
    except EventError:
        return 0
    return len(event.samples) if isinstance(event, SampleBatch) else 0


def told(effects: list[Any]) -> list[str]:
    """Returns results as they are published, and dead letters. What operators are told may depend on the restarts."""
    from stream_metrics.core.effects import Publish, SetAside
    from stream_metrics.events import encode

    made = []
    for effect in effects:
        if isinstance(effect, Publish):
            encoded = encode(effect.result)
            metrics = json.loads(encoded)["metrics"]
            assert metrics and all(type(number) in (int, float) for number in metrics.values()), encoded
            made.append(encoded.decode())
        elif isinstance(effect, SetAside):
            made.append(f"{effect.record.offset()} {effect.reason} {effect.error}: {effect.message}")
    return made


def first_difference(got: list[str], want: list[str]) -> str:
    for one, other in zip(got, want, strict=False):
        if one != other:
            return f"\n{one}\nnot\n{other}"
    return f"{len(got)} effects, not {len(want)}: {(got + want)[min(len(got), len(want)) :]}"


def quoted(word: bytes) -> str:
    return "".join(f"\\x{byte:02x}" for byte in word)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=int, default=120)
    parser.add_argument("--runs", type=int, default=-1, help="end after so many inputs")
    parser.add_argument("--keep", type=Path, default=None, help="corpus and findings go here, and go on from there")
    parser.add_argument("inputs", nargs="*", type=Path, help="findings to try again")
    options = parser.parse_args()
    if options.inputs:
        for path in options.inputs:
            print(path)
            for flags, value in unpack(path.read_bytes()):
                print(f"  {flags:3} {value!r}")
            check(path.read_bytes())
        return 0
    try:
        import atheris
    except ImportError:
        print(NO_ATHERIS, file=sys.stderr)
        return 1
    with atheris.instrument_imports(include=["stream_metrics"]):
        import stream_metrics.core.fold
        import stream_metrics.events  # noqa: F401
    folder = options.keep or Path(tempfile.mkdtemp(prefix="stream-metrics-fuzz-"))
    corpus = folder / "corpus"
    corpus.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(seeds()):
        check(seed)
        if len(seed) <= MAX_BYTES:
            (corpus / f"seed-{number:03}").write_bytes(seed)
    words = folder / "words"
    words.write_text("".join(f'"{quoted(word)}"\n' for word in DICTIONARY))
    print(f"fuzzing for {options.seconds} s, findings go to {folder}", flush=True)
    atheris.Setup(
        [
            sys.argv[0],
            f"-max_total_time={options.seconds}",
            f"-runs={options.runs}",
            f"-max_len={MAX_BYTES}",
            f"-dict={words}",
            f"-artifact_prefix={folder}{os.sep}",
            "-timeout=20",
            "-rss_limit_mb=2048",
            "-print_final_stats=1",
            str(corpus),
        ],
        check,
    )
    atheris.Fuzz()
    return 0


if __name__ == "__main__":
    sys.exit(main())
