"""Programs of the system that a test can't do without: a skip with its reason on a laptop, a failure in CI."""

from __future__ import annotations

import os
import shutil

import pytest

MISSING = "this needs a program: "
"""How the reason of such a skip begins; the last lines of a test run count them."""


def program(*names: str, package: str) -> str:
    """Returns the path of the first of some programs that is there.

    Args:
        names: What it is called, on one system or another.
        package: Debian's package of it, which `.ci/run` installs.
    """
    for name in names:
        path = shutil.which(name)
        if path is not None:
            return path
    missing = f"{MISSING}{' or '.join(names)} (Debian: apt-get install {package})"
    if os.environ.get("CI") == "true":
        pytest.fail(missing, pytrace=False)
    pytest.skip(missing)
