"""What was measured, as papers: `results.json` in, `RESULTS.md` and the README's table out. Measures nothing itself."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

RESULTS = Path(__file__).parent / "results.json"
PAPER = Path(__file__).parent / "RESULTS.md"

NAMES = {
    "sidecar": "**stream_metrics**",
    "sidecar_pure": "stream_metrics with `--pure-python`",
    "plain_fast": "bare Python loop",
    "kafka_streams": "Kafka Streams",
    "raw": "consuming alone",
}
GUARANTEES = {
    "sidecar": "exactly once, 40 metrics",
    "sidecar_pure": "exactly once, 40 metrics",
    "plain_fast": "none, 2 metrics",
    "kafka_streams": "exactly once, 2 metrics",
    "raw": "none, no work",
}
PER_SAMPLE = "JSON, a sample an event"
MSGPACK_PER_SAMPLE = "MessagePack, a sample an event"
BATCHES = "JSON, 64 samples an event"
MSGPACK_BATCHES = "MessagePack, 64 samples an event"


class Aim(NamedTuple):
    """What a number should be, and what it is."""

    what: str
    aim: str
    measured: str
    is_reached: bool


def decision() -> str:
    """Returns the path of the decision record, whose number isn't known here."""
    root = Path(__file__).parents[1]
    return str(next((root / "docs" / "decisions").glob("*-speed.md")).relative_to(root))


def read() -> dict[str, Any]:
    made: dict[str, Any] = json.loads(RESULTS.read_text())
    return made


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "\n".join("| " + " | ".join(line) + " |" for line in (header, ["---"] * len(header), *rows))


def find(results: dict[str, Any], name: str, form: str = PER_SAMPLE) -> dict[str, Any] | None:
    """Returns the row of a peer and form, None where it wasn't measured."""
    return next((row for row in results["throughput"] if (row["form"], row["name"]) == (form, name)), None)


def ratio(row: dict[str, Any], base: dict[str, Any]) -> float:
    """Returns the median of the rounds' ratios: what a round measured on a busy machine both have in common."""
    return statistics.median(one / other for one, other in zip(row["by_round"], base["by_round"], strict=True))


def readme_table(results: dict[str, Any]) -> str:
    """Returns the README's table, in ratios."""
    base = find(results, "plain_fast")
    assert base is not None
    rows = []
    for form, name in (
        (PER_SAMPLE, "sidecar"),
        (BATCHES, "sidecar"),
        (PER_SAMPLE, "sidecar_pure"),
        (PER_SAMPLE, "kafka_streams"),
        (PER_SAMPLE, "plain_fast"),
        (PER_SAMPLE, "raw"),
    ):
        row = find(results, name, form)
        if row is not None:
            what = NAMES[name] + (", `samples` events of 64" if form == BATCHES else "")
            rows.append([what, f"{ratio(row, base):.2f}", f"{row['peak_mib']:,} MiB", GUARANTEES[name]])
    return table(["", "samples/s, the bare loop = 1", "memory", "guarantee"], rows)


def aims(results: dict[str, Any]) -> list[Aim]:
    ours, bare, streams = (find(results, name) for name in ("sidecar", "plain_fast", "kafka_streams"))
    assert ours is not None and bare is not None
    made = []

    def add(what: str, aim: str, measured: str, is_reached: bool) -> None:
        made.append(Aim(what, aim, measured, is_reached))

    if streams is None:
        add("an event a sample, JSON, by Kafka Streams", "≥ 3", "left out: no Java or Maven where this was run", False)
    else:
        by_streams = ratio(ours, streams)
        add("an event a sample, JSON, by Kafka Streams", "≥ 3", f"{by_streams:.2f}", by_streams >= 3)
    by_bare = ratio(ours, bare)
    add("an event a sample, JSON, by the bare loop", "≥ 0.9", f"{by_bare:.2f}", by_bare >= 0.9)
    for form, name in ((BATCHES, "JSON"), (MSGPACK_BATCHES, "MessagePack")):
        in_batches = find(results, "sidecar", form)
        if in_batches is not None:
            what = f"`samples` events of 64, {name}, by the bare loop with an event a sample"
            add(what, "≥ 1.67", f"{ratio(in_batches, bare):.2f}", ratio(in_batches, bare) >= 1.67)
    latency = results["latency"]
    for percent, most, of_loop in ((50, 6, 1.11), (99, 15, 1.52)):
        ms, by_loop = latency[f"p{percent}_ms"], latency[f"by_loop_p{percent}"]
        add(
            f"close marker to readable result, p{percent}",
            f"≤ {most} ms where the quickest loop takes {most / of_loop:.1f}: {of_loop} of it",
            f"{ms} ms, {by_loop} of it",
            ms <= most or by_loop <= of_loop,
        )
    peak = max(row["peak_mib"] for row in results["throughput"] if row["name"] == "sidecar")
    add("memory at full speed", "≤ 256 MiB", f"{peak} MiB", peak <= 256)
    for row in results["open_samples"]:
        if row["kind"] != "ids":
            what = f"memory of an open sample, {row['kind']}, beside its rollout's key"
            add(what, "≤ 64 bytes", f"{row['bytes_a_sample']} bytes", row["bytes_a_sample"] <= 64)
    steps = results["steps"]
    add(
        f"memory over {steps['steps']:,} steps, by that after the warm-up",
        "flat",
        f"{steps['end_ratio']} at the end, {steps['most_ratio']} at most",
        steps["end_ratio"] <= 1.05,
    )
    for row in results["growth"]:
        what = f"cost of an event from {row['few']:,} to {row['many']:,} {row['name']}"
        add(what, "≤ 1.3", f"{row['ratio']}", row["ratio"] <= 1.3)
    recovery = results["recovery"]
    add("replay by the live rate", "≥ 0.9", f"{recovery['ratio']}", recovery["ratio"] >= 0.9)
    add(
        f"kill -9 with {recovery['open_samples']:,} samples open: start to next result",
        "≤ 4 s",
        f"{recovery['seconds_to_result']} s",
        recovery["seconds_to_result"] <= 4,
    )
    return made


