"""ALBERT's units: one, two or three whole words in a row, hidden together, at the exact rate."""

from __future__ import annotations

import numpy as np
import pytest
from making import draft_of, pieced_corpus, whole

from stemma.lineage import recipe
from stemma.objectives.masked_lm import HEAD, MaskedLM


def test_up_to_three_whole_words_are_hidden_together(tmp_path):
    settings = recipe("albert").settings.objective["masked_lm"]
    draft = draft_of(whole(pieced_corpus(tmp_path)), "stream", 512, rows=200)
    words, special = draft.words.copy(), ~draft.text
    MaskedLM("masked_lm", settings).corrupt(draft, np.random.default_rng(0))
    hidden = np.zeros(words.shape, dtype=bool)
    hidden.reshape(-1)[draft.scores[HEAD].index] = True
    assert not hidden[special].any()
    assert hidden.sum() / draft.text.sum() == pytest.approx(settings.rate, abs=0.005)
    for units in (words, draft.parted):  # a unit is hidden whole or not at all
        text = units >= 0
        number = np.bincount(units[text])
        assert set(np.bincount(units[text], hidden[text]) / np.maximum(number, 1)) <= {0.0, 1.0}
    first = np.r_[True, np.diff(words.reshape(-1)) != 0] & (words.reshape(-1) >= 0)
    chosen = first & hidden.reshape(-1)
    lengths = np.bincount(draft.parted.reshape(-1)[chosen])
    shares = np.bincount(lengths[lengths > 0], minlength=4)[1:] / (lengths > 0).sum()
    assert len(shares) == 3 and (number > 1).any()
    assert shares == pytest.approx(settings.ngrams, abs=0.03)
