"""The page's files: all of them served, none of them able to turn a text into HTML or to ask somebody else."""

from __future__ import annotations

import re
from importlib import resources
from pathlib import Path

import pytest

from stream_metrics.web.page import _FILES, _file

STATIC = Path(str(resources.files("stream_metrics.web") / "static"))
OWN = [path for path in sorted(STATIC.iterdir()) if path.is_file()]


def test_each_file_is_served_and_each_served_path_is_a_file() -> None:
    there = {str(path.relative_to(STATIC)) for path in STATIC.rglob("*") if path.is_file()}
    assert {name for name, _ in _FILES.values()} == there
    for name, kind in _FILES.values():
        status, answered, body = _file(name, kind)()
        assert (status, answered, body) == (200, kind, (STATIC / name).read_bytes())


@pytest.mark.parametrize("path", OWN, ids=lambda path: path.name)
def test_nothing_is_asked_of_other_hosts(path: Path) -> None:
    text = path.read_text().replace('xmlns="http://www.w3.org/2000/svg"', "")
    assert not re.search(r"https?:|//[a-z0-9-]+\.[a-z]|@import|url\(", text)


@pytest.mark.parametrize("path", [*OWN, STATIC / "uplot" / "uPlot.iife.min.js"], ids=lambda path: path.name)
def test_no_text_can_become_html_or_code(path: Path) -> None:
    text = path.read_text()
    assert not re.search(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|DOMParser|\beval\(|Function\(|srcdoc", text
    )
    assert not re.search(r"<[^>]+\s(on\w+|style)=", text) or path.suffix == ".js"


def test_every_file_that_the_page_names_is_served() -> None:
    for path in OWN:
        for named in re.findall(r'(?:src|href)="(/[^"]*)"', path.read_text()):
            assert named in _FILES, (path.name, named)
        for named in re.findall(r'from "\./([^"]+)"', path.read_text()):
            assert f"/static/{named}" in _FILES, (path.name, named)


def test_what_is_not_ours_has_its_licence_beside_it() -> None:
    licence = (STATIC / "uplot" / "LICENSE").read_text()
    assert "Permission is hereby granted, free of charge" in licence and "Leon Sorokin" in licence
