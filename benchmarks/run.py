"""Measures everything and writes `results.json`, `RESULTS.md` and the README's table: what `make bench` calls.

    python benchmarks/run.py [--quick] [--only throughput,latency,memory,growth,recovery]

`--quick` is a smoke: little of everything, checked for correctness, written nowhere. With `--only` the other numbers
are kept from the last run.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from typing import Any

import growth
import latency
import load
import memory
import recovery
import report
import rig
import throughput

PARTS = ("throughput", "latency", "memory", "growth", "recovery")


def measure(bootstrap: str, parts: list[str]) -> dict[str, Any]:
    made: dict[str, Any] = {}
    if "throughput" in parts:
        made |= {"samples": 2_000_000, "rounds": 5}
        made["throughput"] = throughput.measure(bootstrap, made["samples"], made["rounds"], load.FORMS)
    if "latency" in parts:
        made["latency"] = _said("latency", latency.measure(bootstrap, 40))
    if "recovery" in parts:
        made["recovery"] = _said("recovery", recovery.measure(bootstrap, 1_000_000))
    if "growth" in parts:
        made["growth"] = growth.measure(5)
    if "memory" in parts:
        made["open_samples"] = [_said("memory", _open_samples(kind)) for kind in ("typical", "full", "ids")]
        made["steps"] = memory.through_a_sidecar(10_000, memory.warm_up_of(10_000), bootstrap)
    return made


def smoke(bootstrap: str) -> None:
    """Prints the ratio to the bare loop; raises where a result is wrong."""
    rows = throughput.measure(bootstrap, 100_000, 1, load.FORMS, ("sidecar", "plain_fast"))
    by_name = {(row["form"], row["name"]): row["samples_per_second"] for row in rows}
    for form in load.FORMS:
        print(f"{form.name}: {by_name[form.name, 'sidecar'] / by_name[form.name, 'plain_fast']:.2f} of the bare loop")
    print(latency.measure(bootstrap, 3))
    print(recovery.measure(bootstrap, 60_000))
    if not all(row["is_right"] for row in rows):
        raise SystemExit("a wrong result")


def _open_samples(kind: str) -> dict[str, Any]:
    """Asks a fresh process, whose memory nothing else has grown."""
    script = [sys.executable, str(rig.HERE / "memory.py"), "--open", kind]
    said = subprocess.run(script, check=True, stdout=subprocess.PIPE, text=True).stdout
    made: dict[str, Any] = json.loads(said)
    return made


def _said(what: str, row: dict[str, Any]) -> dict[str, Any]:
    print(what, json.dumps(row), flush=True)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", default=",".join(PARTS))
    options = parser.parse_args()
    parts = options.only.split(",")
    if set(parts) - set(PARTS):
        parser.error(f"the parts are {', '.join(PARTS)}")
    machine = rig.machine()
    with rig.broker() as (bootstrap, description):
        if options.quick:
            smoke(bootstrap)
            return
        made = measure(bootstrap, parts)
    kept = report.read() if parts != list(PARTS) and report.RESULTS.exists() else {}
    results = {**kept, **made, "machine": machine, "broker": description}
    report.RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    subprocess.run([sys.executable, str(rig.HERE.parent / "docs" / "generate.py")], check=True)
    print(f"\nwrote {report.PAPER}")
    for aim in report.aims(results):
        print(f"{'' if aim.is_reached else 'NOT REACHED: '}{aim.what}: {aim.measured} (aim {aim.aim})")


if __name__ == "__main__":
    main()
