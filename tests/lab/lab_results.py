"""Example results in the format of `results.json`, written by hand; nothing is trained."""

from __future__ import annotations

from typing import Any

from stemma.recipe_loading import diff, list_recipes

BITS = {"key": "pseudo_bits_per_byte", "title": "pseudo-likelihood", "unit": "bits per byte", "higher": False,
        "about": "Bits per byte of held-out text, with each word masked in turn.", "per_token": False,
        "margin": 0.01}
ACCURACY = {"key": "classify.accuracy", "title": "classify: accuracy", "unit": "", "higher": True,
            "about": "The fraction of correctly classified examples.", "per_token": False, "margin": 0.01}
WHY = "the loss was not a number at step 40 <nan>"


def difference(measure: str, a: str, b: str, mean: float, half: float | None, verdict: str,
               **more: Any) -> dict[str, Any]:
    low, high = (None, None) if half is None else (mean - half, mean + half)
    return {"measure": measure, "a": a, "b": b, "mean": mean, "low": low, "high": high, "verdict": verdict,
            "seeds": 1 if half is None else 3, "p": None, "comparisons": 3, "margin": 0.01, "seed_error": 0.02,
            "text_error": 0.01, "texts": 8, "needed": 7 if verdict == "inconclusive" else None, "note": None} | more


def compare_results() -> dict[str, Any]:
    """Three recipes, three seeds, two measures; one cell failed. By bits roberta is best, against albert
    inconclusively; electra has no bits but the best accuracy."""
    scores = {"bert@tiny": (2.45, 0.71), "roberta@tiny": (2.31, 0.74), "albert@tiny": (2.33, 0.70),
              "electra@tiny": (None, 0.79)}
    bits, accuracy = BITS["key"], ACCURACY["key"]
    return _results(scores, kind="compare", title="bert, roberta, albert and electra on notes.txt",
                    failed=("albert@tiny", 2)) | {
        "differences": [
            difference(bits, "bert@tiny", "roberta@tiny", -0.14, 0.05, "better"),
            difference(bits, "bert@tiny", "albert@tiny", -0.12, 0.06, "better"),
            difference(bits, "roberta@tiny", "albert@tiny", 0.02, 0.04, "inconclusive"),
            difference(accuracy, "bert@tiny", "roberta@tiny", 0.03, 0.04, "inconclusive"),
            difference(accuracy, "bert@tiny", "albert@tiny", -0.01, 0.03, "inconclusive"),
            difference(accuracy, "bert@tiny", "electra@tiny", 0.08, 0.03, "better"),
            difference(accuracy, "roberta@tiny", "albert@tiny", -0.04, 0.03, "worse"),
            difference(accuracy, "roberta@tiny", "electra@tiny", 0.05, 0.06, "inconclusive"),
            difference(accuracy, "albert@tiny", "electra@tiny", 0.09, 0.04, "better")],
        "diffs": [_diff("bert@tiny", other) for other in ("roberta@tiny", "albert@tiny", "electra@tiny")]}


def one_seed_results() -> dict[str, Any]:
    results = _results({"bert@tiny": (2.45, 0.71), "roberta@tiny": (2.31, 0.74)}, kind="compare",
                       title="bert and roberta once", seeds=[0])
    return results | {"differences": [difference(BITS["key"], "bert@tiny", "roberta@tiny", -0.14, None, "one seed")]}


