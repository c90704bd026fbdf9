"""The plot of a run: both rewards over the steps, and the samples per step below."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final

from stream_metrics.demo.view import Row

_ROLLOUT_COLOUR: Final = "#1b6ca8"
_SAMPLE_COLOUR: Final = "#d1495b"
_BAR_COLOUR: Final = "#b8c4ce"


def save_plot(rows: Iterable[Row], path: Path, title: str) -> None:
    """Writes the plot to a file; its name's ending chooses the format.

    Args:
        rows: In the order of the output topic; the last row of a step counts.
        path: Where to write.
        title: What stands above it.

    Raises:
        OSError: The file can't be written.
    """
    # Figure alone, without pyplot: no window system, no global state.
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    final: dict[int, Row] = {}
    corrected: set[int] = set()
    for row in rows:
        final[row.step] = row
        if row.is_correction:
            corrected.add(row.step)
    steps = sorted(final)
    by_rollout = [final[step].by_rollout for step in steps]
    by_sample = [final[step].by_rollout + final[step].gap for step in steps]

    figure = Figure(figsize=(10, 6.5), dpi=130, layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(2.4, 1))
    figure.suptitle(title, fontsize=13)

    above.fill_between(steps, by_rollout, by_sample, color=_SAMPLE_COLOUR, alpha=0.13, linewidth=0)
    above.plot(steps, by_rollout, color=_ROLLOUT_COLOUR, linewidth=2.4, label="one vote a rollout (episode_raw_reward)")
    above.plot(
        steps,
        by_sample,
        color=_SAMPLE_COLOUR,
        linewidth=1.8,
        linestyle=(0, (5, 2)),
        label="one vote a training sample (raw_reward)",
    )
    marked = sorted(corrected)
    if marked:
        above.plot(
            marked,
            [final[step].by_rollout for step in marked],
            linestyle="none",
            marker="o",
            markersize=8,
            markerfacecolor="white",
            markeredgecolor=_ROLLOUT_COLOUR,
            markeredgewidth=1.6,
            label="corrected for late samples",
        )
    above.set_ylim(0.0, 1.0)
    above.set_ylabel("mean reward")
    above.legend(loc="upper left", frameon=False)

    below.bar(steps, [final[step].samples for step in steps], color=_BAR_COLOUR, label="training samples")
    below.step(
        steps,
        [final[step].rollouts for step in steps],
        where="mid",
        color=_ROLLOUT_COLOUR,
        linewidth=1.8,
        label="rollouts",
    )
    below.set_ylim(0, 1.35 * max([1, *(final[step].samples for step in steps)]))
    below.set_ylabel("per step")
    below.set_xlabel("step")
    below.xaxis.set_major_locator(MaxNLocator(integer=True))
    below.legend(loc="upper left", frameon=False, ncols=2)

    for axes in (above, below):
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", color="#dddddd", linewidth=0.7)
        axes.set_axisbelow(True)
    figure.savefig(path)
