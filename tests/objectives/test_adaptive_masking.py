"""Adaptive masking: weights of token types against a literal transcription (arXiv:2510.20475), and what they select."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from small_corpora import draft_of, pieced_corpus, whole

from stemma.corpus.corpus import Corpus
from stemma.errors import UserError
from stemma.objectives import build_network, build_objectives
from stemma.objectives.adaptive_masking import AdaptiveMasking
from stemma.objectives.base import LM_HEAD
from stemma.objectives.masked_lm import MaskedLM, MaskedLMSettings
from stemma.recipe_loading import recipe
from stemma.training.pretrain_loader import PretrainLoader
from stemma.training.training_step import TrainingStep

SMALL = ["network.layers=1", "network.width=16", "network.heads=2", "network.feedforward=16", "training.batch_size=6",
         "objective.masked_lm.adaptive=true"]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> Corpus:
    return pieced_corpus(tmp_path_factory.mktemp("pieced"))


def objective(**settings) -> MaskedLM:
    values = {"kind": "masked_lm", "rate": 0.15, "unit": "token", "dynamic": True, "adaptive": True, **settings}
    return MaskedLM("masked_lm", MaskedLMSettings(**values))


def test_weights_equal_the_transcription():
    """Token type by token type: w = decay w + (1 - decay) (1 - (correct + 1/2) / (masked + 1)), from 1."""
    vocabulary, interval, decay = 11, 3, 0.2
    adaptive, generator = AdaptiveMasking(interval, decay), torch.Generator().manual_seed(0)
    expected = [1.0] * vocabulary
    masked, correct = [0] * vocabulary, [0] * vocabulary
    for step in range(13):
        if step and step % interval == 0:
            for token in range(vocabulary):
                score = (correct[token] + 0.5) / (masked[token] + 1)
                expected[token] = decay * expected[token] + (1 - decay) * (1 - score)
            masked, correct = [0] * vocabulary, [0] * vocabulary
        adaptive.start_step(step)
        if step >= interval:
            assert adaptive.weights.tolist() == pytest.approx(expected)
        else:
            assert adaptive.weights is None
        labels = torch.randint(0, vocabulary - 1, (20,), generator=generator)  # the last type never occurs
        right = torch.rand(20, generator=generator) < 0.1 * labels
        adaptive.add_predictions(labels, right, vocabulary)
        for label, is_right in zip(labels.tolist(), right.tolist(), strict=True):
            masked[label] += 1
            correct[label] += is_right
    assert max(expected[:-1]) - min(expected[:-1]) > 0.3


def test_tokens_are_masked_in_proportion_to_their_weights(corpus):
    """With one target per row, a token's probability is its weight divided by the weights of the row."""
    chosen, vocabulary = objective(rate=1e-6), corpus.tokenizer.vocab_size
    weights = torch.rand(vocabulary, generator=torch.Generator().manual_seed(1), dtype=torch.float64) ** 2 + 0.01
    chosen._adaptive.weights = weights
    trials, draft = 4000, draft_of(whole(corpus), "stream", 12, rows=1)
    draft.spans = draft.spans.select(np.zeros(trials, dtype=np.int64))
    chosen.make_targets(draft, np.random.default_rng(0))
    columns = draft.token_targets[LM_HEAD].index % 12
    assert len(columns) == trials
    counts = np.bincount(columns, minlength=12)
    of_row = np.where(draft.is_text[0], weights.numpy()[draft.original_ids[0]], 0)
    expected = of_row / of_row.sum()
    assert (np.abs(counts / trials - expected) <= 4.5 * np.sqrt(expected * (1 - expected) / trials) + 1e-9).all()


def test_the_masking_rate_does_not_change_and_easy_tokens_are_masked_less(corpus):
    vocabulary = corpus.tokenizer.vocab_size
    uniform, adaptive = objective(adaptive=False), objective()
    easy = np.arange(vocabulary) % 2 == 0
    adaptive._adaptive.weights = torch.from_numpy(np.where(easy, 0.1, 1.0))
    shares = []
    for chosen in (uniform, adaptive):
        draft = draft_of(whole(corpus), "stream", 64, rows=200)
        chosen.make_targets(draft, np.random.default_rng(0))
        target = draft.token_targets[LM_HEAD]
        shares.append((len(target.index), easy[target.labels].mean()))
    assert shares[0][0] == shares[1][0]
    assert shares[1][1] < 0.4 * shares[0][1]


def test_masks_are_uniform_before_the_first_update_and_in_validation(corpus):
    drafts = [draft_of(whole(corpus), "stream", 64, rows=20) for _ in range(3)]
    objective(adaptive=False).make_targets(drafts[0], np.random.default_rng(0))
    fresh, updated = objective(), objective()
    fresh.make_targets(drafts[1], np.random.default_rng(0))
    updated._adaptive.weights = torch.rand(corpus.tokenizer.vocab_size, dtype=torch.float64) + 0.01
    updated.make_validation_targets(drafts[2], np.random.default_rng(0))
    for draft in drafts[1:]:
        assert (draft.input_ids == drafts[0].input_ids).all()


def test_predictions_of_training_batches_are_counted(corpus_folder):
    chosen, corpus = recipe("modernbert@tiny", SMALL), Corpus.open(corpus_folder)
    objectives = build_objectives(chosen)
    loader = PretrainLoader(chosen, corpus, objectives, seed=0)
    batch = replace(loader.get_batch(0, 32).batch, objectives=("masked_lm",))
    loader.close()
    torch.manual_seed(0)
    network = build_network(chosen, corpus.tokenizer.vocab_size)
    step, adaptive = TrainingStep(network, objectives), objectives[0]._adaptive
    network.eval()
    plain = step(batch).total
    assert adaptive.counts is None
    network.train()
    step(replace(batch, held_out=True))
    assert adaptive.counts is None
    torch.testing.assert_close(step(batch).total, plain)
    target = batch.token_targets[LM_HEAD]
    logits = network.heads[LM_HEAD](network(batch.streams)["encoder"].flatten(0, 1)[target.index])
    correct = logits.argmax(-1) == target.labels
    vocabulary = corpus.tokenizer.vocab_size
    assert torch.equal(adaptive.counts[1], torch.bincount(target.labels, minlength=vocabulary).double())
    assert torch.equal(adaptive.counts[0], torch.bincount(target.labels[correct], minlength=vocabulary).double())


@pytest.mark.parametrize(("name", "changes", "message"), [
    ("ltg-bert@tiny", [], "has error rates of tokens"), ("bert-wwm@tiny", [], "has error rates of tokens"),
    ("bert@tiny", [], "changes the masks during training"),
    ("modernbert@tiny", ["objective.masked_lm.adaptive_decay=1"], "adaptive_decay"),
    ("modernbert@tiny", ["network.embedding.cutoffs=[20]"], "adaptive softmax")])
def test_what_does_not_combine_is_refused(name, changes, message):
    with pytest.raises(UserError, match=message):
        recipe(name, ["objective.masked_lm.adaptive=true", *changes])
