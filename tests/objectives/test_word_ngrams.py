"""ALBERT's n-gram masking: one to three consecutive words are masked together, at the exact rate."""

from __future__ import annotations

import numpy as np
import pytest
from small_corpora import draft_of, pieced_corpus, whole

from stemma.objectives.masked_lm import LM_HEAD_NAME, MaskedLM
from stemma.recipe_loading import recipe


def test_up_to_three_whole_words_are_masked_together(tmp_path):
    settings = recipe("albert").settings.objective["masked_lm"]
    draft = draft_of(whole(pieced_corpus(tmp_path)), "stream", 512, rows=200)
    words, special = draft.word_ids.copy(), ~draft.is_text
    MaskedLM("masked_lm", settings).make_targets(draft, np.random.default_rng(0))
    masked = np.zeros(words.shape, dtype=bool)
    masked.reshape(-1)[draft.token_targets[LM_HEAD_NAME].index] = True
    assert not masked[special].any()
    assert masked.sum() / draft.is_text.sum() == pytest.approx(settings.rate, abs=0.005)
    for units in (words, draft.unit_ids):  # all or no tokens of a unit are masked
        text = units >= 0
        sizes = np.bincount(units[text])
        assert set(np.bincount(units[text], masked[text]) / np.maximum(sizes, 1)) <= {0.0, 1.0}
    first = np.r_[True, np.diff(words.reshape(-1)) != 0] & (words.reshape(-1) >= 0)
    selected = first & masked.reshape(-1)
    lengths = np.bincount(draft.unit_ids.reshape(-1)[selected])
    fractions = np.bincount(lengths[lengths > 0], minlength=4)[1:] / (lengths > 0).sum()
    assert len(fractions) == 3 and (sizes > 1).any()
    assert fractions == pytest.approx(settings.ngrams, abs=0.03)
