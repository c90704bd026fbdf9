"""`stream-metrics run`: the sidecar, from settings to exit code."""

from __future__ import annotations

import faulthandler
import os
import signal
import socket
import time
from http import HTTPStatus

from stream_metrics import __version__
from stream_metrics.commands._sinks import Sinks
from stream_metrics.config import Settings
from stream_metrics.exit_codes import ExitCode
from stream_metrics.sidecar import logs, process
from stream_metrics.sidecar.errors import SidecarError
from stream_metrics.sidecar.health import Health
from stream_metrics.sidecar.loop import Sidecar
from stream_metrics.sidecar.self_metrics import SelfMetrics
from stream_metrics.sidecar.stop_signals import StopSignals
from stream_metrics.sidecar.watchdog import Watchdog
from stream_metrics.web.page import Page
from stream_metrics.web.server import Answer, Server


def main(settings: Settings, config_file: str | None = None) -> int:
    """Runs the sidecar until a signal or an error ends it, and returns the exit code.

    Args:
        settings: All of them.
        config_file: The file of settings that the command line named, for the sinks beside it.
    """
    logs.setup(settings.log_format, settings.log_level)
    faulthandler.register(signal.SIGUSR1)  # where it stands, for the day it seems stuck
    metrics = SelfMetrics()
    health = Health(settings.dead_letter_limit, time.monotonic)
    transactional_id = f"{settings.group_id}-{settings.instance_id or socket.gethostname()}"
    page = Page(settings, __version__, health.why_not_ready) if settings.http_port else None
    sidecar = Sidecar(settings, transactional_id, health, metrics, show_open=page.take_open if page else None)
    StopSignals(sidecar.stop).listen()
    server = None
    if page is not None:
        try:
            server = _serve(settings, health, metrics, page)
        except OSError as error:
            logs.error("can't listen", address=f"{settings.http_host}:{settings.http_port}", error=error.strerror)
            return ExitCode.WRONG_SETTINGS
    sinks = Sinks(settings, config_file, metrics.sink_restarts.inc)
    sinks.start()
    code = ExitCode.OK
    Watchdog(lambda: health.turned_at).start()
    process.tune()
    try:
        sidecar.run()
    except SidecarError as error:
        logs.error(str(error), exit_code=int(error.exit_code))
        code = error.exit_code
    except:  # noqa: E722 - what the client raises isn't always an exception
        logs.LOGGER.exception("internal error")
        code = ExitCode.INTERNAL_ERROR
    sinks.stop()
    if server is not None and page is not None:
        page.close()
        server.close()
    logs.info("stopped", exit_code=int(code))
    # The client's own threads may wait for a broker that is away; nothing of theirs is needed any more.
    logs.flush()
    os._exit(code)


def _serve(settings: Settings, health: Health, metrics: SelfMetrics, page: Page) -> Server:
    def probe(answer: tuple[bool, bytes]) -> Answer:
        status = HTTPStatus.OK if answer[0] else HTTPStatus.SERVICE_UNAVAILABLE
        return status, "application/json", answer[1]

    server = Server(
        settings.http_host,
        settings.http_port,
        {
            "/healthz": lambda: probe(health.alive()),
            "/readyz": lambda: probe(health.ready()),
            "/metrics": lambda: (HTTPStatus.OK, "text/plain; version=0.0.4; charset=utf-8", metrics.text()),
        },
        page.files(),
        page.streams,
    )
    logs.info("listening", address=f"{settings.http_host}:{server.port}")
    return server
