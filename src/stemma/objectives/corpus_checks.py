"""Checks of a corpus against a recipe: word boundaries for whole-word masking, segment ids for all speakers."""

from __future__ import annotations

import numpy as np

from stemma.corpus.corpus import Corpus
from stemma.corpus.subset import CorpusSubset
from stemma.corpus.text_batches import ROLES
from stemma.errors import UserError
from stemma.recipe_loading import Recipe
from stemma.schema.corpus import packing_settings
from stemma.text.chinese_words import MIN_CHINESE_FRACTION, missing_segmenter_notice

WORD_UNITS = ("word", "span", "phrase", "entity")  # masking units made of words


def check_words(recipe: Recipe, corpus: Corpus) -> None:
    """Refuse word units on Chinese text without word segmentation: every word would be a single character."""
    if corpus.manifest["segmenter"] != "none" or corpus.manifest.get("chinese", 0) <= MIN_CHINESE_FRACTION:
        return
    units = {name: unit for name, task in recipe.settings.objective.items()
             if (unit := getattr(task, "unit", None)) in WORD_UNITS}
    for name, unit in units.items():
        raise UserError(f"objective.{name} of {recipe.label} masks by the {unit}, and the corpus {corpus.path} "
                        f"is Chinese and was built without jieba: {missing_segmenter_notice().removesuffix('.')}; "
                        f"or set objective.{name}.unit=token.")


def check_speakers(recipe: Recipe, corpus: Corpus) -> None:
    """Segment ids are speakers, so there must be one per speaker; a network without segments ignores speakers."""
    dialogues = [name for name, packing in recipe.settings.packings().items()
                 if packing_settings(packing).reads == "dialogues"]
    segments = recipe.settings.network.embedding.segments
    if not dialogues or not segments or ROLES not in corpus.annotations():
        return
    turns = np.asarray(corpus.sentence_starts[:-1])
    speakers = int(corpus.values_at(ROLES, turns).max(initial=0))
    if speakers > segments:
        first = CorpusSubset.all_documents(corpus).document_ranges[:, 0]
        document = int(np.searchsorted(first, turns[np.argmax(corpus.values_at(ROLES, turns))], side="right"))
        raise UserError(f"document {document:,} of the corpus {corpus.path} is a dialogue of {speakers} speakers, and "
                        f"{recipe.label} can tell {segments} apart; set network.embedding.segments={speakers}, or "
                        "leave such dialogues out.")
