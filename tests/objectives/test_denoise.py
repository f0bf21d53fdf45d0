import math
from collections import Counter

import numpy as np
import pytest
from literal import bart
from seq2seq_helpers import chinese_corpus, corpus_with_sentinels, labels_of, originals, rows_of, seq2seq_draft
from small_corpora import corpus_of, whole

from stemma import recipe_loading
from stemma.corpus.corpus import Corpus
from stemma.errors import UserError
from stemma.objectives.denoise import Denoise, DenoiseSettings, sample_infill_spans

NOTHING = {"infill": 0.0, "permute": 0.0, "mask": 0.0, "delete": 0.0, "rotate": 0.0}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> Corpus:
    return corpus_with_sentinels(tmp_path_factory.mktemp("bart"), documents=60)


def corrupt(corpus, rows=100, length=64, kind="doc_sentences", seed=0, single="start A end", **settings):
    draft = seq2seq_draft(whole(corpus), kind, length, rows, seed, single, "end")
    task = Denoise("denoise", DenoiseSettings(kind="denoise", **{**NOTHING, **settings}))
    task.make_targets(draft, np.random.default_rng(seed))
    return draft


@pytest.mark.parametrize("settings", [
    {"infill": 0.3}, {"mask": 0.3}, {"delete": 0.3}, {"permute": 1.0}, {"rotate": 1.0},
    {"infill": 0.3, "permute": 1.0}, {"infill": 0.3, "permute": 1.0, "mask": 0.2, "delete": 0.2, "rotate": 0.5}])
@pytest.mark.parametrize("kind", ["doc_sentences", "full_sentences"])
def test_the_original_is_the_target_and_special_tokens_are_kept(corpus, settings, kind):
    tokenizer = corpus.tokenizer
    draft = corrupt(corpus, kind=kind, length=200, **settings)
    decoder = draft.seq2seq_rows["decoder"]
    assert labels_of(decoder) == originals(draft)
    changed = 0
    for source, text, decoder_input in zip(rows_of(draft.seq2seq_rows["encoder"]), originals(draft), rows_of(decoder),
                                  strict=True):
        assert decoder_input == [tokenizer.special_id("end"), *text[:-1]]
        assert source[0] == tokenizer.special_id("start") and source[-1] == tokenizer.special_id("end")
        assert len(source) <= len(text)
        special = Counter(token for token in source if token in tokenizer.special_ids)
        del special[tokenizer.special_id("mask")]
        assert special == Counter(token for token in text if token in tokenizer.special_ids)
        changed += source != text
    assert changed > 80  # a row of one sentence cannot be permuted


def test_infill_spans_are_ordered_contiguous_and_cover_the_exact_fraction():
    count = np.array([40, 7, 0, 1, 33])
    for seed in range(20):
        span, inserted = sample_infill_spans(count, 0.4, 2.0, 40, np.random.default_rng(seed))
        for row, length in enumerate(count):
            assert (span[row, length:] == -1).all() and not inserted[row, length + 1:].any()
            assert (np.diff(span[row, :length][span[row, :length] >= 0]) >= 0).all()  # in order and contiguous
            num_masked = (span[row] >= 0).sum()
            assert abs(num_masked - 0.4 * length) < 1
            spans = len(set(span[row].tolist()) - {-1}) + inserted[row].sum()
            assert spans <= num_masked


def test_infilling_replaces_each_span_by_one_mask(corpus, monkeypatch):
    sampled = []
    monkeypatch.setattr("stemma.objectives.denoise.sample_infill_spans",
                        lambda *arguments: sampled.append(sample_infill_spans(*arguments)) or sampled[-1])
    draft = corrupt(corpus, rows=1000, infill=0.3, mean_span=1.5)
    span, inserted = sampled[0]
    count = draft.is_text.sum(1)
    for row, (source, text) in enumerate(zip(rows_of(draft.seq2seq_rows["encoder"]), originals(draft), strict=True)):
        expected = bart.infilled(text[1:-1], span[row].tolist(), inserted[row].tolist(),
                                 corpus.tokenizer.special_id("mask"))
        assert source[1:-1] == expected
    assert inserted[:, 0].any() and inserted[np.arange(1000), count].any()  # before the first token and after the last
    assert inserted.max() > 1


