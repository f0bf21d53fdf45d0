"""Check the objectives of a recipe against a corpus: refuse the recipe, or switch objectives off."""

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
    """The recipe without the objectives that this corpus has no data for, with the settings that depend on the corpus;
    and a warning for each removed objective."""
    missing = {objective.name: reason for objective in build_objectives(recipe)
               if (reason := _missing_data(recipe, objective, corpus)) is not None}
    changes = {f"objective.{objective.name}.{key}": value for objective in build_objectives(recipe)
               if objective.name not in missing for key, value in objective.corpus_settings(corpus).items()}
    if changes:
        recipe = recipe.with_changes(changes, ORIGIN)
    if not missing:
        return recipe, []
    if len(missing) == len(recipe.settings.objective):
        raise UserError(f"the corpus {corpus.path} has nothing for any task of {recipe.label}",
                        [(f"objective.{name}", reason) for name, reason in missing.items()])
    return drop_objectives(recipe, missing)


def _missing_data(recipe: Recipe, objective: Objective, corpus: Corpus) -> str | None:
    """What the objective or its packing misses in the corpus; None if nothing."""
    packing = recipe.settings.packings()[objective.name]
    if not len(CorpusSubset.all_documents(corpus).documents_for(packing).document_ranges):
        annotation = {"dialogues": "roles", "pairs": "relevance"}.get(packing_settings(packing).reads)
        if annotation is None:
            return "the corpus has no running text"
        return f'the corpus has no "{annotation}"; {HOW_TO_ANNOTATE[annotation]} makes them'
    return objective.missing_data(corpus)


def check_requirements(recipe: Recipe, corpus: Corpus) -> None:
    """Refuse a recipe whose objectives need what this corpus lacks, with all reasons at once."""
    objectives = build_objectives(recipe)
    if not objectives:
        raise UserError(f'the recipe "{recipe.label}" has no objective, so there is nothing to train; choose one of '
                        "its descendants (`stemma tree`) or add an [objective.NAME] section.")
    late = [(objective.name, "start_step" if objective.settings.start_step else "start_fraction")
            for objective in objectives
            if objective.settings.start_step > 0 or objective.settings.start_fraction > 0]
    if len(late) == len(objectives):
        raise UserError(f"no objective of {recipe.label} starts at step 0, so the first step has nothing to train; set "
                        f"objective.{late[0][0]}.{late[0][1]}=0.")
    _check_pairs(recipe, corpus)
    _check_sentinels(recipe, corpus, objectives)
    check_words(recipe, corpus)
    check_speakers(recipe, corpus)
    problems: list[tuple[str, str]] = []
    for objective in objectives:
        requirements = objective.requirements()
        problems += [(f"objective.{objective.name}", f'needs the special token "{role}", which the tokenizer lacks')
                     for role in sorted(requirements.special_tokens - corpus.tokenizer.special_token_ids.keys())]
        problems += [(f"objective.{objective.name}", f'needs "{name}" boundaries: run `stemma corpus annotate` first')
                     for name in sorted(requirements.annotations - set(corpus.annotations()))]
    missing_inputs = [(f"network.inputs.{name}", reason) for name, settings in recipe.settings.network.inputs.items()
                      if (reason := settings.missing_data(name, corpus)) is not None]
    if missing_inputs:
        raise UserError(f"the corpus {corpus.path} has nothing for some inputs of {recipe.label}", missing_inputs)
    for key, template in recipe.settings.templates().items():
        roles = {slot.name for slot in parse_template(template)} - {"A", "B"}
        problems += [(key, f'writes the special token "{role}", which the tokenizer lacks')
                     for role in sorted(roles - corpus.tokenizer.special_token_ids.keys())]
    start = recipe.settings.corpus.decoder_start
    if recipe.settings.network.decoder is not None and start not in corpus.tokenizer.special_token_ids:
        problems.append(("corpus.decoder_start", f'is the special token "{start}", which the tokenizer lacks'))
    if problems:
        raise UserError(f"the corpus {corpus.path} cannot serve {recipe.label}; train its tokenizer with "
                        f"`stemma tokenizer train ... --for {recipe.name}` and build it again", problems)


def _check_pairs(recipe: Recipe, corpus: Corpus) -> None:
    """Refuse plain text for packings of pairs."""
    paired = [name for name, packing in recipe.settings.packings().items()
              if packing_settings(packing).reads == "pairs"]
    if paired and not corpus.manifest.get("pairs") and "relevance" not in corpus.annotations():
        raise UserError(f"the corpus {corpus.path} holds plain text, and objective.{paired[0]} of {recipe.label} "
                        "needs pairs of source and target; build one with `stemma corpus build SOURCE --target "
                        "TARGET`, or from a table with `--pairs`.")


def _check_sentinels(recipe: Recipe, corpus: Corpus, objectives: list[Objective]) -> None:
    """Every span of a row needs its own sentinel, and a vocabulary has a fixed number of them."""
    length, available = recipe.settings.corpus.sequence_length, len(corpus.tokenizer.sentinels)
    for objective in objectives:
        if available and objective.num_sentinels(length) > available:
            raise UserError(f"objective.{objective.name} masks up to {objective.num_sentinels(length)} spans in a "
                            f"corpus.sequence_length of {length}, and the tokenizer of {corpus.path} has {available} "
                            f"sentinels; set a shorter corpus.sequence_length or a longer "
                            f"objective.{objective.name}.mean_span.")