def paper(results: dict[str, Any]) -> str:
    """Returns RESULTS.md."""
    machine = results["machine"]
    throughput = [
        [
            row["form"],
            NAMES[row["name"]],
            f"{row['samples_per_second']:,}",
            f"{min(row['by_round']):,} to {max(row['by_round']):,}",
            _by(row, "plain_fast", results),
            f"{row['peak_mib']:,}",
            f"{row['cpu_us']:.2f}",
            {None: "no result", True: "right", False: "WRONG"}[row["is_right"]],
        ]
        for row in results["throughput"]
    ]
    ids = next(row for row in results["open_samples"] if row["kind"] == "ids")
    left_out = "" if find(results, "kafka_streams") else "\nKafka Streams was left out: no Java or Maven there.\n"
    latency = results["latency"]
    latency_rows = [
        [what, *(f"{latency[f'{name}p{percent}_ms']}" for percent in (50, 90, 99))]
        for what, name in (("**stream_metrics**", ""), ("the quickest loop", "loop_"), ("a bare transaction", "bare_"))
    ]
    aim_rows = [[one.what, one.aim, one.measured, "✓" if one.is_reached else "not reached"] for one in aims(results)]
    header = [
        "form",
        "",
        "samples/s",
        "lowest to highest",
        "by the bare loop",
        "peak MiB",
        "CPU µs a sample",
        "results",
    ]
    versions = f"{machine['confluent_kafka']} (librdkafka {machine['librdkafka']}), msgspec {machine['msgspec']}"
    return f"""# What was measured

Written by `make bench`, which measures all of it again, here and in the README. Ratios are of one run on one machine,
its parts in turn; other numbers depend on the machine. Each result was checked; a time alone never fails anything.

{machine["date"]}: {machine["processor"]}, {machine["cores"]} cores, {machine["memory_gib"]} GiB, broker and clients on
the same cores, load {machine["load_before"]} before; Python {machine["python"]}, confluent-kafka {versions}, numpy
{machine["numpy"]}; {results["broker"]}.

## Aims

{table(["what", "aim", "measured", ""], aim_rows)}

What is not reached, by how much and why: [the decision record](../{decision()}).

## Throughput

{results["samples"]:,} samples, {results["rounds"]} rounds, medians, also of their ratios; 20,000 samples a step in
rollouts of 1 to 8, neighbours mixed. The clock runs from the assignment of the partition (Kafka Streams: from its first
record) until a `read_committed` reader has the last result. All of the sidecar is on; the bare loop keeps two numbers a
rollout and no promise at all. Processor time has the start of the process in it.
{left_out}
{table(header, throughput)}

## Close marker to readable result

{latency["trials"]} closes of 20,000 samples, after a quiet half-second. The quickest loop publishes exactly once as
well, but keeps two numbers a rollout, publishes two metrics, and a crash loses what it holds; a bare transaction reads
nothing and writes one record.

{table(["", "p50 ms", "p90 ms", "p99 ms"], latency_rows)}

## Memory of open samples

A `sample_id` makes it {ids["bytes_a_sample"]} bytes: it must be remembered to tell a duplicate.

## How

| script | |
|---|---|
| `throughput.py` | the load through the sidecar and its peers in turn |
| `latency.py` | close marker to readable result |
| `memory.py` | over 10,000 steps; of an open sample |
| `growth.py` | cost of an event with few and many windows and rollouts |
| `recovery.py` | replay, and a kill with a million samples open |
| `catalogue.py` | what the metrics cost beside the two core ones; not part of `make bench` |
"""


def _by(row: dict[str, Any], name: str, results: dict[str, Any]) -> str:
    base = find(results, name, row["form"])
    return "" if base is None else f"{ratio(row, base):.2f}"