def test_infilling_masks_the_exact_fraction_in_poisson_spans():
    rows, length, fraction, mean = 4000, 400, 0.3, 3.0
    span, inserted = sample_infill_spans(np.full(rows, length), fraction, mean, length, np.random.default_rng(0))
    assert ((span >= 0).sum(1) == fraction * length).all()
    sizes = Counter()
    for row in span:
        result = np.unique(row[row >= 0], return_counts=True)[1]
        sizes.update(result.tolist())
    sizes[0] = int(inserted.sum())
    total = sum(sizes.values())
    assert abs(sum(size * count for size, count in sizes.items()) / total - mean) < 0.08
    for size in range(9):  # the last span of a row is truncated, one in forty
        expected = math.exp(-mean) * mean**size / math.factorial(size)
        assert abs(sizes[size] / total - expected) < 0.012
    assert sizes[0] / total == pytest.approx(math.exp(-mean), abs=0.004)


def test_infill_spans_start_at_any_position():
    rows, length = 6000, 20
    span, _ = sample_infill_spans(np.full(rows, length), 0.25, 3.0, length, np.random.default_rng(1))
    frequency = (span >= 0).mean(0)
    assert abs(frequency.mean() - 0.25) < 1e-9
    assert abs(frequency[:10].sum() - frequency[10:].sum()) < 0.1  # both halves are equally likely
    assert (np.abs(frequency[3:17] - 0.27) < 0.03).all() and frequency.min() > 0.1  # fewer spans cover the ends


@pytest.mark.parametrize("rate", [0.1, 0.33])
def test_masking_and_deletion_have_the_exact_rate_and_keep_the_order(corpus, rate):
    mask = corpus.tokenizer.special_id("mask")
    masked = corrupt(corpus, rows=1500, mask=rate)
    deleted = corrupt(corpus, rows=1500, delete=rate)
    tokens = np.array([len(text) - 2 for text in originals(masked)])
    spread = 4 * 0.5 * len(tokens) ** 0.5
    num_masked = [source.count(mask) for source in rows_of(masked.seq2seq_rows["encoder"])]
    num_deleted = [len(text) - len(source)
                   for source, text in zip(rows_of(deleted.seq2seq_rows["encoder"]), originals(deleted), strict=True)]
    assert abs(sum(num_masked) - rate * tokens.sum()) < spread and abs(sum(num_deleted) - rate * tokens.sum()) < spread
    for source, text in zip(rows_of(masked.seq2seq_rows["encoder"]), originals(masked), strict=True):
        assert all(token in (mask, original) for token, original in zip(source, text, strict=True))
    for source, text in zip(rows_of(deleted.seq2seq_rows["encoder"]), originals(deleted), strict=True):
        assert bart.is_part(source, text)


def test_combined_noise_functions_keep_their_fractions(corpus):
    mask = corpus.tokenizer.special_id("mask")
    draft = corrupt(corpus, rows=1500, length=128, kind="stream", single="A end", infill=0.2, mask=0.2, delete=0.2)
    num_unmasked = sum(token != mask for source in rows_of(draft.seq2seq_rows["encoder"]) for token in source[:-1])
    tokens = int(draft.is_text.sum())
    boundaries = int(draft.lengths.sum()) - tokens - draft.rows
    assert abs((num_unmasked - boundaries) / tokens - 0.4) < 0.002


@pytest.fixture(scope="module")
def sentences(tmp_path_factory, tokenizer_folder) -> Corpus:
    arguments = [["the clerk reads.", "a letter.", "seven pages in the cellar."]] * 3
    return corpus_of(tmp_path_factory.mktemp("sentences"), arguments, tokenizer_folder)


