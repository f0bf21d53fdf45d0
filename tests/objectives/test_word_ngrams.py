"""ALBERT's units: one, two or three whole words in a row, hidden together, at the exact rate."""

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
    hidden = np.zeros(words.shape, dtype=bool)
    hidden.reshape(-1)[draft.token_targets[LM_HEAD_NAME].index] = True
    assert not hidden[special].any()
    assert hidden.sum() / draft.is_text.sum() == pytest.approx(settings.rate, abs=0.005)
    for units in (words, draft.unit_ids):  # a unit is hidden whole or not at all
        text = units >= 0
        number = np.bincount(units[text])
        assert set(np.bincount(units[text], hidden[text]) / np.maximum(number, 1)) <= {0.0, 1.0}
    first = np.r_[True, np.diff(words.reshape(-1)) != 0] & (words.reshape(-1) >= 0)
    chosen = first & hidden.reshape(-1)
    lengths = np.bincount(draft.unit_ids.reshape(-1)[chosen])
    shares = np.bincount(lengths[lengths > 0], minlength=4)[1:] / (lengths > 0).sum()
    assert len(shares) == 3 and (number > 1).any()
    assert shares == pytest.approx(settings.ngrams, abs=0.03)
