"""Weights between two models that stand near each other: part of what was learnt is kept, less is forgotten.

A model and what it became by further training are joined by a line along which the loss stays low, and a point inside
it often beats both ends (WiSE-FT, arXiv:2109.01903). The share 1 is the trained model, 0 the one it started from; heads
that only the trained one has are taken as they are.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from stemma.atomic_files import atomic_folder, write_checksums
from stemma.checksummed_files import read_verified_object
from stemma.exchange.load import load
from stemma.exchange.save import write_model
from stemma.model import Model
from stemma.tasks.metrics import metrics_for
from stemma.tasks.runs.build_objective import build_task_objective
from stemma.tasks.runs.finetune_run import SPLITS, input_encoder_for, read_split, score_splits
from stemma.training.run_folder import MODEL, read_run

INTERPOLATED, FACTS = "blended", "blend.json"
WeightScorer = Callable[[Mapping[str, Tensor]], float]  # of weights; lower is better


def interpolate_weights(start: Mapping[str, Tensor], end: Mapping[str, Tensor], fraction: float) -> dict[str, Tensor]:
    def between(name: str, tensor: Tensor) -> Tensor:
        before = start.get(name)
        alike = before is not None and before.shape == tensor.shape and tensor.is_floating_point()
        return torch.lerp(before, tensor, fraction) if alike and before is not None else tensor.clone()

    return {name: between(name, tensor) for name, tensor in end.items()}


def interpolate_lm(run: Path, start: str | Path, fractions: Sequence[float], score_weights: WeightScorer) -> dict[str,
                                                                                                                  Any]:
    """Mix a trained language model with the one that it started from; of several shares, the judge's best."""
    model, before, after = _start_and_end(run, start)
    scores = {share: score_weights(interpolate_weights(before, after, share))
              for share in fractions} if len(fractions) > 1 else {}
    chosen = min(fractions, key=lambda share: scores.get(share, 0.0))
    model.network.load_state_dict(interpolate_weights(before, after, chosen))
    facts = {"share": chosen, "loss": {str(share): score for share, score in scores.items()}}
    with atomic_folder(run / INTERPOLATED) as place:
        _save_interpolated(model, place, facts)
    return facts


def interpolate_task(run: Path, start: str | Path, fractions: Sequence[float]) -> dict[str, Any]:
    """Mix a fine-tuned model with the one that it started from; of several shares, the best on the dev set."""
    model, before, after = _start_and_end(run, start)
    card = model.task_config()
    learner = build_task_objective(card, input_encoder_for(card, model.require_tokenizer()), read_run(run)[1].seed)
    examples = {part: read_split(run, part, card) for part in SPLITS}
    name, sign = card.metrics[0], 1 if metrics_for(card.kind)[card.metrics[0]].higher_is_better else -1

    def measured(place: Path, share: float) -> dict[str, Any]:
        model.network.load_state_dict(interpolate_weights(before, after, share))
        return score_splits(place, model, card, learner, examples)

    with atomic_folder(run / INTERPOLATED) as place:
        scores = {share: measured(place, share)["dev"][name] for share in fractions} if len(fractions) > 1 else {}
        chosen = max(fractions, key=lambda share: sign * scores.get(share, 0.0))
        facts = {"share": chosen, name: {str(share): score for share, score in scores.items()},
                 "metrics": measured(place, chosen)}
        _save_interpolated(model, place, facts)
    return facts


def read_interpolation(run: Path) -> dict[str, Any] | None:
    file = run / INTERPOLATED / FACTS
    if not file.is_file():
        return None
    return read_verified_object(file, f"delete {file.parent}, and `stemma resume` of the pipeline mixes it again.")


def _start_and_end(run: Path, start: str | Path) -> tuple[Model, dict[str, Tensor], dict[str, Tensor]]:
    model = load(run / MODEL)
    after = {name: tensor.clone() for name, tensor in model.network.state_dict().items()}
    return model, dict(load(start).network.state_dict()), after


def _save_interpolated(model: Model, folder: Path, facts: dict[str, object]) -> None:
    (folder / MODEL).mkdir()
    write_model(model, folder / MODEL)
    write_checksums(folder / MODEL)
    (folder / FACTS).write_text(json.dumps(facts, indent=1))
