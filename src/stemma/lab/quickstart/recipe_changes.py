"""What the quickstart's recipe changes from BERT, each change with a reason in plain words.

A reason stands for all keys that begin like it, and the first that fits counts. The reasons are why a change was made;
whether each of them pays can be measured with `stemma ablate`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from stemma.lab.report.run_html import value_text
from stemma.recipe_loading import Recipe, diff

ANCESTOR = "bert"
NO_EFFECT = "no effect"
REASONS = {
    "objective.next_sentence": "one task is enough: sentence pairs taught later models little",
    "objective.masked_lm.dynamic": "new masks in every epoch, because the text is read many times",
    "objective.masked_lm": "more masked tokens in each step, and every one of them has to be predicted",
    "corpus.sequence_length": "short rows: a hidden word is mostly predicted from its neighbourhood",
    "corpus.first_phase": f"{NO_EFFECT} here: all rows have one length",
    "corpus": "rows are filled with running text, so no step is spent on padding or sentence pairs",
    "network.layers": "a network that learns in minutes",
    "network.width": "a network that learns in minutes",
    "network.feedforward": "a network that learns in minutes",
    "network.heads": "a network that learns in minutes",
    "network.transition": "a gated feed-forward layer (GeGLU), as modern networks have it",
    "network.activation": "a gated feed-forward layer (GeGLU), as modern networks have it",
    "network.norm": "pre-norm: gradients reach every layer from the first step",
    "network.embedding": "no segments, because there are no sentence pairs",
    "network.position": "relative distances: what is learnt about a neighbour holds at every position",
    "network.attention.windows": "some layers see only the neighbourhood, which costs less",
    "network.attention.bias": "no biases: fewer parameters to learn",
    "network.bias": "no biases: fewer parameters to learn",
    "network.initialization": "initial weights with which attention and residual connections learn from the first step",
    "network.dropout": "no dropout: a few minutes are too short to memorise the text",
    "network.attention": "no dropout: a few minutes are too short to memorise the text",
    "tokenizer": "a small vocabulary of this text, so that every token is seen often enough",
    "training.optimizer": "an optimizer that learns more in each step",
    "training.schedule": "a learning rate that stays high and cools down at the end",
    "training.checkpoint_every": f"how often the run saves and measures itself; {NO_EFFECT} on what is learnt",
    "training.validate_every": f"how often the run saves and measures itself; {NO_EFFECT} on what is learnt",
    "training.keep_checkpoints": f"how often the run saves and measures itself; {NO_EFFECT} on what is learnt",
    "training.steps": f"{NO_EFFECT} here: this run is as long as its minutes",
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
    """Changes that share a reason together, without those that have no effect: (reason, what changes)."""
    found: dict[str, list[str]] = {}
    for change in changes:
        if NO_EFFECT not in change["why"]:
            found.setdefault(change["why"], []).append(_format_change(change))
    return [(why, ", ".join(told)) for why, told in found.items()]


def _format_change(change: Mapping[str, object]) -> str:
    if change["to"] is None:
        return f"without {change['key']}"
    if change["from"] is None:
        return f"{change['key']} {value_text(change['to'])}"
    return f"{change['key']} {value_text(change['from'])} -> {value_text(change['to'])}"
