"""What a recipe's objectives ask of a corpus: refused where it cannot be given, or the objective is switched off."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stemma.corpus.corpus import Corpus
from stemma.corpus.subset import CorpusSubset
from stemma.errors import UserError
from stemma.objectives.base import HOW_TO_ANNOTATE
from stemma.objectives.build import build_objectives
from stemma.objectives.corpus_checks import check_speakers, check_words
from stemma.objectives.missing_data import ORIGIN, drop_objectives
from stemma.recipe_loading import Recipe
from stemma.schema.corpus import packing_settings, parse_template

if TYPE_CHECKING:
    from stemma.objectives.base import Objective


def drop_unsupported(recipe: Recipe, corpus: Corpus) -> tuple[Recipe, list[str]]:
    """The recipe without the tasks that this corpus has nothing for, and a notice for each of them; and with whatever
    the corpus decides for the others."""
    lacking = {objective.name: why for objective in build_objectives(recipe)
               if (why := _missing_data(recipe, objective, corpus)) is not None}
    settled = {f"objective.{objective.name}.{key}": value for objective in build_objectives(recipe)
               if objective.name not in lacking for key, value in objective.corpus_settings(corpus).items()}
    if settled:
        recipe = recipe.with_changes(settled, ORIGIN)
    if not lacking:
        return recipe, []
    if len(lacking) == len(recipe.settings.objective):
        raise UserError(f"the corpus {corpus.path} has nothing for any task of {recipe.label}",
                        [(f"objective.{name}", why) for name, why in lacking.items()])
    return drop_objectives(recipe, lacking)


def _missing_data(recipe: Recipe, objective: Objective, corpus: Corpus) -> str | None:
    """What the task itself misses, or its packing does: whatever is done to dialogues needs some."""
    packing = recipe.settings.packings()[objective.name]
    if not len(CorpusSubset.all_documents(corpus).documents_for(packing).document_ranges):
        side = {"dialogues": "roles", "pairs": "relevance"}.get(packing_settings(packing).reads)
        return f'the corpus has no "{side}"; {HOW_TO_ANNOTATE[side]} makes them' if side else "the corpus has no running text"
    return objective.missing_data(corpus)


def check_requirements(recipe: Recipe, corpus: Corpus) -> None:
    """Refuse, all reasons at once, a recipe whose objectives ask for what this corpus cannot give."""
    objectives = build_objectives(recipe)
    if not objectives:
        raise UserError(f'the recipe "{recipe.label}" has no objective, so there is nothing to train; choose one of '
                        "its descendants (`stemma tree`) or add an [objective.NAME] section.")
    late = [(objective.name, "start_step" if objective.settings.start_step else "starts") for objective in objectives
            if objective.settings.start_step > 0 or objective.settings.starts > 0]
    if len(late) == len(objectives):
        raise UserError(f"no objective of {recipe.label} starts at step 0, so the first step has nothing to train; set "
                        f"objective.{late[0][0]}.{late[0][1]}=0.")
    _check_pairs(recipe, corpus)
    _check_sentinels(recipe, corpus, objectives)
    check_words(recipe, corpus)
    check_speakers(recipe, corpus)
    problems: list[tuple[str, str]] = []
    for objective in objectives:
        needs = objective.requirements()
        problems += [(f"objective.{objective.name}", f'needs the special token "{role}", which the tokenizer lacks')
                     for role in sorted(needs.special_tokens - corpus.tokenizer.special_token_ids.keys())]
        problems += [(f"objective.{objective.name}", f'needs "{name}" boundaries: run `stemma corpus annotate` first')
                     for name in sorted(needs.annotations - set(corpus.annotations()))]
    unread = [(f"network.inputs.{name}", lacking) for name, chosen in recipe.settings.network.inputs.items()
              if (lacking := chosen.missing_data(name, corpus)) is not None]
    if unread:
        raise UserError(f"the corpus {corpus.path} has nothing for some inputs of {recipe.label}", unread)
    for key, template in recipe.settings.templates().items():
        written = {slot.name for slot in parse_template(template)} - {"A", "B"}
        problems += [(key, f'writes the special token "{role}", which the tokenizer lacks')
                     for role in sorted(written - corpus.tokenizer.special_token_ids.keys())]
    start = recipe.settings.corpus.decoder_start
    if recipe.settings.network.decoder is not None and start not in corpus.tokenizer.special_token_ids:
        problems.append(("corpus.decoder_start", f'is the special token "{start}", which the tokenizer lacks'))
    if problems:
        raise UserError(f"the corpus {corpus.path} cannot serve {recipe.label}; train its tokenizer with "
                        f"`stemma tokenizer train ... --for {recipe.name}` and build it again", problems)


def _check_pairs(recipe: Recipe, corpus: Corpus) -> None:
    """Parallel text is needed where pairs are packed; elsewhere its sentences serve as plain text."""
    wanting = [name for name, packing in recipe.settings.packings().items() if packing_settings(packing).reads
               == "pairs"]
    if wanting and not corpus.manifest.get("pairs") and "relevance" not in corpus.annotations():
        raise UserError(f"the corpus {corpus.path} holds plain text, and objective.{wanting[0]} of {recipe.label} "
                        "needs pairs of source and target; build one with `stemma corpus build SOURCE --target "
                        "TARGET`, or from a table with `--pairs`.")


def _check_sentinels(recipe: Recipe, corpus: Corpus, objectives: list[Objective]) -> None:
    """Every span of a row has a sentinel of its own, and a vocabulary has only so many."""
    length, known = recipe.settings.corpus.sequence_length, len(corpus.tokenizer.sentinels)
    for objective in objectives:
        if known and objective.num_sentinels(length) > known:
            raise UserError(f"objective.{objective.name} hides up to {objective.num_sentinels(length)} spans in a "
                            f"corpus.sequence_length of {length}, and the tokenizer of {corpus.path} has {known} "
                            f"sentinels; set a shorter corpus.sequence_length or a longer "
                            f"objective.{objective.name}.mean_span.")
