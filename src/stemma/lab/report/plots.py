"""Plots as inline SVG: one accent colour, direct labels instead of a legend, baselines as thin dashed lines.

Text stays text in the page's font. Colours are CSS variables with a fallback, so a figure follows the page into dark
mode and also works as a file. Lines also differ in width and dash, so the plots work in grey.
"""

from __future__ import annotations

import io
import re
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

INK, MUTED, FAINT, ACCENT, PAPER = "#1c1c1e", "#63636a", "#d6d6db", "#0a6ebd", "#fffffe"
_VARIABLES = {INK: "ink", MUTED: "muted", FAINT: "faint", ACCENT: "accent", PAPER: "paper"}
STYLE: dict[Any, Any] = {
    "svg.fonttype": "none", "svg.hashsalt": "stemma", "text.parse_math": False, "font.family": "sans-serif",
    "font.size": 11, "axes.edgecolor": MUTED, "axes.labelcolor": INK, "text.color": INK, "xtick.color": MUTED,
    "ytick.color": MUTED}
SERIES = [(ACCENT, "-", 2.4), (INK, "-", 1.3), (MUTED, (0, (6, 2)), 1.6), (INK, (0, (1, 1.5)), 1.6)]
_LINE_HEIGHT = 0.075     # of a label, as a fraction of the axes' height
LABEL_WIDTH = 16         # characters; longer labels are wrapped
_COLUMNS = 2             # of small plots


def learning_curve(series: Mapping[str, Sequence[tuple[float, float]]], baselines: Mapping[str, float],
                   x_label: str, y_label: str) -> str:
    """Lines, the first one in the accent colour, against constant baselines; returns an `<svg>` element."""
    with matplotlib.rc_context(STYLE):
        figure, axes = canvas(x_label, y_label)
        ends: list[tuple[float, str, str]] = []
        for label, value in baselines.items():
            axes.axhline(value, color=MUTED, linewidth=0.9, linestyle=(0, (4, 3)))
            ends.append((value, label, MUTED))
        for index, (label, points) in enumerate(series.items()):
            colour, dash, width = SERIES[index % len(SERIES)]
            x, y = zip(*points, strict=True)
            axes.plot(x, y, color=colour, linestyle=dash, linewidth=width, solid_capstyle="round",
                      marker="o" if len(points) == 1 else None)
            ends.append((y[-1], label, colour))
        axes.margins(x=0.02, y=0.08)
        label_ends(axes, ends)
        return to_svg(figure)


def small_curves(panels: Mapping[str, tuple[Mapping[str, Sequence[tuple[float, float]]], float | None]],
                 x_label: str, y_label: str) -> str:
    """A small plot per name with a common x axis: lines as in `learning_curve`, and a baseline if there is one."""
    with matplotlib.rc_context(STYLE):
        rows = -(-len(panels) // _COLUMNS)
        figure = Figure(figsize=(5.0, 0.5 + 1.3 * rows), layout="constrained")
        grid = figure.subplots(rows, _COLUMNS, squeeze=False, sharex=True).flatten()
        for axes, (name, (series, baseline)) in zip(grid, panels.items(), strict=False):
            axes.spines[["top", "right"]].set_visible(False)
            axes.set_title(textwrap.shorten(name, 30), loc="left", fontsize=9, color=INK)
            axes.tick_params(labelsize=8)
            axes.yaxis.set_major_locator(MaxNLocator(3))
            axes.xaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 2.5, 5, 10]))
            if baseline is not None:
                axes.axhline(baseline, color=MUTED, linewidth=0.9, linestyle=(0, (4, 3)))
            for (colour, dash, width), points in zip(SERIES, series.values(), strict=False):
                x, y = zip(*points, strict=True)
                axes.plot(x, y, color=colour, linestyle=dash, linewidth=0.7 * width, solid_capstyle="round",
                          marker="o" if len(points) == 1 else None, markersize=3)
            axes.margins(x=0.02, y=0.1)
        for axes in grid[len(panels):]:
            axes.set_axis_off()
        for axes in grid[max(0, len(panels) - _COLUMNS):len(panels)]:  # the last plot of each column
            axes.tick_params(labelbottom=True)
        figure.supxlabel(x_label, fontsize=10, color=INK)
        figure.suptitle(y_label, x=0.02, ha="left", fontsize=11, color=INK)
        return to_svg(figure)


