"""The text of `docs/metrics.md`, made from the docstrings of the catalogue. Pure: `docs/generate.py` writes it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any, Final, NamedTuple

from stream_metrics.core import catalogue
from stream_metrics.core.metrics import counts, custom, groups, lengths, rewards
from stream_metrics.core.named import MAX_NAME_LENGTH
from stream_metrics.core.settings import FoldSettings

_SECTIONS: Final[tuple[tuple[str, ModuleType], ...]] = (
    ("Rewards", rewards),
    ("Counts", counts),
    ("Groups", groups),
    ("Lengths, endings, staleness", lengths),
    ("What a producer adds", custom),
)

_INTRODUCTION: Final = f"""\
# The metrics

This page is generated from the docstrings in `stream_metrics/core/metrics`: change those and run
`python docs/generate.py`.

Keys carry the window's scope as prefix: `rollout/raw_reward`, or `eval/aime24/raw_reward` for an evaluation.
A metric always appears unless it says when.

- **Rollouts have one vote each, samples don't.** What starts with `episode_` counts rollouts, however many
  samples compaction made of them. What doesn't is what per-sample logging shows, key and meaning.
- A **scored** rollout has a usable reward: at least one of its samples has a finite one. x(r) is its reward, the mean
  of its samples' rewards unless the setting `rollout_reward` says otherwise.
- A sample without the chosen reward is counted in `missing_rewards` and is in no mean. Nothing is ever silently 0.
- No metric is ever NaN or infinite. One that would be is left out and counted in `nonfinite_metrics`.
- Sums are correctly rounded, so neither the order of samples nor the machine shows in a result. The mean of equal
  numbers is that number.
- An integer past 2^53 − 1 is published as a float.
- Costs are those of a window's close. Beside them a sample costs about 0.35 µs when it comes
  (`benchmarks/catalogue.py`).

Names that producers choose are bounded, for each kind (values, reward components, data sources, reasons of drops):

- The `max_names` ({FoldSettings().max_names}) names that sort first are kept, in whatever order they come. The
  numbers of the others are under `other`, and `folded_names` counts them.
- A name of 1 to {MAX_NAME_LENGTH} printable characters is published as it is, slashes, spaces and all. Of any other
  name the first 100 characters are, with `_` for each one not printable, then `~` and 16 hex digits that tell it apart.
- A name takes a place with its first finite number.
- The name of a value never takes the place of a metric on this page, not even of one that doesn't appear: it is left
  out and counted in `clashing_names`. A value's own name goes before the `episode_<name>` of another.
"""


class _Documented(NamedTuple):
    about: str
    parts: dict[str, str]


def render() -> str:
    """Returns the page."""
    texts = [_INTRODUCTION]
    for title, module in _SECTIONS:
        rows = [(metric.key, metric.function) for metric in module.METRICS]
        texts.append(f"## {title}\n\n{inspect.getdoc(module)}\n\n{_table(rows)}\n")
    texts.append(f"## Of the result itself\n\n{_table(catalogue.OUTCOMES.items())}\n")
    return "\n".join(texts)


def _table(rows: Iterable[tuple[str, Callable[[Any], Any]]]) -> str:
    lines = ["| key | what it is | formula | unit | appears | cost | source |", "|---|---|---|---|---|---|---|"]
    for key, function in rows:
        about, parts = _documented(function)
        cells = [about, parts["Formula"], parts["Unit"], parts.get("Appears", "always")]
        cells += [parts["Cost"], parts["Source"]]
        lines.append(" | ".join([f"| `{key}`", *(cell.rstrip(".").replace("|", "\\|") for cell in cells)]) + " |")
    return "\n".join(lines)


def _documented(function: Callable[[Any], Any]) -> _Documented:
    """Returns the free text of a metric's docstring as one line, and its parts by name."""
    free: list[str] = []
    parts: dict[str, str] = {}
    name = None
    for line in (inspect.getdoc(function) or "").splitlines():
        head, colon, rest = line.partition(": ")
        if colon and head in ("Formula", "Unit", "Cost", "Source", "Appears"):
            name = head
            parts[name] = rest
        elif name is not None:
            parts[name] += f" {line.strip()}"
        else:
            free.append(line.strip())
    return _Documented(" ".join(filter(None, free)), parts)
