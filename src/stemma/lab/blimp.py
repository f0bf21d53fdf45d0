"""Minimal pairs in an experiment (`--blimp DIR`): the accuracy of every pre-trained model, and its phenomena."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from statistics import fmean
from typing import Any

from stemma.atomic_files import sha256
from stemma.errors import UserError
from stemma.evaluation.minimal_pairs import PAIR_SUFFIXES, pair_scores, read_pairs, summarize_pairs
from stemma.evaluation.sentence_likelihood import choose_sentence_score, sentence_log_likelihoods
from stemma.lab.cells import Cell, scores_to_json, short_digest
from stemma.lab.experiment import Experiment, MetricInfo, Score
from stemma.lab.results_data import BlimpEntry
from stemma.model import Model
from stemma.text.readers import list_files
from stemma.training.run_graph import RunNode

BLIMP = MetricInfo("blimp", "minimal pairs", "accuracy", higher=True, margin=0.01,
                   about="Fraction of minimal pairs whose acceptable sentence has the higher likelihood (masked "
                         "models: pseudo-likelihood), mean over the phenomena. A tie counts as half; chance level 0.5.")


def pairs_digest(folder: str) -> str:
    """Digest of the files of minimal pairs in a folder."""
    return short_digest([[file.name, sha256(file)] for file in list_files([folder], PAIR_SUFFIXES)])


def pairs_node(cell: Cell, experiment: Experiment) -> RunNode:
    """The scores of a cell's model on the experiment's pairs. A lab without a digest is older than this key."""
    assert experiment.blimp is not None
    digest = experiment.blimp_digest or pairs_digest(experiment.blimp)
    return RunNode(cell.folder / "pairs" / digest, cell.retry_advice)


def score_blimp(model: Model, folder: str, limit: int | None = None) -> dict[str, Any]:
    """The stored result: accuracy with the terms of each pair, and the accuracy of each phenomenon. A model without a
    likelihood (ELECTRA's discriminator), or with a context too short for a sentence, has none."""
    pairs = read_pairs(folder, limit)
    try:
        kind = choose_sentence_score(model)
        likelihoods = sentence_log_likelihoods(model, [text for pair in pairs for text in (pair.good, pair.bad)], kind)
    except UserError as error:
        return {"scores": {}, "phenomena": {}, "why": error.message}
    scores = pair_scores(likelihoods[::2], likelihoods[1::2])
    counts = Counter(pair.phenomenon for pair in pairs)  # every phenomenon has the same weight
    weights = [len(pairs) / (len(counts) * counts[pair.phenomenon]) for pair in pairs]
    summary = summarize_pairs(pairs, scores)
    parts = tuple((score * weight, weight) for score, weight in zip(scores.tolist(), weights, strict=True))
    return {"scores": scores_to_json({BLIMP.key: Score(summary["accuracy"], parts)}),
            "phenomena": summary["phenomena"],
            "fields": {name: detail["accuracy"] for name, detail in summary["fields"].items()}, "scoring": kind}


def blimp_table(experiment: Experiment, cells: list[Cell]) -> BlimpEntry | None:
    """The accuracy of each variant on each phenomenon and field: means over the seeds."""
    if experiment.blimp is None:
        return None
    rows: dict[str, list[dict[str, Any]]] = {}
    without: dict[str, str] = {}
    for cell in cells:
        stored = pairs_node(cell, experiment).result() if cell.variant.pretrained else None
        if stored and stored["phenomena"]:
            rows.setdefault(cell.variant.name, []).append(stored)
        elif stored:
            without[cell.variant.name] = stored["why"]
    return {"folder": str(Path(experiment.blimp).name),
            "scoring": {name: results[0]["scoring"] for name, results in rows.items()},
            "phenomena": {name: _means(results, "phenomena") for name, results in rows.items()},
            "fields": {name: _means(results, "fields") for name, results in rows.items()}, "without": without}


def _means(results: list[dict[str, Any]], key: str) -> dict[str, float]:
    return {name: fmean(result[key][name] for result in results) for name in results[0][key]}
