"""What the pages on producing say of names is so."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

from stream_metrics import events
from stream_metrics.commands.follow import STREAM
from stream_metrics.producers.environment import PREFIX, VARIABLES
from stream_metrics.producers.follow import LAYOUTS

DOCS = Path(__file__).parents[3] / "docs"
PAGES = sorted((DOCS / "trainers").glob("*.md"))


def test_every_variable_of_the_hooks_is_on_the_page() -> None:
    text = (DOCS / "producing.md").read_text()
    assert [name for name in VARIABLES if f"`{PREFIX}{name}`" not in text] == []


def test_every_field_of_a_sample_is_on_the_page() -> None:
    text = (DOCS / "producing.md").read_text()
    assert [name for name in events.SampleFields.__struct_fields__ if f"`{name}`" not in text] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_what_a_page_tells_to_import_or_to_name_is_there(page: Path) -> None:
    text = page.read_text()
    for path in re.findall(r"stream_metrics\.producers\.hooks\.\w+\.\w+", text):
        module, _, name = path.rpartition(".")
        assert callable(getattr(importlib.import_module(module), name))
    for module, name in re.findall(r"from (stream_metrics[\w.]+) import (\w+)", text):
        assert callable(getattr(importlib.import_module(module), name))
    for layout in re.findall(r"--layout ([\w-]+)", text):
        assert layout in (STREAM, *LAYOUTS)


def test_every_trainer_has_a_page_and_every_page_is_linked() -> None:
    text = (DOCS / "producing.md").read_text()
    assert [page.name for page in PAGES if f"trainers/{page.name}" not in text] == []
    hooks = Path(importlib.import_module("stream_metrics.producers.hooks").__file__ or "").parent
    names = {path.stem for path in hooks.glob("[a-z]*.py")} | {STREAM} | set(LAYOUTS) - {"prime-rl-steps"}
    assert names == {page.stem for page in PAGES}