def ablate_results() -> dict[str, Any]:
    """Four changes: one improves, one hurts, one is inconclusive, one is possible on one side only."""
    parent, child, key = "bert@tiny", "roberta@tiny", BITS["key"]
    worth = {"corpus.packing": (-0.11, -0.09), "tokenizer": (0.05, 0.07), "objective.masked_lm.dynamic": (-0.01, 0.004),
             "objective.next_sentence": (None, -0.03)}
    verdicts = {"corpus.packing": "better", "tokenizer": "worse", "objective.masked_lm.dynamic": "inconclusive",
                "objective.next_sentence": "inconclusive"}
    scores: dict[str, tuple[float | None, float]] = {parent: (2.45, 0.71), child: (2.31, 0.74)}
    roles = {parent: ("parent", None), child: ("child", None)}
    differences, contributions = [difference(key, parent, child, -0.14, 0.05, "better")], []
    for change, (added, undone) in worth.items():
        sides: dict[str, dict[str, Any] | None] = {"added": None, "undone": None}
        for side, mean in (("added", added), ("undone", undone)):
            if mean is not None:
                name = f"{parent} + {change}" if side == "added" else f"{child} - {change}"
                a, b = (parent, name) if side == "added" else (name, child)
                scores[name] = (2.45 + mean if side == "added" else 2.31 - mean, 0.72)
                roles[name] = ("plus" if side == "added" else "minus", change)
                differences.append(difference(key, a, b, mean, 0.04, verdicts[change]))
                sides[side] = differences[-1]
        means = [mean for mean in (added, undone) if mean is not None]
        contributions.append({"change": change, "keys": [f"~ {change} old -> new"], **sides,
                              "mean": sum(means) / len(means)})
    return _results(scores, kind="ablate", title="Which change makes roberta?", roles=roles) | {
        "differences": differences, "contributions": contributions,
        "remainder": -0.14 - sum(entry["mean"] for entry in contributions),
        "hidden": [{"key": "training.batch_size", "why": "both have 16 at size tiny"}],
        "impossible": [{"variant": "bert@tiny + objective.next_sentence", "why": "packing segment_pair needs it"}],
        "diffs": [_diff(parent, child)]}


def scaling_results() -> dict[str, Any]:
    names = [f"{recipe}@{size}" for recipe in ("bert", "roberta") for size in ("tiny", "mini", "midi")]
    results = _results({name: (2.5 - 0.1 * index, 0.7) for index, name in enumerate(names)}, kind="compare",
                       title="bert and roberta by size")
    fits = []
    for index, recipe in enumerate(("bert", "roberta")):
        factor, exponent, sizes = 9 - index, 0.09, (4.4e6, 11.2e6, 28.8e6)
        law = [factor * x ** -exponent for x in sizes]
        fits.append({"recipe": recipe, "x": "parameters", "factor": factor, "exponent": exponent, "floor": None,
                     "points": [[x, y * (1 + 0.01 * (seed - 1)), seed] for x, y in zip(sizes, law, strict=True)
                                for seed in range(3)],
                     "exponent_low": 0.07, "exponent_high": 0.11, "measure": BITS["key"],
                     "band": [[x, 0.98 * y, y, 1.02 * y] for x, y in zip(sizes, law, strict=True)],
                     "note": "A point is a run."})
    differences = [difference(BITS["key"], a, b, -0.3, 0.1, "better") for index, a in enumerate(names)
                   for b in names[index + 1:]]
    return results | {"scaling": fits, "differences": differences}


def claim_results() -> dict[str, Any]:
    results = _results({"static masks": (2.45, 0.71), "new masks": (2.44, 0.71)}, kind="claim", title="Masks")
    masks_difference = difference(BITS["key"], "static masks", "new masks", -0.01, 0.03, "inconclusive")
    return results | {"differences": [masks_difference], "claim": {
        "name": "masks", "title": "Do new masks every time help?", "paper": "arXiv:1907.11692",
        "found": "New masks are as good as static ones or slightly better.", "verdict": "not seen at this size",
        "interval": [-0.04, 0.02], "text": "new masks minus static masks: -0.01 bits per byte. The paper says better: "
        "not seen at this size.", "note": None}}


