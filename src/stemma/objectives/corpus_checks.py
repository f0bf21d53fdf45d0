"""Whether text is what a recipe takes it for: with words where words are hidden, and no more speakers than segments."""

from __future__ import annotations

import numpy as np

from stemma.corpus.corpus import Corpus
from stemma.corpus.subset import CorpusSubset
from stemma.corpus.text_batches import ROLES
from stemma.errors import UserError
from stemma.recipe_loading import Recipe
from stemma.schema.corpus import packing_settings
from stemma.text.chinese_words import MIN_CHINESE_SHARE, missing_segmenter_notice

WORD_UNITS = ("word", "span", "phrase", "entity")  # units that are made of words


def check_words(recipe: Recipe, corpus: Corpus) -> None:
    """In Chinese text that no segmenter has read, a whole word is a character, and nobody would notice."""
    if corpus.manifest["segmenter"] != "none" or corpus.manifest.get("chinese", 0) <= MIN_CHINESE_SHARE:
        return
    units = {name: unit for name, task in recipe.settings.objective.items()
             if (unit := getattr(task, "unit", None)) in WORD_UNITS}
    for name, unit in units.items():
        raise UserError(f"objective.{name} of {recipe.label} hides text by the {unit}, and the corpus {corpus.path} "
                        f"is Chinese and was built without jieba: {missing_segmenter_notice().removesuffix('.')}; or set "
                        f"objective.{name}.unit=token.")


def check_speakers(recipe: Recipe, corpus: Corpus) -> None:
    """Segments say who speaks, so there must be one for each; a network without any does not tell."""
    reading = [name for name, packing in recipe.settings.packings().items() if packing_settings(packing).reads
               == "dialogues"]
    segments = recipe.settings.network.embedding.segments
    if not reading or not segments or ROLES not in corpus.annotations():
        return
    turns = np.asarray(corpus.sentence_starts[:-1])
    speakers = int(corpus.values_at(ROLES, turns).max(initial=0))
    if speakers > segments:
        first = CorpusSubset.all_documents(corpus).document_ranges[:, 0]
        document = int(np.searchsorted(first, turns[np.argmax(corpus.values_at(ROLES, turns))], side="right"))
        raise UserError(f"document {document:,} of the corpus {corpus.path} is a dialogue of {speakers} speakers, and "
                        f"{recipe.label} can tell {segments} apart; set network.embedding.segments={speakers}, or "
                        "leave such dialogues out.")
