"""Groups of objectives that share a forward pass."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from stemma.recipe_loading import Recipe
from stemma.schema.corpus import PackingSettings, packing_settings, parse_template
from stemma.schema.objective import AttentionMaskKind

if TYPE_CHECKING:
    from stemma.objectives.base import Objective


@dataclass(frozen=True)
class GroupKey:
    """What objectives must have in common to share a forward pass."""

    packing: str
    attention_mask_kind: AttentionMaskKind
    single_template: str
    pair_template: str
    task_id: int | None  # task embedding of their rows


@dataclass(frozen=True)
class ObjectiveGroup:
    """Objectives with the same packing, attention mask, templates and task id: they share one forward pass."""

    key: GroupKey
    objectives: tuple[Objective, ...]

    @property
    def packing(self) -> str:
        return self.key.packing

    @property
    def packing_settings(self) -> type[PackingSettings]:
        """The settings class of its packing."""
        return packing_settings(self.key.packing)

    @property
    def attention_mask_kind(self) -> AttentionMaskKind:
        return self.key.attention_mask_kind

    @property
    def is_seq2seq(self) -> bool:
        """Whether the group has an encoder input and a decoder target."""
        return any(objective.settings.needs_decoder for objective in self.objectives)

    def raw_text_length(self, length: int) -> int:
        """Row length before corruption that fills a sequence of `length` after it, special tokens included."""
        special = sum(slot.name not in ("A", "B") for slot in parse_template(self.key.single_template))
        return special + max(objective.raw_text_length(length, special) for objective in self.objectives)

    @property
    def num_static_copies(self) -> int | None:
        """Number of statically masked copies; None if no objective uses static masking."""
        copies = [objective.num_static_copies for objective in self.objectives
                  if objective.num_static_copies is not None]
        return max(copies) if copies else None

    def reversed_rows(self, rows: int) -> np.ndarray | None:
        """(rows,) True for rows whose text is reversed; None if there are none."""
        reverses = np.any([objective.reversed_rows(rows) for objective in self.objectives], axis=0)
        return reverses if reverses.any() else None


def group_objectives(recipe: Recipe, objectives: list[Objective]) -> list[ObjectiveGroup]:
    """Group the objectives, in recipe order. A group has at most one token-prediction objective: a second one would
    mask the context of the first, so it gets its own group."""
    corpus = recipe.settings.corpus
    groups: dict[tuple[GroupKey, int], list[Objective]] = {}
    num_predicting: Counter[GroupKey] = Counter()
    for objective in objectives:
        settings = objective.settings
        key = GroupKey(settings.packing or corpus.packing, objective.attention_mask_kind,
                       settings.single or corpus.single, settings.pair or corpus.pair, settings.task_id)
        groups.setdefault((key, num_predicting[key] if objective.predicts_tokens else 0), []).append(objective)
        num_predicting[key] += objective.predicts_tokens
    return [ObjectiveGroup(key, tuple(members)) for (key, _), members in groups.items()]
