from collections import Counter

import numpy as np
import pytest
from literal import t5
from seq2seq_helpers import chinese_corpus, corpus_with_sentinels, labels_of, originals, rows_of, seq2seq_draft
from small_corpora import whole

from stemma import recipe_loading
from stemma.corpus.corpus import Corpus
from stemma.errors import UserError
from stemma.objectives import check_requirements
from stemma.objectives.span_corruption import SpanCorruption, SpanCorruptionSettings, assign_spans


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> Corpus:
    return corpus_with_sentinels(tmp_path_factory.mktemp("sentinels"))


def objective(**settings) -> SpanCorruption:
    return SpanCorruption("span_corruption", SpanCorruptionSettings(kind="span_corruption", **settings))


def corrupt(corpus, length=64, rows=60, kind="stream", seed=0, start="padding", **settings):
    draft = seq2seq_draft(whole(corpus), kind, length, rows, seed, start=start)
    objective(**settings).make_targets(draft, np.random.default_rng(seed))
    return draft


@pytest.mark.parametrize("rate", [0.15, 0.3, 0.5])
@pytest.mark.parametrize("mean", [1.0, 3.0, 10.0])
@pytest.mark.parametrize("kind", ["stream", "doc_sentences", "full_sentences"])
def test_source_and_target_together_restore_the_text(corpus, rate, mean, kind):
    tokenizer, end = corpus.tokenizer, corpus.tokenizer.special_id("end")
    draft = corrupt(corpus, kind=kind, rate=rate, mean_span=mean)
    sources, targets = rows_of(draft.seq2seq_rows["encoder"]), labels_of(draft.seq2seq_rows["decoder"])
    for source, target, text in zip(sources, targets, originals(draft), strict=True):
        assert source[-1] == target[-1] == text[-1] == end
        assert t5.restore(source[:-1], target[:-1], tokenizer.sentinels) == text[:-1]
        used = [token for token in source if token in tokenizer.sentinels]
        assert used == [token for token in target if token in tokenizer.sentinels]
        assert used == tokenizer.sentinels[:len(used)]  # in order, from the first
        noise, spans = t5.counts(len(text) - 1, rate, mean)
        if spans <= min(noise, len(text) - 1 - noise):
            assert (len(target) - 1 - len(used), len(used)) == (noise, spans)
        assert source[0] == text[0]  # the row starts with text


def test_the_decoder_input_is_the_shifted_target(corpus):
    decoder = corrupt(corpus).seq2seq_rows["decoder"]
    for decoder_input, labels in zip(rows_of(decoder), labels_of(decoder), strict=True):
        assert decoder_input == [corpus.tokenizer.special_id("padding"), *labels[:-1]]
    used = np.arange(decoder.input_ids.shape[1]) < decoder.lengths[:, None]
    assert (decoder.labels[~used] == -1).all() and (decoder.labels[used] >= 0).all()


@pytest.mark.parametrize(("length", "noise", "spans"), [(7, 3, 2), (8, 2, 1), (9, 4, 3)])
def test_all_segmentations_into_spans_are_equally_likely(length, noise, spans):
    samples = 6000
    arguments = (np.full(samples, length), np.full(samples, noise), np.full(samples, spans))
    result = assign_spans(*arguments, length + 3, np.random.default_rng(0))
    assert (result[:, length:] == -1).all()
    counts = Counter(tuple(row) for row in (result[:, :length] >= 0).tolist())
    possible = set(t5.masks(length, noise, spans))
    assert set(counts) == possible
    expected = samples / len(possible)
    assert all(abs(count - expected) < 5 * expected**0.5 for count in counts.values())
    last_span = result.max(axis=1)
    assert (last_span == spans - 1).all()


def test_the_raw_text_length_matches_the_released_code():
    assert t5.window(512, 0.15, 3.0) == (568, 114)
    assert objective().raw_text_length(512) == 568
    for length in (32, 64, 100, 128, 256, 511, 512, 1024):
        for rate, mean in ((0.15, 3.0), (0.15, 5.0), (0.1, 2.0), (0.25, 3.0)):
            assert objective(rate=rate, mean_span=mean).raw_text_length(length) == t5.window(length, rate, mean)[0]


def test_source_and_target_fit_the_window(corpus):
    for rate in (0.15, 0.5, 0.8):
        task = objective(rate=rate)
        text = task.raw_text_length(64)
        draft = corrupt(corpus, length=text + 1, rate=rate)
        longest = [int(side.lengths.max()) for side in draft.seq2seq_rows.values()]
        assert max(longest) <= 64
        if rate == 0.15:
            full = draft.lengths == text + 1
            assert full.any() and (draft.seq2seq_rows["encoder"].lengths[full] == 64).all()


def test_texts_of_one_or_two_tokens_are_corrupted(corpus):
    draft = seq2seq_draft(whole(corpus), "stream", 2, 5)  # one token and the end token
    objective().make_targets(draft, np.random.default_rng(0))
    assert rows_of(draft.seq2seq_rows["encoder"]) == originals(draft)
    assert labels_of(draft.seq2seq_rows["decoder"]) == [[corpus.tokenizer.special_id("end")]] * 5
    draft = seq2seq_draft(whole(corpus), "stream", 3, 5)
    objective().make_targets(draft, np.random.default_rng(0))
    first = corpus.tokenizer.sentinels[0]
    assert all(row[1] == first and len(row) == 3 for row in rows_of(draft.seq2seq_rows["encoder"]))


def test_chinese_text_is_restored(tmp_path):
    corpus = chinese_corpus(tmp_path)
    draft = corrupt(corpus, length=40, rows=8, kind="doc_sentences")
    sources, targets = rows_of(draft.seq2seq_rows["encoder"]), labels_of(draft.seq2seq_rows["decoder"])
    for source, target, text in zip(sources, targets, originals(draft), strict=True):
        assert t5.restore(source[:-1], target[:-1], corpus.tokenizer.sentinels) == text[:-1]


def test_more_spans_than_sentinels_are_refused_before_training(corpus):
    change = ["corpus.sequence_length=2048", "objective.span_corruption.mean_span=1.0"]
    with pytest.raises(UserError, match=r"masks up to 3\d\d spans .* has 100 sentinels; set"):
        check_requirements(recipe_loading.recipe("t5", change), corpus)
    check_requirements(recipe_loading.recipe("t5"), corpus)
