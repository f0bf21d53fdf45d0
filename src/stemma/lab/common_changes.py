"""The `key=value` changes of `compare` and `ablate`, which apply to all recipes of an experiment."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from stemma.recipe_files import raise_problems
from stemma.recipe_loading import Recipe
from stemma.schema.overrides import ABSENT, Problem

logger = logging.getLogger(__name__)


def with_common_changes(recipes: Sequence[Recipe], changes: Sequence[str]) -> tuple[list[Recipe], list[str]]:
    """The recipes with these changes, and notes. A recipe gets no change that has no effect on it, such as a warm-up
    where n-grams are counted; a change without effect on any recipe is refused."""
    unused = [recipe.unused_changes(changes) for recipe in recipes]
    if nowhere := [change for change in changes if all(change in without for without in unused)]:
        raise_problems("these recipes with your changes",
                       [Problem(change, ABSENT, "has no effect on any of them; leave it out") for change in nowhere])
    notes = [f"{', '.join(without)} {'has' if len(without) == 1 else 'have'} no effect on {recipe.label} and "
             f"{'is' if len(without) == 1 else 'are'} left out there."
             for recipe, without in zip(recipes, unused, strict=True) if without]
    for note in notes:
        logger.info(note)
    return [recipe.with_overrides([change for change in changes if change not in without])
            for recipe, without in zip(recipes, unused, strict=True)], notes
