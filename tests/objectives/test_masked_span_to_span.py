import numpy as np
import pytest
from seq2seq_helpers import chinese_corpus, corpus_with_sentinels, labels_of, originals, rows_of, seq2seq_draft
from small_corpora import whole

from stemma.corpus.corpus import Corpus
from stemma.objectives import collate
from stemma.objectives.masked_span_to_span import MaskedSpanToSpan, MaskedSpanToSpanSettings, choose_span


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> Corpus:
    return corpus_with_sentinels(tmp_path_factory.mktemp("mass"))


def corrupt(corpus, rows=120, single="start A end", seed=0, **settings):
    draft = seq2seq_draft(whole(corpus), "doc_sentences", 24, rows, seed, single, "mask")
    task = MaskedSpanToSpan("masked_span_to_span", MaskedSpanToSpanSettings(kind="masked_span_to_span", **settings))
    task.make_targets(draft, np.random.default_rng(seed))
    return draft


@pytest.mark.parametrize("fraction", [0.01, 0.3, 0.5, 1.0])
def test_one_span_is_masked_and_predicted_and_nothing_else_changes(corpus, fraction):
    """With a fraction that masks one token it is BERT's objective; with 1 it is GPT's."""
    mask = corpus.tokenizer.special_id("mask")
    draft = corrupt(corpus, share=fraction, mask=1.0, random=0.0)
    encoder, decoder = draft.seq2seq_rows["encoder"], draft.seq2seq_rows["decoder"]
    for row, (source, text) in enumerate(zip(rows_of(encoder), originals(draft), strict=True)):
        size = max(1, round((len(text) - 2) * fraction))
        positions = decoder.position_ids[row, :decoder.lengths[row]].tolist()
        assert positions == list(range(positions[0], positions[0] + size))
        assert positions[0] >= 1 and positions[-1] < len(text) - 1  # never a special token
        assert [position for position, token in enumerate(source) if token == mask] == positions
        assert labels_of(decoder)[row] == [text[position] for position in positions]
        assert rows_of(decoder)[row] == [mask, *(text[position] for position in positions[:-1])]
        assert [token for token in source if token != mask] == [t for p, t in enumerate(text) if p not in positions]
    if fraction == 0.01:
        assert (decoder.lengths == 1).all()
    if fraction == 1.0:
        assert (decoder.lengths == draft.lengths - 2).all()


def test_selected_tokens_are_masked_replaced_or_kept_at_their_probabilities(corpus):
    draft = corrupt(corpus, rows=1500)
    decoder = draft.seq2seq_rows["decoder"]
    used = np.arange(decoder.input_ids.shape[1]) < decoder.lengths[:, None]
    current = np.take_along_axis(draft.seq2seq_rows["encoder"].input_ids, decoder.position_ids, axis=1)[used]
    original = decoder.labels[used]
    masked = (current == corpus.tokenizer.special_id("mask")).mean()
    assert abs(masked - 0.8) < 4 * (0.16 / len(current)) ** 0.5
    ordinary = len(corpus.tokenizer.regular_ids)
    changed = ((current != original) & (current != corpus.tokenizer.special_id("mask"))).mean()
    assert abs(changed - 0.1 * (1 - 1 / ordinary)) < 4 * (0.09 / len(current)) ** 0.5
    assert not np.isin(current[current != corpus.tokenizer.special_id("mask")], corpus.tokenizer.special_ids).any()


def test_spans_start_at_any_position():
    text = np.tile(np.array([False] + [True] * 9 + [False]), (9000, 1))
    result = choose_span(text, 0.5, np.random.default_rng(0))  # 4.5 tokens are rounded to four
    assert (result.sum(1) == 4).all()
    start_counts = np.bincount(result.argmax(1), minlength=11)
    assert start_counts[0] == 0 and start_counts[7:].sum() == 0
    assert (np.abs(start_counts[1:7] - 1500) < 5 * 1500**0.5).all()


def test_the_decoder_uses_the_position_ids_of_the_encoder(corpus):
    draft = corrupt(corpus)
    batch = collate(draft)
    decoder = draft.seq2seq_rows["decoder"]
    assert batch.streams["decoder"].position_ids.tolist() == decoder.position_ids.tolist()
    assert batch.num_tokens == int(draft.seq2seq_rows["encoder"].lengths.sum() + decoder.lengths.sum())
    assert batch.token_targets["vocabulary"].labels.tolist() == [label for row in labels_of(decoder) for label in row]


def test_chinese_text_is_masked_in_one_span(tmp_path):
    draft = corrupt(chinese_corpus(tmp_path), rows=8, mask=1.0, random=0.0)
    for row, text in enumerate(originals(draft)):
        positions = draft.seq2seq_rows["decoder"].position_ids[row, :draft.seq2seq_rows["decoder"].lengths[row]]
        assert labels_of(draft.seq2seq_rows["decoder"])[row] == [text[position] for position in positions]
