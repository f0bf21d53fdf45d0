"""A picture of the occurrences of a word: for each model, its vectors along their two directions of largest variance.

Senses differ in shape, fill and colour, so the picture works in grey. The number beside a point is its line.
"""

from __future__ import annotations

import textwrap
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from stemma.lab.report.plots import ACCENT, INK, MUTED, PAPER, STYLE, to_svg

COLUMNS = 2
MAX_NUMBERED = 60  # points of a panel with a number
MARKERS = (("o", ACCENT, ACCENT), ("s", PAPER, INK), ("^", MUTED, MUTED), ("D", PAPER, ACCENT), ("v", INK, INK),
           ("P", PAPER, MUTED))  # shape, fill, edge


def draw_senses(result: dict[str, Any]) -> str:
    """The result of `evaluation.senses.senses` as an `<svg>` element."""
    models, occurrences = result["models"], result["occurrences"]
    groups = [*result["senses"], *([None] if any(item["sense"] is None for item in occurrences) else [])]
    with matplotlib.rc_context(STYLE):
        columns = min(COLUMNS, len(models))
        rows = -(-len(models) // columns)
        figure = Figure(figsize=(3.2 * columns, 0.9 + 2.7 * rows), layout="constrained")
        grid = figure.subplots(rows, columns, squeeze=False).flatten()
        for axes, model in zip(grid, models, strict=False):
            points = np.array(model["coordinates"])
            for index, sense in enumerate(groups):
                shape, fill, edge = MARKERS[index % len(MARKERS)]
                at = [i for i, item in enumerate(occurrences) if item["sense"] == sense]
                axes.scatter(points[at, 0], points[at, 1], s=30, marker=shape, facecolor=fill, edgecolor=edge,
                             linewidth=1.1, label=sense or "unlabelled")
            if not model["tied"] and len(occurrences) <= MAX_NUMBERED:
                for (x, y), item in zip(points, occurrences, strict=True):
                    axes.annotate(str(item["line"]), (x, y), xytext=(4, 3), textcoords="offset points", fontsize=7,
                                  color=MUTED)
            axes.set_title(textwrap.shorten(f"{model['model']}, {layer_title(model['layer'])}", 40), loc="left",
                           fontsize=9, color=INK)
            axes.set_xlabel("one vector for all occurrences" if model["tied"] else "", fontsize=9)
            axes.set_xticks([])
            axes.set_yticks([])
            axes.margins(0.12)
        for axes in grid[len(models):]:
            axes.set_axis_off()
        if len(groups) > 1:
            handles, labels = grid[0].get_legend_handles_labels()
            figure.legend(handles, labels, loc="outside lower center", ncols=min(4, len(groups)), frameon=False,
                          fontsize=9)
        figure.suptitle(f"{result['word']}: two principal components", x=0.02, ha="left", fontsize=11, color=INK)
        return to_svg(figure)


def layer_title(layer: str) -> str:
    """A layer in a table or above a plot: layer 12, static, mean of layers."""
    return {"static": "static", "mean": "mean of layers"}.get(layer, f"layer {layer}")