def bars(groups: Sequence[tuple[str, Sequence[float]]], y_label: str,
         baseline: tuple[str, float] | None = None) -> str:
    """A bar per group with the mean of its values, and each value as a point; the last group has the accent colour."""
    with matplotlib.rc_context(STYLE):
        figure, axes = canvas("", y_label)
        for x, (_, values) in enumerate(groups):
            colour = ACCENT if x == len(groups) - 1 else FAINT
            axes.bar(x, np.mean(values), width=0.6, color=colour, linewidth=0)
            jitter = np.linspace(-0.12, 0.12, len(values)) if len(values) > 1 else np.zeros(1)
            axes.scatter(x + jitter, values, s=26, facecolor=PAPER, edgecolor=INK, linewidth=1.1, zorder=3)
            axes.annotate(f"{np.mean(values):.3g}", (x, max(0.0, *values)), xytext=(0, 7), ha="center",
                          textcoords="offset points", fontweight="bold")
        axes.set_xticks(range(len(groups)), [textwrap.fill(label, LABEL_WIDTH) for label, _ in groups], color=INK)
        axes.tick_params(axis="x", length=0)
        axes.set_xlim(-0.6, len(groups) - 0.4)
        axes.margins(y=0.14)
        if baseline is not None:
            axes.axhline(baseline[1], color=INK, linewidth=0.9, linestyle=(0, (4, 3)))
            label_ends(axes, [(baseline[1], baseline[0], MUTED)])
        return to_svg(figure)


def canvas(x_label: str, y_label: str, height: float = 3.2) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(5.0, height), layout="constrained")
    axes = figure.add_subplot()
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_xlabel(x_label)
    axes.set_title(y_label, loc="left", fontsize=11, color=INK, pad=10)  # horizontal, so it is easy to read
    axes.yaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 2.5, 5, 10]))
    axes.xaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.10g}")
    return figure, axes


def label_ends(axes: Axes, ends: Sequence[tuple[float, str, str]]) -> None:
    """Label each line at its right end; labels that would overlap are moved apart."""
    low, high = axes.get_ylim()
    axes.set_ylim(low, high)                      # the labels must not change the limits
    to_fraction = (axes.transScale + axes.transLimits).transform       # from data to axes fractions, on any scale
    left = axes.get_xlim()[0]
    wrapped = sorted((float(to_fraction((left, value))[1]), textwrap.fill(label, LABEL_WIDTH), colour)
                     for value, label, colour in ends)
    heights = np.array([(text.count("\n") + 1) * _LINE_HEIGHT for _, text, _ in wrapped])
    for middle, (_, text, colour) in zip(_spread_labels([y for y, _, _ in wrapped], heights), wrapped, strict=True):
        axes.annotate(text, (1, middle), xycoords="axes fraction", xytext=(6, 0), textcoords="offset points",
                      va="center", color=colour, fontsize=10, linespacing=1.05)


def _spread_labels(positions: Sequence[float], heights: np.ndarray) -> list[float]:
    """The closest ascending positions without overlap: overlapping labels form a cluster with a common centre."""
    clusters: list[tuple[list[float], list[float]]] = []          # (positions, heights) of labels that touch
    for position, height in zip(positions, heights, strict=True):
        clusters.append(([position], [height]))
        while len(clusters) > 1 and _bounds(*clusters[-2])[1] > _bounds(*clusters[-1])[0]:
            last_positions, sizes = clusters.pop()
            clusters[-1] = (clusters[-1][0] + last_positions, clusters[-1][1] + sizes)
    middles = []
    for members, sizes in clusters:
        bottom = _bounds(members, sizes)[0]
        for size in sizes:
            middles.append(bottom + size / 2)
            bottom += size
    return middles


def _bounds(positions: Sequence[float], sizes: Sequence[float]) -> tuple[float, float]:
    centre = sum(positions) / len(positions)
    return centre - sum(sizes) / 2, centre + sum(sizes) / 2


def to_svg(figure: Figure) -> str:
    file = io.StringIO()
    no_metadata = dict.fromkeys(("Date", "Creator", "Format", "Type"))       # equal plots give equal bytes
    figure.savefig(file, format="svg", transparent=True, metadata=no_metadata)
    svg = file.getvalue()
    svg = svg[svg.index("<svg"):]
    for colour, name in _VARIABLES.items():
        svg = svg.replace(colour, f"var(--{name}, {colour})")
    svg = re.sub(r"(?:'[^';]*', )+sans-serif", "system-ui, sans-serif", svg)
    svg = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>", "", svg, count=1, flags=re.DOTALL)   # would style the page
    return re.sub(r' (?:width|height)="[^"]*"', "", svg, count=2)                            # the page sets the size
