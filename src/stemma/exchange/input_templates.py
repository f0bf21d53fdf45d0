"""The input templates of a task: those of the recipe, if it has one for pairs."""

from __future__ import annotations

from stemma.schema.corpus import CorpusSettings, parse_template
from stemma.text.tokenizer import Tokenizer

TEXTS = ("A", "B")


def input_templates(corpus: CorpusSettings, tokenizer: Tokenizer | None) -> tuple[str, str]:
    """The templates of one text and of two. Recipes without pairs (T5, MASS, the Transformer) inherit a pair template
    that ends in another token, or has tokens that the vocabulary lacks. Two texts are then concatenated, each with the
    template of one: "A end B end"."""
    single, pair = parse_template(corpus.single), parse_template(corpus.pair)
    usable = tokenizer is None or all(slot.name in TEXTS or slot.name in tokenizer.special_token_ids for slot in pair)
    last = [template[-1].name for template in (single, pair) if template[-1].name not in TEXTS]
    if usable and len(set(last)) < 2:
        return corpus.single, corpus.pair
    second = " ".join("B" if slot.name == "A" else slot.name for slot in single)
    return corpus.single, f"{corpus.single} {second}"