def split_sentences(tokens: list[int], stop: int) -> tuple[tuple[int, ...], ...]:
    result, current = [], []
    for token in tokens:
        current.append(token)
        if token == stop:
            result.append(tuple(current))
            current = []
    assert not current
    return tuple(result)


def test_permuted_sentences_are_intact_and_all_orders_equally_likely(sentences):
    stop = sentences.tokenizer.token_to_id(".")
    order_counts = Counter()
    for seed in range(300):
        draft = corrupt(sentences, rows=9, length=40, seed=seed, permute=1.0)
        for source, text in zip(rows_of(draft.seq2seq_rows["encoder"]), originals(draft), strict=True):
            order = split_sentences(text[1:-1], stop)
            shuffled = split_sentences(source[1:-1], stop)
            assert len(order) == 3 and sorted(order) == sorted(shuffled)
            order_counts[tuple(order.index(sentence) for sentence in shuffled)] += 1
    assert len(order_counts) == 6
    assert all(abs(count - 450) < 5 * 450**0.5 for count in order_counts.values())


def test_sentences_are_permuted_within_their_document(sentences):
    separator = sentences.tokenizer.special_id("separator")
    draft = corrupt(sentences, rows=2, length=80, kind="full_sentences", permute=1.0)
    moved = 0
    for source, text in zip(rows_of(draft.seq2seq_rows["encoder"]), originals(draft), strict=True):
        assert [p for p, t in enumerate(source) if t == separator] == [p for p, t in enumerate(text) if t == separator]
        assert text.count(separator) == 2
        moved += source != text
    assert moved


def test_permutation_and_rotation_have_their_probabilities(corpus):
    for name in ("permute", "rotate"):
        draft = corrupt(corpus, rows=1000, length=250, kind="full_sentences", **{name: 0.5})
        pairs = list(zip(rows_of(draft.seq2seq_rows["encoder"]), originals(draft), strict=True))
        assert 0.44 < np.mean([source != text for source, text in pairs]) < 0.56


def test_rotation_starts_at_any_token(corpus):
    draft = corrupt(corpus, rows=2000, length=12, rotate=1.0)
    start_counts = Counter()
    for source, text in zip(rows_of(draft.seq2seq_rows["encoder"]), originals(draft), strict=True):
        assert bart.is_rotation(source[1:-1], text[1:-1])
        if len(set(text)) == len(text) == 12:
            start_counts[text.index(source[1])] += 1
    assert set(start_counts) == set(range(1, 11))
    expected = sum(start_counts.values()) / 10
    assert expected > 20 and all(abs(count - expected) < 5 * expected**0.5 for count in start_counts.values())


def test_chinese_sentences_are_shuffled_and_infilled(tmp_path):
    corpus = chinese_corpus(tmp_path)
    mask = corpus.tokenizer.special_id("mask")
    draft = corrupt(corpus, rows=10, length=64, permute=1.0, infill=0.3)
    assert labels_of(draft.seq2seq_rows["decoder"]) == originals(draft)
    for source, text in zip(rows_of(draft.seq2seq_rows["encoder"]), originals(draft), strict=True):
        assert mask in source and not Counter(t for t in source if t != mask) - Counter(text)


@pytest.mark.parametrize(("changes", "message"), [
    (["objective.denoise.infill=0.0", "objective.denoise.permute=0.0"], "nothing is corrupted"),
    (["objective.denoise.mask=0.5", "objective.denoise.delete=0.3"], "leave nothing of the text"),
    (["objective.denoise.mean_span=0.5"], "must be 1 or more"),
    (["objective.denoise.infill=1.0"], "less than 1"),
    (["remove=network.decoder"], "writes with a decoder"),
    (["corpus.packing=segment_pair"], "needs full_sentences, doc_sentences, stream or sentence"),
])
def test_invalid_denoise_settings_are_refused(changes, message):
    with pytest.raises(UserError) as refused:
        recipe_loading.recipe("bart@tiny", changes)
    assert message in str(refused.value)
