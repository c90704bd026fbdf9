"""`python -m stream_metrics` is `stream-metrics`."""

import sys

from stream_metrics.cli import main

if __name__ == "__main__":
    sys.exit(main())
