"""Makes the pictures of the live page from a real run: `python docs/screenshots.py HOST:PORT`.

Needs a broker, what the extra `test` installs, and Chromium with its driver. Its topics are gone afterwards.
"""

from __future__ import annotations

import io
import itertools
import json
import subprocess
import sys
import threading
import uuid
from pathlib import Path

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from PIL import Image

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from stream_metrics.demo.simulation import simulate_step
from stream_metrics.demo.trainer import play
from stream_metrics.producers import RolloutProducer
from support.brokers import _free_ports
from support.browser import Browser, chromium
from support.waiting import wait_until

DOCS = Path(__file__).parent
RUNS = ("agentic-7b-compact", "agentic-7b-long-context", "agentic-32b")
STEPS = 44
WIDTH, HEIGHT = 1200, 1000


def feed(bootstrap: str, topic: str, seed: int, run: str, stopping: threading.Event) -> None:
    """The run is played: most of it at once, and from then on at the pace of a trainer in a hurry."""
    with RolloutProducer(bootstrap, topic, run_id=run, attempt=0, spool_directory="") as producer:
        play(producer, (simulate_step(seed, step) for step in range(STEPS)), 0.03, stopping)
        play(producer, (simulate_step(seed, step) for step in itertools.count(STEPS)), 20.0 + 7 * seed, stopping)


def marker(producer: Producer, topic: str, run: str, step: int, expected: int) -> None:
    """A second producer closes the step, and says that it sent samples; they never come."""
    made = {"type": "close", "run_id": run, "step": step, "producer": "2", "producers": 2, "expected_samples": expected}
    producer.produce(topic, json.dumps(made).encode(), run.encode())


def shoot(browser: Browser, url: str, name: str, *, is_dark: bool) -> None:
    browser.open(url, width=WIDTH, height=HEIGHT, is_dark=is_dark)
    browser.wait_for_text("#status", "live")
    browser.wait_for_text("#readout", "step")
    browser.wait_for("document.querySelectorAll('#open tbody tr').length === arguments[0]", len(RUNS))
    wait_until(lambda: browser.pixels("#chart canvas", "rollout") > 500, "the chart")
    browser.run("document.activeElement.blur()")
    picture = Image.open(io.BytesIO(browser.driver.get_screenshot_as_png()))
    picture.convert("RGB").quantize(255, method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE).save(
        DOCS / name, optimize=True
    )


def main(bootstrap: str) -> None:
    mark = uuid.uuid4().hex[:8]
    topics = {name: f"page-{name}-{mark}" for name in ("input", "output", "dead-letter")}
    (port,) = _free_ports(1)
    command = [sys.executable, "-m", "stream_metrics", "run", "--create-topics", f"--bootstrap-servers={bootstrap}"]
    command += [f"--{name}-topic={topic}" for name, topic in topics.items()]
    command += [f"--group-id=page-{mark}", f"--http-port={port}", "--close-grace=12", "--log-level=warning"]
    admin = AdminClient({"bootstrap.servers": bootstrap})
    stopping = threading.Event()
    with subprocess.Popen(command) as sidecar, chromium() as browser:
        try:
            wait_until(lambda: topics["input"] in admin.list_topics(timeout=10).topics, "topics")
            odd = Producer({"bootstrap.servers": bootstrap, "partitioner": "murmur2_random"})
            marker(odd, topics["input"], RUNS[0], 29, 12)
            odd.flush(10)
            trainers = [
                threading.Thread(target=feed, args=(bootstrap, topics["input"], seed, run, stopping))
                for seed, run in zip((4, 1, 2), RUNS, strict=True)
            ]
            for trainer in trainers:
                trainer.start()
            url = f"http://127.0.0.1:{port}/#run={RUNS[0]}&scope=rollout"
            wait_until(lambda: is_served(browser, url), "the page", 60)
            browser.wait_for_text("#figures", str(STEPS - 1), 120)
            browser.wait_for_text("#closed", "incomplete")
            marker(odd, topics["input"], RUNS[2], STEPS, 400)
            odd.produce(topics["input"], b'{"type": "sample", "run_id": "agentic-32b", "step": "forty"}', b"x")
            odd.flush(10)
            browser.wait_for_text("#letters", "undecodable")
            browser.wait_for_text("#open", "of 400")
            for name, is_dark in (("page-light.png", False), ("page-dark.png", True)):
                shoot(browser, url, name, is_dark=is_dark)
        finally:
            stopping.set()
            sidecar.terminate()
    for future in admin.delete_topics(list(topics.values())).values():
        future.result(30)


def is_served(browser: Browser, url: str) -> bool:
    try:
        browser.open(url, width=WIDTH, height=HEIGHT)
        return True
    except Exception:  # nobody listens yet
        return False


if __name__ == "__main__":
    main(sys.argv[1])
