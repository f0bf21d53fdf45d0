"""BLEU and chrF by sacrebleu, ROUGE by rouge-score.

BLEU scores are only comparable with the same settings (arXiv:1804.08771), so each score carries its signature.
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
    """{"bleu": ..., "chrf": ...}; `references[k][i]` is the k-th reference of text i."""
    try:
        from sacrebleu import BLEU, CHRF
    except ImportError as error:
        raise UserError('BLEU needs sacrebleu: pip install "stemma-lm[metrics]".') from error
    if tokenize not in BLEU.TOKENIZERS:
        raise UserError(f'no BLEU tokenizer "{tokenize}"; choose {", ".join(BLEU.TOKENIZERS)}.'
                        f"{did_you_mean(tokenize, BLEU.TOKENIZERS)}")
    check_counts(texts, references)
    bleu, chrf = BLEU(lowercase=lowercase, tokenize=tokenize), CHRF(lowercase=lowercase)
    bleu_score, chrf_score = (metric.corpus_score(list(texts), [list(side) for side in references])
                              for metric in (bleu, chrf))
    return {"bleu": {"score": bleu_score.score, "precisions": bleu_score.precisions, "brevity_penalty": bleu_score.bp,
                     "length": bleu_score.sys_len, "reference_length": bleu_score.ref_len,
                     "signature": str(bleu.get_signature())},
            "chrf": {"score": chrf_score.score, "signature": str(chrf.get_signature())}}


def summary_scores(texts: Sequence[str], references: Sequence[Sequence[str]]) -> dict[str, Any]:
    """{"rouge1": ..., ..., "signature": ...}: mean F1 in percent, with the best of several references.

    rouge-score drops all letters but a to z. If these are less than 90% of the letters, the text is split at spaces and
    punctuation, and Chinese into characters; the signature states this."""
    try:
        from importlib.metadata import version

        from rouge_score.rouge_scorer import RougeScorer
    except ImportError as error:
        raise UserError('ROUGE needs rouge-score: pip install "stemma-lm[metrics]".') from error
    check_counts(texts, references)
    letters = [letter for side in references for text in side for letter in text if letter.isalpha()]
    ascii_text = sum(letter.isascii() for letter in letters) >= 0.9 * len(letters)
    scorer = RougeScorer(list(ROUGE), use_stemmer=True) if ascii_text \
        else RougeScorer(list(ROUGE), tokenizer=_WordTokenizer())
    totals = dict.fromkeys(ROUGE, 0.0)
    for index, text in enumerate(texts):
        best = scorer.score_multi([side[index] for side in references], text)
        for name in ROUGE:
            totals[name] += best[name].fmeasure
    settings = "tokens:a-z|stemmer:porter" if ascii_text else "tokens:unicode|stemmer:no"
    return {**{name: 100 * total / len(texts) for name, total in totals.items()},
            "signature": f"nrefs:{len(references)}|{settings}|version:{version('rouge-score')}"}


class _WordTokenizer:
    """Lower-cased words of any script, with the tokenizer interface of rouge-score."""

    def tokenize(self, text: str) -> list[str]:
        return re.findall(r"\w+", CJK_RUN.sub(lambda run: f" {' '.join(run[0])} ", text.lower()))


def check_counts(texts: Sequence[str], references: Sequence[Sequence[str]]) -> None:
    if not texts:
        raise UserError("there is no text to score; give at least one.")
    for reference_number, side in enumerate(references, 1):
        if len(side) != len(texts):
            which = "the reference" if len(references) == 1 else f"reference {reference_number}"
            raise UserError(f"there are {len(texts):,} texts and {which} has {len(side):,}; line by line they must "
                            "belong together.")
