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

from stemma.exchange.load import load
from stemma.exchange.model import Model
from stemma.exchange.save import write_model
from stemma.files import folder_atomically, write_checksums
from stemma.stored import read_object
from stemma.tasks.learners import build_learner
from stemma.tasks.learning import SETS, layout_of, read_lines, scored
from stemma.tasks.metrics import metrics_of
from stemma.training.run import MODEL, read_run

BLENDED, FACTS = "blended", "blend.json"
Judge = Callable[[Mapping[str, Tensor]], float]  # of weights; lower is better


def mixed(start: Mapping[str, Tensor], end: Mapping[str, Tensor], share: float) -> dict[str, Tensor]:
    def between(name: str, tensor: Tensor) -> Tensor:
        before = start.get(name)
        alike = before is not None and before.shape == tensor.shape and tensor.is_floating_point()
        return torch.lerp(before, tensor, share) if alike and before is not None else tensor.clone()

    return {name: between(name, tensor) for name, tensor in end.items()}


def blend_text(run: Path, start: str | Path, shares: Sequence[float], judge: Judge) -> dict[str, Any]:
    """Mix a trained language model with the one that it started from; of several shares, the judge's best."""
    model, before, after = _ends(run, start)
    scores = {share: judge(mixed(before, after, share)) for share in shares} if len(shares) > 1 else {}
    chosen = min(shares, key=lambda share: scores.get(share, 0.0))
    model.network.load_state_dict(mixed(before, after, chosen))
    facts = {"share": chosen, "loss": {str(share): score for share, score in scores.items()}}
    with folder_atomically(run / BLENDED) as place:
        _write(model, place, facts)
    return facts


def blend_task(run: Path, start: str | Path, shares: Sequence[float]) -> dict[str, Any]:
    """Mix a fine-tuned model with the one that it started from; of several shares, the best on the dev set."""
    model, before, after = _ends(run, start)
    card = model.card()
    learner = build_learner(card, layout_of(card, model.needs_tokenizer()), read_run(run)[1].seed)
    examples = {part: read_lines(run, part, card) for part in SETS}
    name, sign = card.metrics[0], 1 if metrics_of(card.kind)[card.metrics[0]].higher_is_better else -1

    def measured(place: Path, share: float) -> dict[str, Any]:
        model.network.load_state_dict(mixed(before, after, share))
        return scored(place, model, card, learner, examples)

    with folder_atomically(run / BLENDED) as place:
        scores = {share: measured(place, share)["dev"][name] for share in shares} if len(shares) > 1 else {}
        chosen = max(shares, key=lambda share: sign * scores.get(share, 0.0))
        facts = {"share": chosen, name: {str(share): score for share, score in scores.items()},
                 "metrics": measured(place, chosen)}
        _write(model, place, facts)
    return facts


def read_blend(run: Path) -> dict[str, Any] | None:
    file = run / BLENDED / FACTS
    if not file.is_file():
        return None
    return read_object(file, f"delete {file.parent}, and `stemma resume` of the pipeline mixes it again.")


def _ends(run: Path, start: str | Path) -> tuple[Model, dict[str, Tensor], dict[str, Tensor]]:
    model = load(run / MODEL)
    after = {name: tensor.clone() for name, tensor in model.network.state_dict().items()}
    return model, dict(load(start).network.state_dict()), after


def _write(model: Model, place: Path, facts: dict[str, object]) -> None:
    (place / MODEL).mkdir()
    write_model(model, place / MODEL)
    write_checksums(place / MODEL)
    (place / FACTS).write_text(json.dumps(facts, indent=1))
