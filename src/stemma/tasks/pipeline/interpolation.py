"""Weight interpolation between the start model and the trained model, to reduce forgetting (WiSE-FT, arXiv:2109.01903).

The loss stays low along the line between both, and a point inside often beats both ends. Fraction 1 is the trained
model, 0 the start model; heads that only the trained model has are copied.
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
WeightScorer = Callable[[Mapping[str, Tensor]], float]  # held-out loss of weights; lower is better


def interpolate_weights(start: Mapping[str, Tensor], end: Mapping[str, Tensor], fraction: float) -> dict[str, Tensor]:
    def between(name: str, tensor: Tensor) -> Tensor:
        before = start.get(name)
        if before is None or before.shape != tensor.shape or not tensor.is_floating_point():
            return tensor.clone()
        return torch.lerp(before, tensor, fraction)

    return {name: between(name, tensor) for name, tensor in end.items()}


def interpolate_lm(run: Path, start: str | Path, fractions: Sequence[float],
                   score_weights: WeightScorer) -> dict[str, Any]:
    """Interpolate a trained language model with its start model; the best of several fractions by `score_weights`."""
    model, before, after = _start_and_end(run, start)
    scores = {fraction: score_weights(interpolate_weights(before, after, fraction))
              for fraction in fractions} if len(fractions) > 1 else {}
    best = min(fractions, key=lambda fraction: scores.get(fraction, 0.0))
    model.network.load_state_dict(interpolate_weights(before, after, best))
    facts = {"share": best, "loss": {str(fraction): score for fraction, score in scores.items()}}
    with atomic_folder(run / INTERPOLATED) as folder:
        _save_interpolated(model, folder, facts)
    return facts


def interpolate_task(run: Path, start: str | Path, fractions: Sequence[float]) -> dict[str, Any]:
    """Interpolate a fine-tuned model with its start model; the best of several fractions on the dev set."""
    model, before, after = _start_and_end(run, start)
    task_config = model.task_config()
    input_encoder = input_encoder_for(task_config, model.require_tokenizer())
    objective = build_task_objective(task_config, input_encoder, read_run(run)[1].seed)
    examples = {split: read_split(run, split, task_config) for split in SPLITS}
    name = task_config.metrics[0]
    sign = 1 if metrics_for(task_config.kind)[name].higher_is_better else -1

    def score(folder: Path, fraction: float) -> dict[str, Any]:
        model.network.load_state_dict(interpolate_weights(before, after, fraction))
        return score_splits(folder, model, task_config, objective, examples)

    with atomic_folder(run / INTERPOLATED) as folder:
        scores = {fraction: score(folder, fraction)["dev"][name]
                  for fraction in fractions} if len(fractions) > 1 else {}
        best = max(fractions, key=lambda fraction: sign * scores.get(fraction, 0.0))
        facts = {"share": best, name: {str(fraction): value for fraction, value in scores.items()},
                 "metrics": score(folder, best)}
        _save_interpolated(model, folder, facts)
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
