import numpy as np
import pytest
from small_corpora import draft_of, pieced_corpus, whole

from stemma.corpus.corpus import Corpus
from stemma.corpus.rng import PerRowRNG
from stemma.objectives.masked_lm import LM_HEAD_NAME, MaskedLM, MaskedLMSettings


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> Corpus:
    return pieced_corpus(tmp_path_factory.mktemp("pieced"))


def objective(unit: str = "token", **settings) -> MaskedLM:
    values = {"kind": "masked_lm", "rate": 0.15, "unit": unit, "dynamic": True, **settings}
    return MaskedLM("masked_lm", MaskedLMSettings(**values))


@pytest.mark.parametrize("unit", ["token", "word", "ngram"])
def test_labels_are_the_original_tokens_and_other_positions_are_unchanged(corpus, unit):
    draft = draft_of(whole(corpus), "segment_pair", 48, rows=100)
    before = draft.input_ids.copy()
    objective(unit).make_targets(draft, np.random.default_rng(0))
    scored = draft.token_targets[LM_HEAD_NAME]
    assert (scored.labels == before.reshape(-1)[scored.index]).all()
    assert (draft.original_ids == before).all()
    untouched = np.ones(before.size, dtype=bool)
    untouched[scored.index] = False
    assert (draft.input_ids.reshape(-1)[untouched] == before.reshape(-1)[untouched]).all()
    assert (np.diff(scored.index) > 0).all()


@pytest.mark.parametrize(("mask", "random"), [(0.8, 0.1), (0.5, 0.5), (1.0, 0.0), (0.0, 1.0), (0.0, 0.0)])
def test_selected_tokens_are_masked_replaced_or_kept_at_their_probabilities(corpus, mask, random):
    draft = draft_of(whole(corpus), "stream", 64, rows=600)
    objective(rate=0.3, mask=mask, random=random).make_targets(draft, np.random.default_rng(1))
    scored = draft.token_targets[LM_HEAD_NAME]
    current = draft.input_ids.reshape(-1)[scored.index]
    masked = current == corpus.tokenizer.special_id("mask")
    changed = ~masked & (current != scored.labels)
    ordinary = corpus.tokenizer.vocab_size - len(corpus.tokenizer.special_ids)
    size = len(current)
    for fraction, expected in ((masked.mean(), mask), (changed.mean(), random * (1 - 1 / ordinary))):
        assert abs(fraction - expected) <= 4 * (expected * (1 - expected) / size) ** 0.5 + 1e-9
    assert size > 5000


def test_random_replacements_are_all_regular_tokens(corpus):
    special = set(corpus.tokenizer.special_ids.tolist())
    seen: set[int] = set()
    for seed in range(10):
        draft = draft_of(whole(corpus), "stream", 64, rows=100, seed=seed)
        objective(rate=0.5, mask=0.0, random=1.0).make_targets(draft, np.random.default_rng(seed))
        seen |= set(draft.input_ids.reshape(-1)[draft.token_targets[LM_HEAD_NAME].index].tolist())
    assert seen == set(range(corpus.tokenizer.vocab_size)) - special


@pytest.mark.parametrize("unit", ["token", "word", "ngram"])
def test_a_row_with_its_own_rng_has_the_same_masks_in_any_batch(corpus, unit):
    draft = draft_of(whole(corpus), "segment_pair", 32, rows=12)
    alone = []
    for row in range(12):
        single = draft_of(whole(corpus), "segment_pair", 32, rows=12)
        single.spans = single.spans.select(np.array([row]))
        objective(unit).make_targets(single, PerRowRNG([[3, row]]))
        alone.append(single.input_ids[0])
    objective(unit).make_targets(draft, PerRowRNG([[3, row] for row in range(12)]))
    assert (draft.input_ids == np.stack(alone)).all()


def test_only_b_and_its_separator_are_masked_if_a_is_context(corpus):
    """A model that generates by filling masks must learn where to stop."""
    for unit in ("token", "word", "ngram"):
        ends = total = 0
        off = []  # masked tokens of a batch minus their expected number
        for seed in range(40):
            draft = draft_of(whole(corpus), "sentence_pair", 60, rows=50, seed=seed)
            objective(unit, rate=0.5, scored="second", attention_mask="prefix", mask=1.0, random=0.0).make_targets(
                draft, np.random.default_rng(seed))
            second, paired = draft.segment_b_start(), draft.spans.part_lengths(1) > 0
            rows, positions = np.divmod(draft.token_targets[LM_HEAD_NAME].index, 60)
            assert (positions >= second[rows]).all() and paired[rows].all()
            assert set(rows.tolist()) == set(np.flatnonzero(paired).tolist())
            assert (draft.prefix_lengths == second).all()
            ends += (positions == draft.lengths[rows] - 1).sum()
            total += paired.sum()
            off.append(len(positions) - 0.5 * (draft.lengths - second)[paired].sum())
        assert abs(ends / total - 0.5) < 4 * 0.5 / total**0.5
        assert abs(np.mean(off)) < 4 * np.std(off) / len(off) ** 0.5


def test_only_static_masking_has_a_number_of_copies():
    assert objective(dynamic=True).num_static_copies is None
    assert objective(dynamic=False, duplicates=4).num_static_copies == 4


def test_the_baseline_is_the_mean_unigram_loss_of_the_labels(corpus):
    from stemma.objectives import collate

    draft = draft_of(whole(corpus), "stream", 32, rows=4)
    task = objective()
    task.make_targets(draft, np.random.default_rng(0))
    unigram = np.log(np.arange(1, corpus.tokenizer.vocab_size + 1) / 1e4)
    expected = -np.mean([unigram[label] for label in draft.token_targets[LM_HEAD_NAME].labels])
    assert task.baseline(collate(draft), unigram)["masked_lm"] == pytest.approx(expected)
