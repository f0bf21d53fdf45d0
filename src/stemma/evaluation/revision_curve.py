"""Minimal pairs of a model, or of all revisions of a run as a curve over the words read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from stemma.device import choose_device
from stemma.errors import UserError
from stemma.evaluation.minimal_pairs import MinimalPair, score_pairs
from stemma.exchange.load import open_model
from stemma.model import Model
from stemma.training.revisions import Revision, list_revisions
from stemma.training.run_folder import MODEL, read_result


def score_models(model: Model | str | Path, pairs: Sequence[MinimalPair], scoring: str | None = None,
                 revisions: bool = False, on_progress: Callable[[int], None] = lambda sentences: None,
                 on_total: Callable[[int], None] = lambda models: None) -> dict[str, Any]:
    """The result of the model. With `revisions` also, under that key, one row for each revision of the run in the order
    of the words read; the model of a finished run comes last, and the other keys are those of the last row."""
    if not revisions:
        on_total(1)
        return score_pairs(_open(model), pairs, scoring, on_progress)
    if isinstance(model, Model):
        raise UserError("the revisions of a run are folders; give the folder of the run.")
    run = Path(model)
    saved = list_revisions(run)
    if not saved:
        raise UserError(f"{run} has no revisions; `stemma pretrain ... --checkpoint-words 1M,2M` saves some.")
    if (run / MODEL / "config.json").is_file():
        words = (read_result(run) or {}).get("words")  # none if the run has not stored its result
        saved = [*saved, Revision(MODEL, words, run / MODEL)]
    on_total(len(saved))
    rows, result = [], dict[str, Any]()
    for revision in saved:
        result = score_pairs(_open(revision.folder), pairs, scoring, on_progress)
        keys = ("accuracy", "interval", "ties", "phenomena", "fields")
        rows.append({"revision": revision.name, "words": revision.words, **{key: result[key] for key in keys}})
    return {**result, "revisions": rows}


def _open(model: Model | str | Path) -> Model:
    return model if isinstance(model, Model) else open_model(model, choose_device())
