"""Plots of an experiment: learning curves with bands over seeds, forest plot, waterfall of changes, scaling laws.

Colours are never the only difference: fill, line width or dash differ too, so the plots work in grey.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, MaxNLocator, NullLocator

from stemma.lab.report.lab_phrases import format_number, format_short, format_signed
from stemma.lab.report.plots import ACCENT, FAINT, INK, MUTED, PAPER, SERIES, STYLE, canvas, label_ends, to_svg
from stemma.lab.results_data import FitEntry

Points = Sequence[Sequence[float]]  # (x, y) pairs
_ROW = 0.34  # inches for a line of a chart that has names on its left
_NAME_WIDTH = 24  # characters; longer names are wrapped
_BAND = 0.16  # opacity of a band


class ForestRow(NamedTuple):
    """A difference as a point, with its interval if there is one."""

    name: str
    mean: float
    interval: tuple[float, float] | None
    is_significant: bool


class WaterfallStep(NamedTuple):
    """The contribution of one change from parent to child, with the intervals of its one or two differences."""

    name: str
    value: float
    intervals: Sequence[tuple[float, float] | None]
    verdict: str  # better, worse, or anything else: not significant


def draw_curves(series: Mapping[str, Sequence[Points]], x_label: str, y_label: str) -> str:
    """Per name, the mean over its runs as a line and their range as a band."""
    with matplotlib.rc_context(STYLE):
        figure, axes = canvas(x_label, y_label)
        axes.xaxis.set_major_formatter(lambda value, _: format_short(value))
        ends = [(_draw_band(axes, runs, index), name, SERIES[index % len(SERIES)][0])
                for index, (name, runs) in enumerate(series.items())]
        axes.margins(x=0.02, y=0.08)
        label_ends(axes, ends)
        return to_svg(figure)


def draw_curve_panels(panels: Mapping[str, Mapping[str, Sequence[Points]]], x_label: str, y_label: str) -> str:
    """A small plot per name, all with the same axes. A line's style depends on its index, even if others have no
    runs."""
    with matplotlib.rc_context(STYLE):
        rows = -(-len(panels) // 2)
        figure = Figure(figsize=(5.0, 0.6 + 1.5 * rows), layout="constrained")
        grid = figure.subplots(rows, 2, squeeze=False, sharex=True, sharey=True).flatten()
        for axes, (name, series) in zip(grid, panels.items(), strict=False):
            axes.spines[["top", "right"]].set_visible(False)
            axes.set_title(textwrap.shorten(name, 32), loc="left", fontsize=9, color=INK)
            axes.tick_params(labelsize=8, labelbottom=True)
            axes.xaxis.set_major_locator(MaxNLocator(3, steps=[1, 2, 2.5, 5, 10]))
            axes.xaxis.set_major_formatter(lambda value, _: format_short(value))
            for index, runs in enumerate(series.values()):
                if runs:
                    _draw_band(axes, runs, index, 0.7)
            axes.margins(x=0.02, y=0.08)
        for axes in grid[len(panels):]:
            axes.set_axis_off()
        figure.supxlabel(x_label, fontsize=10, color=INK)
        figure.suptitle(y_label, x=0.02, ha="left", fontsize=11, color=INK)
        return to_svg(figure)


def draw_forest(rows: Sequence[ForestRow], x_label: str, title: str) -> str:
    """Forest plot: differences with their intervals against zero; filled if significant, hollow if not."""
    with matplotlib.rc_context(STYLE):
        figure, axes = _row_axes([row.name for row in rows], x_label, title)
        axes.axvline(0, color=MUTED, linewidth=0.9, linestyle=(0, (4, 3)))
        for y, row in enumerate(rows):
            colour = ACCENT if row.is_significant else INK
            if row.interval:
                axes.plot(row.interval, (y, y), color=colour, linewidth=2.2 if row.is_significant else 1.2)
            axes.scatter(row.mean, y, s=34, facecolor=colour if row.is_significant else PAPER, edgecolor=colour,
                         zorder=3)
            _label_line(axes, y, format_signed(row.mean))
        axes.margins(x=0.06)
        return to_svg(figure)


def draw_waterfall(parent: tuple[str, float], steps: Sequence[WaterfallStep], child: tuple[str, float], x_label: str,
                   title: str) -> str:
    """Waterfall chart from the parent's value over each contribution to the child's; bars do not start at zero."""
    with matplotlib.rc_context(STYLE):
        figure, axes = _row_axes([parent[0], *(step.name for step in steps), child[0]], x_label, title)
        level = parent[1]
        for y, step in enumerate(steps, 1):
            fill, edge = {"better": (ACCENT, ACCENT), "worse": (PAPER, INK)}.get(step.verdict, (FAINT, FAINT))
            axes.barh(y, step.value, left=level, height=0.5, color=fill, edgecolor=edge, linewidth=1.2)
            for shift, interval in zip((-0.12, 0.12), step.intervals, strict=False):
                if interval:
                    ends = (level + interval[0], level + interval[1])
                    axes.plot(ends, (y + shift,) * 2, color=INK, linewidth=1.1, marker="|", markersize=4)
            axes.plot((level, level), (y - 1, y), color=MUTED, linewidth=0.8, linestyle=(0, (1, 2)), zorder=0)
            level += step.value
            _label_line(axes, y, format_signed(step.value))
        last = len(steps) + 1
        axes.plot((level, level), (last - 1, last), color=MUTED, linewidth=0.8, linestyle=(0, (1, 2)), zorder=0)
        for y, (_, value), colour in ((0, parent, INK), (last, child, ACCENT)):
            axes.scatter(value, y, s=60, marker="D", color=colour, zorder=3)
            _label_line(axes, y, format_number(value), "bold")
        axes.margins(x=0.06)
        return to_svg(figure)


def draw_scaling(fits: Sequence[FitEntry], x_label: str, y_label: str) -> str:
    """Points, the fitted power law and its band on log-log axes, where a law without a floor is a straight line."""
    with matplotlib.rc_context(STYLE):
        figure, axes = canvas(x_label, y_label)
        ends = []
        for index, fit in enumerate(fits):
            colour, dash, width = SERIES[index % len(SERIES)]
            x, y = np.array([point[:2] for point in fit["points"]], dtype=float).T
            axes.scatter(x, y, s=20, facecolor=PAPER, edgecolor=colour, linewidth=1.1, zorder=3)
            along = np.geomspace(x.min(), x.max(), 60)
            middle = (fit["floor"] or 0.0) + fit["factor"] * along ** -fit["exponent"]
            axes.plot(along, middle, color=colour, linestyle=dash, linewidth=width)
            if fit["band"]:
                at, low, _, high = np.array(fit["band"], dtype=float).T
                axes.fill_between(at, low, high, color=colour, alpha=_BAND, linewidth=0)
            ends.append((float(middle[-1]), fit["recipe"], colour))
        axes.set_xscale("log")
        axes.set_yscale("log")
        for axis, (low, high) in ((axes.xaxis, axes.get_xlim()), (axes.yaxis, axes.get_ylim())):
            axis.set_major_locator(FixedLocator(_few_ticks(low, high)))
            axis.set_minor_locator(NullLocator())
            axis.set_major_formatter(lambda value, _: format_short(value))
        label_ends(axes, ends)
        return to_svg(figure)


def _draw_band(axes: Axes, runs: Sequence[Points], style_index: int, thin: float = 1.0) -> float:
    """Draw one line with its band; returns the last value of the line."""
    colour, dash, width = SERIES[style_index % len(SERIES)]
    curves = [np.array(run, dtype=float).T for run in runs]
    # runs are validated at slightly different steps, so they are interpolated linearly
    first, last = max(x[0] for x, _ in curves), min(x[-1] for x, _ in curves)
    grid = np.unique(np.concatenate([x[(x >= first) & (x <= last)] for x, _ in curves]))
    grid = grid if len(grid) else curves[0][0]
    values = np.stack([np.interp(grid, x, y) for x, y in curves])  # (runs, points)
    if len(curves) > 1:
        axes.fill_between(grid, values.min(0), values.max(0), color=colour, alpha=_BAND, linewidth=0)
    axes.plot(grid, values.mean(0), color=colour, linestyle=dash, linewidth=thin * width,
              marker="o" if len(grid) == 1 else None, markersize=4)
    return float(values.mean(0)[-1])


def _row_axes(names: Sequence[str], x_label: str, title: str) -> tuple[Figure, Axes]:
    """Axes with one row per name, the first one on top."""
    wrapped = [_wrap_label(name) for name in names]
    lines = sum(max(1.0, 0.75 * (name.count("\n") + 1)) for name in wrapped)
    figure, axes = canvas(x_label, "", height=1.0 + _ROW * lines)
    figure.suptitle(title, x=0.01, ha="left", fontsize=11, color=INK)  # of the figure: it is wider than the axes
    axes.spines["left"].set_visible(False)
    axes.set_yticks(range(len(names)), wrapped, color=INK, fontsize=10)
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.xaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 2.5, 5, 10]))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:.4g}".replace("-", "\u2212"))
    return figure, axes


def _wrap_label(name: str) -> str:
    """Wrap a name after spaces and after the dots of a key."""
    lines = [""]
    for piece in re.split(r"(?<=[. ])", name):
        if lines[-1] and len(lines[-1] + piece.rstrip()) > _NAME_WIDTH:
            lines.append("")
        lines[-1] += piece
    return "\n".join(line.rstrip() for line in lines)


def _label_line(axes: Axes, y: float, text: str, weight: str = "normal") -> None:
    """Write a number to the right of its row."""
    axes.annotate(text, (1, y), xycoords=("axes fraction", "data"), xytext=(6, 0), textcoords="offset points",
                  va="center", fontsize=10, fontweight=weight)


def _few_ticks(low: float, high: float) -> list[float]:
    """Few round ticks for a logarithmic axis of any range."""
    if high < 4 * low:
        ticks = list(MaxNLocator(4, steps=[1, 2, 5, 10]).tick_values(low, high))
    else:
        powers = range(int(np.floor(np.log10(low))), int(np.ceil(np.log10(high))) + 1)
        digits = (1, 2, 5) if high < 100 * low else (1,)
        ticks = [digit * 10.0 ** power for power in powers[::-(-len(powers) // 6)] for digit in digits]
    return [tick for tick in ticks if low <= tick <= high]
