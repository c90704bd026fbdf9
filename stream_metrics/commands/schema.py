"""`stream-metrics schema`: the JSON Schema of all events and of the result."""

from __future__ import annotations

import json

from stream_metrics.events import json_schemas
from stream_metrics.exit_codes import ExitCode


def main() -> int:
    """Prints the schema on standard output."""
    print(json.dumps(json_schemas(), indent=2))
    return ExitCode.OK