def _results(scores: dict[str, tuple[float | None, float]], *, kind: str, title: str, seeds: list[int] | None = None,
             roles: dict[str, tuple[str, str | None]] | None = None,
             failed: tuple[str, int] | None = None) -> dict[str, Any]:
    seeds = [0, 1, 2] if seeds is None else seeds
    cells, table, variants = [], [], []
    for index, (name, (bits, accuracy)) in enumerate(scores.items()):
        recipe, _, suffix = name.partition("@")
        role, change = (roles or {}).get(name, ("recipe", None))
        variants.append({"name": name, "recipe": recipe, "size": suffix.split(" ")[0] or "tiny", "role": role,
                         "change": change, "parameters": 4_416_698 + 1000 * index,
                         "tokenizer": "byte_bpe 50,265" if recipe == "roberta" else "wordpiece 30,522"})
        finished = [_cell(name, seed, index, bits, accuracy) for seed in seeds if (name, seed) != failed]
        cells += finished
        if failed and failed[0] == name:
            cells.append({"variant": name, "seed": failed[1], "hash": "dead" * 8, "state": "failed", "why": WHY,
                          "scores": {}, "cost": {}, "curve": [], "digest": None})
        row: dict[str, Any] = {}
        for measure in (BITS, ACCURACY):
            values = [cell["scores"][measure["key"]] for cell in finished if measure["key"] in cell["scores"]]
            if values:
                row[measure["key"]] = {"mean": sum(values) / len(values), "values": values,
                                       "spread": 0.01 if len(values) > 1 else None}
        table.append({"variant": name, "scores": row, "cost": {
            key: sum(cell["cost"][key] for cell in finished) / len(finished) for key in finished[0]["cost"]}})
    lit = {variant["recipe"] for variant in variants}
    return {
        "version": 2, "kind": kind, "title": title, "command": f"stemma {kind} --corpus notes.txt --tokens 1000000",
        "commands": {name: f"stemma pretrain {name} --corpus notes.txt --out run --tokens 1000000 --seed 0"
                     for name in scores},
        "made": {"stemma": "0.1.0", "python": "3.11.9", "torch": "2.13.0", "machine": "x86_64, 2 cores, Linux",
                 "date": "2026-11-16"},
        "budget": {"unit": "tokens", "amount": 1_000_000}, "seeds": seeds,
        "estimated_seconds": 3000.0, "elapsed_seconds": 3300.0, "foretold_seconds": 3000.0,
        "took_seconds": 3300.0,
        "data": {"text": ["notes.txt"], "documents": 233, "held_out_documents": 5, "held_out_bytes": 200_000},
        "variants": variants, "measures": [BITS, ACCURACY], "cells": cells, "table": table, "differences": [],
        "contributions": None, "remainder": None, "hidden": [], "impossible": [], "diffs": [],
        "tree": [info.to_json() | {"lit": info.name in lit} for info in list_recipes()], "scaling": None, "claim": None}


def _cell(name: str, seed: int, index: int, bits: float | None, accuracy: float) -> dict[str, Any]:
    shift = 0.01 * (seed - 1)
    curve = [[step * 1e5 + 1000 * seed, step * 3e12, step * 4.0, 9 / (step + 1) ** 0.3 + 0.2 * index + 8 * shift]
             for step in range(1, 11)]
    scores = {ACCURACY["key"]: accuracy + shift} | ({} if bits is None else {BITS["key"]: bits + shift})
    return {"variant": name, "seed": seed, "hash": f"{index:x}{seed:x}c0ffee" * 4, "state": "done", "why": None,
            "scores": scores, "curve": curve, "digest": f"{index:x}{seed:x}ab" * 16,
            "cost": {"tokens": 1_000_000 + 2_000 * index, "steps": 490, "flops": (3.1 + index) * 1e13,
                     "seconds": 41.0 + 10 * index, "tokens_per_second": 24_000.0 / (1 + index),
                     "parameters": 4_416_698 + 1000 * index, "cell_seconds": 66.0 + 10 * index}}


def _diff(a: str, b: str) -> dict[str, Any]:
    return {"a": a, "b": b, "changes": [{"key": change.key, "from": change.before, "to": change.after}
                                        for change in diff(a, b)]}
