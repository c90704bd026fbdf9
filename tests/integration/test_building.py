"""The package is built with its compiled part where there is a Rust compiler, and without it everywhere else."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from support.programs import program

ROOT = Path(__file__).parents[2]

SCRIPT = """
import sys
sys.path.insert(0, sys.argv[1])
from stream_metrics.core import compiled
from stream_metrics.testing import MemoryLog, close, sample
assert compiled.__file__.startswith(sys.argv[1])
log = MemoryLog()
for event in (*[sample(0, 0.5, group_index=0, rollout_id=number // 3) for number in range(300)], close(0)):
    log.append(event)
print(compiled.IS_THERE, log.fold().results[0].metrics["rollout/num_rollouts"])
"""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A copy of what the package is built from: a build leaves files behind."""
    made = tmp_path / "source"
    for name in ("stream_metrics", "native"):
        shutil.copytree(ROOT / name, made / name, ignore=shutil.ignore_patterns("target", "*.so", "__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE", "MANIFEST.in"):
        shutil.copy(ROOT / name, made / name)
    return made


def wheel(source: Path, **environment: str) -> Path:
    """Returns the folder of the one wheel that is built."""
    made = source.parent / "wheels"
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", made, source]
    ran = subprocess.run(
        command, env={**os.environ, **environment}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert ran.returncode == 0, ran.stdout
    return made


def tried(wheels: Path) -> str:
    """Returns what the package in the wheel says, imported from where it was unpacked."""
    [path] = wheels.glob("*.whl")
    zipfile.ZipFile(path).extractall(wheels / "unpacked")
    command = [sys.executable, "-P", "-c", SCRIPT, wheels / "unpacked"]
    ran = subprocess.run(command, cwd=wheels, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def test_a_wheel_has_the_compiled_part_and_serves_every_python(source):
    program("cargo", package="cargo")
    wheels = wheel(source, CARGO_TARGET_DIR=str(ROOT / "native" / "target"))  # built when this was installed, mostly
    [path] = wheels.glob("*.whl")
    assert "-cp311-abi3-" in path.name
    names = zipfile.ZipFile(path).namelist()
    assert "stream_metrics/core/_native.abi3.so" in names
    assert "stream_metrics/web/static/uplot/uPlot.iife.min.js" in names
    assert tried(wheels) == "True 100\n"


@pytest.mark.parametrize("how", ["no compiler", "a compiler that fails"])
def test_without_a_compiler_the_package_is_built_all_the_same(source, tmp_path, how):
    if how == "no compiler":
        wheels = wheel(source, PATH=str(tmp_path / "nothing"))
    else:
        wheels = wheel(source, CARGO=shutil.which("false") or "false")
    [path] = wheels.glob("*.whl")
    names = zipfile.ZipFile(path).namelist()
    assert not [name for name in names if name.endswith(".so")]
    assert "stream_metrics/core/fold.py" in names
    assert tried(wheels) == "False 100\n"
