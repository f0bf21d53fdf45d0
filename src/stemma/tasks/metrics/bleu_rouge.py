"""How near texts come to what people wrote: BLEU and chrF by sacrebleu, ROUGE by rouge-score.

A BLEU without the way it was counted cannot be compared (arXiv:1804.08771), so each score carries its signature.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from stemma.errors import UserError, did_you_mean
from stemma.text.chinese_words import CJK_RUN

ROUGE = ("rouge1", "rouge2", "rougeL", "rougeLsum")


def translation_scores(texts: Sequence[str], references: Sequence[Sequence[str]], lowercase: bool = False,
                       tokenize: str = "13a") -> dict[str, dict[str, Any]]:
    """{"bleu": ..., "chrf": ...} of texts against one or several references of each, `references[k][i]`."""
    try:
        from sacrebleu import BLEU, CHRF
    except ImportError as error:
        raise UserError('BLEU needs sacrebleu: pip install "stemma-lm[metrics]".') from error
    if tokenize not in BLEU.TOKENIZERS:
        raise UserError(f'no BLEU tokenizer "{tokenize}"; choose {", ".join(BLEU.TOKENIZERS)}.'
                        f"{did_you_mean(tokenize, BLEU.TOKENIZERS)}")
    check_counts(texts, references)
    bleu, chrf = BLEU(lowercase=lowercase, tokenize=tokenize), CHRF(lowercase=lowercase)
    found, letters = (metric.corpus_score(list(texts), [list(side) for side in references])
                      for metric in (bleu, chrf))
    return {"bleu": {"score": found.score, "precisions": found.precisions, "brevity_penalty": found.bp,
                     "length": found.sys_len, "reference_length": found.ref_len,
                     "signature": str(bleu.get_signature())},
            "chrf": {"score": letters.score, "signature": str(chrf.get_signature())}}


def summary_scores(texts: Sequence[str], references: Sequence[Sequence[str]]) -> dict[str, Any]:
    """{"rouge1": ..., ..., "signature": ...}: mean F1 in percent, the best of several references counting.

    rouge-score knows the letters a to z and drops all others; text of which these are less than nine tenths is parted
    by white space and punctuation, and Chinese character by character, which the signature says."""
    try:
        from importlib.metadata import version

        from rouge_score.rouge_scorer import RougeScorer
    except ImportError as error:
        raise UserError('ROUGE needs rouge-score: pip install "stemma-lm[metrics]".') from error
    check_counts(texts, references)
    letters = [letter for side in references for text in side for letter in text if letter.isalpha()]
    plain = sum(letter.isascii() for letter in letters) >= 0.9 * len(letters)
    scorer = RougeScorer(list(ROUGE), use_stemmer=True) if plain else RougeScorer(list(ROUGE),
                                                                                  tokenizer=_WordTokenizer())
    totals = dict.fromkeys(ROUGE, 0.0)
    for number, text in enumerate(texts):
        best = scorer.score_multi([side[number] for side in references], text)
        for name in ROUGE:
            totals[name] += best[name].fmeasure
    how = "tokens:a-z|stemmer:porter" if plain else "tokens:unicode|stemmer:no"
    return {**{name: 100 * total / len(texts) for name, total in totals.items()},
            "signature": f"nrefs:{len(references)}|{how}|version:{version('rouge-score')}"}


class _WordTokenizer:
    """Words of any script, in lower case, as rouge-score takes a tokenizer."""

    def tokenize(self, text: str) -> list[str]:
        return re.findall(r"\w+", CJK_RUN.sub(lambda run: f" {' '.join(run[0])} ", text.lower()))


def check_counts(texts: Sequence[str], references: Sequence[Sequence[str]]) -> None:
    if not texts:
        raise UserError("there is no text to score; give at least one.")
    for number, side in enumerate(references, 1):
        if len(side) != len(texts):
            which = "the reference" if len(references) == 1 else f"reference {number}"
            raise UserError(f"there are {len(texts):,} texts and {which} has {len(side):,}; line by line they must "
                            "belong together.")
