"""The changes of the quickstart's recipe from BERT, each with a reason.

A reason applies to all keys that start with its key; the first match counts. The reasons say why a change was made;
`stemma ablate` measures whether it helps.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from stemma.lab.report.run_html import value_text
from stemma.recipe_loading import Recipe, diff

ANCESTOR = "bert"
NO_EFFECT = "no effect"
REASONS = {
    "objective.next_sentence": "one objective is enough: later models gained little from sentence pairs",
    "objective.masked_lm.dynamic": "dynamic masking, because training takes many epochs",
    "objective.masked_lm": "more masked tokens per step, all of them replaced by [MASK]",
    "corpus.sequence_length": "short rows: a masked word is mostly predicted from nearby words",
    "corpus.first_phase": f"{NO_EFFECT} here: all rows have one length",
    "corpus": "rows are filled with running text, so no step is spent on padding or sentence pairs",
    "network.layers": "a network that trains in minutes",
    "network.width": "a network that trains in minutes",
    "network.feedforward": "a network that trains in minutes",
    "network.heads": "a network that trains in minutes",
    "network.transition": "a gated feed-forward layer (GeGLU), as in modern networks",
    "network.activation": "a gated feed-forward layer (GeGLU), as in modern networks",
    "network.norm": "pre-norm: gradients reach every layer from the first step",
    "network.embedding": "no segments, because there are no sentence pairs",
    "network.position": "relative positions: what is learned about a neighbour holds at every position",
    "network.attention.windows": "sliding-window attention in some layers, which costs less",
    "network.attention.bias": "no biases: fewer parameters to learn",
    "network.bias": "no biases: fewer parameters to learn",
    "network.initialization": "initial weights with which attention and residual connections learn from the first step",
    "network.dropout": "no dropout: a few minutes are too short to overfit",
    "network.attention": "no dropout: a few minutes are too short to overfit",
    "tokenizer": "a small vocabulary, so that every token occurs often enough",
    "training.optimizer": "an optimizer that learns more in each step",
    "training.schedule": "a learning rate that stays high and decays at the end",
    "training.checkpoint_every": f"how often the run saves and validates; {NO_EFFECT} on the model",
    "training.validate_every": f"how often the run saves and validates; {NO_EFFECT} on the model",
    "training.keep_checkpoints": f"how often the run saves and validates; {NO_EFFECT} on the model",
    "training.steps": f"{NO_EFFECT} here: the budget of this run is in minutes",
    "training": "many small steps with a high learning rate",
    "finetuning": f"{NO_EFFECT} here: a default of later fine-tuning",
}


def explain_changes(recipe: Recipe) -> list[dict[str, Any]]:
    """Each change from the ancestor: `key`, `from`, `to` and `why`."""
    return [{"key": change.key, "from": change.before, "to": change.after, "why": reason(change.key)}
            for change in diff(ANCESTOR, recipe)]


def reason(key: str) -> str:
    return next((why for start, why in REASONS.items() if key.startswith(start)), "")


def group_by_reason(changes: Iterable[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """(reason, changes) for each reason, without changes that have no effect."""
    by_reason: dict[str, list[str]] = {}
    for change in changes:
        if NO_EFFECT not in change["why"]:
            by_reason.setdefault(change["why"], []).append(_format_change(change))
    return [(why, ", ".join(texts)) for why, texts in by_reason.items()]


def _format_change(change: Mapping[str, object]) -> str:
    if change["to"] is None:
        return f"without {change['key']}"
    if change["from"] is None:
        return f"{change['key']} {value_text(change['to'])}"
    return f"{change['key']} {value_text(change['from'])} -> {value_text(change['to'])}"
