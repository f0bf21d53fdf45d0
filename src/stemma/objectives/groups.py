"""Which objectives share a forward pass."""

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
    task_id: int | None  # the number of the task vector that their rows carry


@dataclass(frozen=True)
class ObjectiveGroup:
    """Objectives that share packing, visibility, templates and task vector, and therefore one forward pass."""

    key: GroupKey
    objectives: tuple[Objective, ...]

    @property
    def packing(self) -> str:
        return self.key.packing

    @property
    def packing_settings(self) -> type[PackingSettings]:
        """What its packing says of itself."""
        return packing_settings(self.key.packing)

    @property
    def attention_mask_kind(self) -> AttentionMaskKind:
        return self.key.attention_mask_kind

    @property
    def is_seq2seq(self) -> bool:
        """Whether its texts are read and written apart."""
        return any(objective.settings.needs_decoder for objective in self.objectives)

    def raw_text_length(self, length: int) -> int:
        """The places that a row of text needs to fill a window of this length once it is corrupted."""
        special = sum(slot.name not in ("A", "B") for slot in parse_template(self.key.single_template))
        return special + max(objective.raw_text_length(length, special) for objective in self.objectives)

    @property
    def num_static_copies(self) -> int | None:
        """Static data only where every objective that cares is static."""
        wanted = [objective.num_static_copies for objective in self.objectives if objective.num_static_copies
                  is not None]
        return max(wanted) if wanted else None

    def reversed_rows(self, rows: int) -> np.ndarray | None:
        """(rows,) which rows of a batch are read from their text's end; None: no row is."""
        chosen = np.any([objective.reversed_rows(rows) for objective in self.objectives], axis=0)
        return chosen if chosen.any() else None


def group_objectives(recipe: Recipe, objectives: list[Objective]) -> list[ObjectiveGroup]:
    """In recipe order; the first objective of a kind opens its group. Of those that guess tokens a group has one: a
    second one would hide what the first one left to guess from, so it opens a group of its own."""
    corpus = recipe.settings.corpus
    groups: dict[tuple[GroupKey, int], list[Objective]] = {}
    guessing: Counter[GroupKey] = Counter()
    for objective in objectives:
        settings = objective.settings
        kind = GroupKey(settings.packing or corpus.packing, objective.attention_mask_kind,
                        settings.single or corpus.single,
                    settings.pair or corpus.pair, settings.task_id)
        groups.setdefault((kind, guessing[kind] if objective.predicts_tokens else 0), []).append(objective)
        guessing[kind] += objective.predicts_tokens
    return [ObjectiveGroup(kind, tuple(members)) for (kind, _), members in groups.items()]
