"""The broker that tests share, and what becomes of a test run where there is none."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping

import hypothesis
import pytest

from support.brokers import Broker, UnavailableError, closing, find_broker
from support.programs import MISSING

_BROKER_FIXTURES = {"broker", "stoppable_broker", "broker_without_transactions"}

hypothesis.settings.register_profile("any machine", deadline=None)  # a busy machine's slow example is no failure
hypothesis.settings.load_profile("any machine")


@pytest.fixture(scope="session")
def broker() -> Iterator[Broker]:
    """A broker for the whole run; tests keep apart by names that are unique."""
    yield from closing(_found(is_stoppable=False))


@pytest.fixture(scope="session")
def _stoppable_broker(broker: Broker) -> Iterator[Broker]:
    if broker.can_be_stopped:
        yield broker
    else:
        yield from closing(_found(is_stoppable=True))


@pytest.fixture
def stoppable_broker(_stoppable_broker: Broker) -> Iterator[Broker]:
    """A broker that the test may stop, kill and pause; it runs again afterwards, with the same port and data."""
    _stoppable_broker.start()
    yield _stoppable_broker
    _stoppable_broker.start()


@pytest.fixture
def broker_without_transactions() -> Iterator[Broker]:
    """A broker that can't keep transactions: its topic for them wants more replicas than there are brokers."""
    yield from closing(_found(is_stoppable=True, settings={"transaction.state.log.replication.factor": "3"}))


def _found(*, is_stoppable: bool, settings: Mapping[str, str] | None = None) -> Broker:
    try:
        return find_broker(is_stoppable=is_stoppable, settings=settings)
    except UnavailableError as error:
        if os.environ.get("CI") == "true":
            pytest.fail(f"CI needs a broker: {error}", pytrace=False)
        pytest.skip(str(error))


@pytest.hookimpl(tryfirst=True)  # before -m chooses by marker
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if _BROKER_FIXTURES.intersection(getattr(item, "fixturenames", ())):
            item.add_marker("broker")


def pytest_unconfigure(config: pytest.Config) -> None:
    """The last lines of a run that skipped tests for want of something say so: what it proves is much less."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None:
        return
    broker: list[str] = []
    program: list[str] = []
    for report in reporter.stats.get("skipped", ()):
        reason = report.longrepr[2].removeprefix("Skipped: ")
        if reason.startswith(MISSING):
            program.append(reason.removeprefix(MISSING))
        elif "broker" in report.keywords:
            broker.append(reason)
    for reasons, kind in ((broker, "BROKER TESTS"), (program, "TESTS THAT NEED A PROGRAM")):
        if reasons:
            told = "; ".join(sorted(set(reasons))).upper()
            reporter.write_line(f"{len(reasons)} {kind} WERE SKIPPED: {told}", red=True)
