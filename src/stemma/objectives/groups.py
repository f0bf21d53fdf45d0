"""Which objectives share a forward pass."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from stemma.lineage import Recipe
from stemma.schema.corpus import PackingSettings, packing_of, parse_template
from stemma.schema.task import Sees

if TYPE_CHECKING:
    from stemma.objectives.base import Objective


@dataclass(frozen=True)
class Kind:
    """What objectives must have in common to share a forward pass."""

    packing: str
    visibility: Sees
    single: str
    pair: str
    task: int | None  # the number of the task vector that their rows carry


@dataclass(frozen=True)
class Group:
    """Objectives that share packing, visibility, templates and task vector, and therefore one forward pass."""

    kind: Kind
    objectives: tuple[Objective, ...]

    @property
    def packing(self) -> str:
        return self.kind.packing

    @property
    def facts(self) -> type[PackingSettings]:
        """What its packing says of itself."""
        return packing_of(self.kind.packing)

    @property
    def visibility(self) -> Sees:
        return self.kind.visibility

    @property
    def decodes(self) -> bool:
        """Whether its texts are read and written apart."""
        return any(objective.settings.needs_decoder for objective in self.objectives)

    def raw_length(self, length: int) -> int:
        """The places that a row of text needs to fill a window of this length once it is corrupted."""
        special = sum(slot.name not in ("A", "B") for slot in parse_template(self.kind.single))
        return special + max(objective.raw_length(length, special) for objective in self.objectives)

    @property
    def copies(self) -> int | None:
        """Static data only where every objective that cares is static."""
        wanted = [objective.copies for objective in self.objectives if objective.copies is not None]
        return max(wanted) if wanted else None

    def backward(self, rows: int) -> np.ndarray | None:
        """(rows,) which rows of a batch are read from their text's end; None: no row is."""
        chosen = np.any([objective.backward_rows(rows) for objective in self.objectives], axis=0)
        return chosen if chosen.any() else None


def group_objectives(recipe: Recipe, objectives: list[Objective]) -> list[Group]:
    """In recipe order; the first objective of a kind opens its group. Of those that guess tokens a group has one: a
    second one would hide what the first one left to guess from, so it opens a group of its own."""
    corpus = recipe.settings.corpus
    groups: dict[tuple[Kind, int], list[Objective]] = {}
    guessing: Counter[Kind] = Counter()
    for objective in objectives:
        settings = objective.settings
        kind = Kind(settings.packing or corpus.packing, objective.visibility, settings.single or corpus.single,
                    settings.pair or corpus.pair, settings.task_id)
        groups.setdefault((kind, guessing[kind] if objective.guesses_tokens else 0), []).append(objective)
        guessing[kind] += objective.guesses_tokens
    return [Group(kind, tuple(members)) for (kind, _), members in groups.items()]
