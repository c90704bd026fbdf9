"""The papers say what the code says."""

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def load_generator():
    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "generate.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("path", load_generator().generated(), ids=lambda path: path.name)
def test_generated_parts_are_current(path):
    assert path.read_text() == load_generator().generated()[path], "run python docs/generate.py"
