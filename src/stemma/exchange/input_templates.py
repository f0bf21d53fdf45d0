"""How the inputs of a task are laid out: by the templates of the recipe, where they say it."""

from __future__ import annotations

from stemma.schema.corpus import CorpusSettings, parse_template
from stemma.text.tokenizer import Tokenizer

TEXTS = ("A", "B")


def input_templates(corpus: CorpusSettings, tokenizer: Tokenizer | None) -> tuple[str, str]:
    """Of one text, and of two. A recipe that never reads pairs (T5, MASS, the Transformer) does not say how: the usual
    template ends in another token, or asks for tokens that the vocabulary lacks. Two texts then follow each other, each
    laid out as it would be by itself: "A end B end"."""
    single, pair = parse_template(corpus.single), parse_template(corpus.pair)
    known = tokenizer is None or all(slot.name in TEXTS or slot.name in tokenizer.special_token_ids for slot in pair)
    last = [template[-1].name for template in (single, pair) if template[-1].name not in TEXTS]
    if known and len(set(last)) < 2:
        return corpus.single, corpus.pair
    second = " ".join("B" if slot.name == "A" else slot.name for slot in single)
    return corpus.single, f"{corpus.single} {second}"
