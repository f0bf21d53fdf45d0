"""Bits per byte of text that was not seen before, against minutes: the curves of a finished ablation.

    python benchmarks/learning_fast/curves.py LAB --show "masked_before + training.optimizer" --out masked.svg

LAB is the folder of `stemma ablate benchmarks/learning_fast/KIND_after.toml`. A run reads less than one epoch, so its
training loss is a loss on new text: it is smoothed over SMOOTHING tokens and multiplied by the tokens per byte of the
run's own tokenizer, so that vocabularies can be compared. For a masked model it is the loss of masked tokens, as if
every token was masked. Lines are means over seeds, bands their range.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np

from stemma.lab.report.lab_plots import draw_curves
from stemma.text.tokenizer import Tokenizer

SMOOTHING = 50_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("lab", type=Path)
    parser.add_argument("--show", action="append", default=[], metavar="VARIANT",
                        help="a variant besides child and parent; may be repeated")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    results = json.loads((options.lab / "results.json").read_text(encoding="utf-8"))
    variants = json.loads((options.lab / "lab.json").read_text(encoding="utf-8"))["variants"]
    names = {variant["role"]: variant["name"] for variant in variants}
    held_out = [json.loads(line)["text"] for line in
                (options.lab / "text" / "held_out.jsonl").read_text(encoding="utf-8").splitlines()]
    series: dict[str, list[list[tuple[float, float]]]] = {}
    for name in [names["child"], names["parent"], *options.show]:
        for cell in results["cells"]:
            if cell["variant"] == name:
                series.setdefault(name, []).append(curve(options.lab / "cells" / cell["hash"] / "run", held_out))
    options.out.write_text(draw_curves(series, "minutes", "bits per byte of new text"), encoding="utf-8")


def curve(run: Path, held_out: Sequence[str]) -> list[tuple[float, float]]:
    """(minutes, bits per byte) at every logged step, from the time that SMOOTHING tokens were read."""
    entries = [json.loads(line) for line in (run / "log.jsonl").read_text(encoding="utf-8").splitlines()]
    entries = [entry for entry in entries if "losses" in entry]
    losses = np.array([entry["loss"] for entry in entries])
    interval = (entries[-1]["tokens"] - entries[0]["tokens"]) / (len(entries) - 1)
    window = max(1, min(round(SMOOTHING / interval), len(losses)))
    smooth = np.convolve(losses, np.full(window, 1 / window), "valid")
    scale = tokens_per_byte(run, tuple(held_out)) / math.log(2)
    return [(entry["seconds"] / 60, loss * scale) for entry, loss in zip(entries[window - 1:], smooth, strict=True)]


@cache
def tokens_per_byte(run: Path, texts: tuple[str, ...]) -> float:
    encodings = Tokenizer.load(run / "model").encode_batch(list(texts), special=False)
    return sum(len(encoding.ids) for encoding in encodings) / sum(len(text.encode()) for text in texts)


if __name__ == "__main__":
    main()
