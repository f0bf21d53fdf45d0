"""Masked next-token prediction: targets, GPT-BERT's two losses and their gradients against a literal transcription."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from literal import ltg_bert as literal
from network.test_ltg_bert import SIZES, build
from small_corpora import draft_of, pieced_corpus, whole

import stemma
from stemma.corpus.corpus import Corpus
from stemma.errors import UserError
from stemma.evaluation.sentence_likelihood import sentence_log_likelihoods
from stemma.network import dropout as dropout_module
from stemma.network.attention import self_attention
from stemma.objectives import build_objectives
from stemma.objectives.base import LM_HEAD
from stemma.objectives.masked_lm import MaskedLM, MaskedLMSettings
from stemma.recipe_loading import recipe
from stemma.training.pretrain_loader import PretrainLoader
from stemma.training.training_step import TrainingStep

SMALL = [change for change in SIZES if "vocab_size" not in change] + ["training.batch_size=1",
                                                                      "remove=training.batch_schedule"]
LENGTH, Z_LOSS = 21, 0.01


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> Corpus:
    return pieced_corpus(tmp_path_factory.mktemp("pieced"))


@pytest.mark.parametrize("unit", ["token", "word", "ngram", "span"])
def test_a_chosen_token_is_predicted_at_the_position_before_it(corpus, unit):
    settings = MaskedLMSettings(kind="masked_lm", rate=0.3, unit=unit, dynamic=True, shifted=True, mask=1.0, random=0.0)
    draft = draft_of(whole(corpus), "stream", 48, rows=60)
    before = draft.original_ids.copy()
    MaskedLM("masked_lm", settings).make_targets(draft, np.random.default_rng(0))
    target = draft.token_targets[LM_HEAD]
    row, column = np.divmod(target.index, before.shape[1])
    assert (target.labels == before[row, column + 1]).all()
    masked = draft.input_ids == corpus.tokenizer.special_id("mask")
    expected = np.zeros_like(masked)
    expected[row, column + 1] = True
    assert (masked == expected).all() and not masked[:, 0].any()
    assert masked.sum() / draft.is_text.sum() == pytest.approx(0.3, abs=0.03)
    assert (draft.input_ids[~masked] == before[~masked]).all()


def test_a_row_without_a_first_special_token_masks_from_its_second_token(corpus):
    """Other templates are refused in recipes; the objective itself never predicts across the end of a row."""
    settings = MaskedLMSettings(kind="masked_lm", rate=0.9, unit="token", dynamic=True, shifted=True)
    draft = draft_of(whole(corpus), "stream", 16, rows=40, single="A")
    MaskedLM("masked_lm", settings).make_targets(draft, np.random.default_rng(0))
    columns = draft.token_targets[LM_HEAD].index % draft.original_ids.shape[1]
    assert columns.min() == 0 and columns.max() < draft.original_ids.shape[1] - 1


def batches(corpus_folder):
    """One masked and one causal batch of one row, each with its original tokens and the one after them."""
    chosen, corpus = recipe("gpt-bert@tiny", SMALL), Corpus.open(corpus_folder)
    objectives = build_objectives(chosen)
    loader, again = (PretrainLoader(chosen, corpus, objectives, seed=0) for _ in range(2))
    found = {}
    for step in range(40):
        prepared, draft = loader.get_batch(step, LENGTH), again.build_draft(step, LENGTH)[0]
        [objective] = prepared.objectives
        found.setdefault(objective.name, (replace(prepared.batch, objectives=(objective.name,)),
                                          [*draft.original_ids[0].tolist(), int(draft.next_tokens()[0, -1])]))
    loader.close()
    again.close()
    return objectives, corpus.tokenizer, found


@pytest.mark.parametrize("training", [False, True], ids=["evaluation", "training"])
@pytest.mark.parametrize("name", ["masked_lm", "causal_lm"])
def test_losses_and_gradients_equal_the_transcription(corpus_folder, monkeypatch, name, training):
    objectives, tokenizer, found = batches(corpus_folder)
    network, shape, weights = build("gpt-bert", vocabulary=tokenizer.vocab_size)
    network.heads[LM_HEAD].z_loss = Z_LOSS
    batch, original = found[name]
    ids = batch.streams["encoder"].input_ids[0].tolist()
    predicted = (batch.token_targets[LM_HEAD].index + 1).tolist()
    if name == "masked_lm":
        changed = [position for position, token in enumerate(ids) if token != original[position]]
        assert changed and set(changed) <= set(predicted)
    else:
        assert ids == original[:-1] and predicted == list(range(1, len(original)))
    drawn: list[torch.Tensor] = []
    draw = dropout_module.dropout_mask

    def record(*arguments):
        drawn.append(draw(*arguments))
        return drawn[-1]

    monkeypatch.setattr(dropout_module, "dropout_mask", record)
    monkeypatch.setattr(self_attention, "dropout_mask", record)
    torch.manual_seed(3)
    network.train(training)
    ours = TrainingStep(network, objectives)(batch).total
    masks = [full_length(mask, [position - 1 for position in predicted], len(ids)) for mask in drawn]
    assert bool(masks) == training
    scores = literal.logits(weights, shape, ids, causal=name == "causal_lm", masks=masks if training else None)
    theirs = literal.next_token_loss(scores, original, predicted, Z_LOSS if training else 0.0)
    close = {"rtol": 1e-4, "atol": 1e-6, "check_dtype": False}  # the softmax is in single precision
    torch.testing.assert_close(ours, theirs, **close)
    parameters = list(network.parameters())
    for actual, expected in zip(torch.autograd.grad(ours, parameters, materialize_grads=True),
                                torch.autograd.grad(theirs, parameters, materialize_grads=True), strict=True):
        torch.testing.assert_close(actual, expected, **close)


def full_length(mask: torch.Tensor, predicting: list[int], length: int) -> torch.Tensor:
    """A dropout mask of one row for all positions. The last layer and the head compute only the positions that
    predict; at the others it does not matter what is dropped."""
    mask = mask[0] if mask.dim() > 2 else mask
    if mask.shape[-2] != len(predicting) or len(predicting) == length:
        return mask
    shape = (*mask.shape[:-2], length, mask.shape[-1])
    return torch.ones(shape, dtype=mask.dtype).index_copy(-2, torch.tensor(predicting), mask)


def test_the_share_of_masked_batches_is_a_key(corpus_folder):
    for weight, share in ((15.0, 15 / 16), (1.0, 1 / 2)):
        chosen = recipe("gpt-bert@tiny", [*SMALL, f"objective.masked_lm.sampling_weight={weight}"])
        loader = PretrainLoader(chosen, Corpus.open(corpus_folder), build_objectives(chosen), seed=0)
        names = [loader.step_signature(step, LENGTH, 0.0)[1] for step in range(1000)]
        loader.close()
        assert names.count(("masked_lm",)) / len(names) == pytest.approx(share, abs=0.04)


@pytest.fixture(scope="module")
def model(tokenizer_folder):
    from stemma.text.tokenizer import Tokenizer

    torch.manual_seed(0)
    tokenizer = Tokenizer.load(tokenizer_folder)
    built = stemma.build("gpt-bert@tiny", tokenizer.vocab_size, SMALL)
    built.tokenizer = tokenizer
    return built


def test_masks_are_filled_by_the_position_before_them(model):
    text = "the cat sees [MASK] dog"
    ids = torch.tensor([model.tokenizer.with_template("start A", "start A separator B separator").encode(text).ids])
    [prediction] = model.fill(text, top=3)
    assert ids[0, prediction["position"]] == model.tokenizer.special_id("mask")
    expected = model.logits(ids)[0, prediction["position"] - 1].softmax(-1).topk(3)
    assert [candidate["probability"] for candidate in prediction["candidates"]] == \
        pytest.approx(expected.values.tolist(), rel=1e-4)


def test_sentences_are_scored_by_the_position_before_each_mask(model):
    text = "the cat sees a dog"
    ids = torch.tensor(model.tokenizer.with_template("start A", "start A separator B separator").encode(text).ids)
    masked, causal = 0.0, 0.0
    for position in range(1, len(ids)):
        row = ids.clone()
        row[position] = model.tokenizer.special_id("mask")
        masked += float(model.logits(row[None])[0, position - 1].log_softmax(-1)[ids[position]])
    assert sentence_log_likelihoods(model, [text], "masked")[0] == pytest.approx(masked, rel=1e-4)
    causal = float(sentence_log_likelihoods(model, [text], "causal")[0])
    assert np.isfinite(causal) and causal != pytest.approx(masked, rel=1e-3)


@pytest.mark.parametrize(("changes", "message"), [
    (["corpus.single=A"], 'begin with "start"'),
    (["objective.masked_lm.attention_mask=causal"], "masked next-token prediction is bidirectional"),
    (["objective.masked_lm.scored=second"], "masked next-token prediction is bidirectional"),
    (["objective.masked_lm.dynamic=false"], "needs dynamic masks")])
def test_what_does_not_combine_is_refused(changes, message):
    with pytest.raises(UserError, match=message):
        recipe("gpt-bert@tiny", changes)


def test_span_boundary_needs_the_masked_positions():
    with pytest.raises(UserError, match="reads the masked positions themselves"):
        recipe("spanbert@tiny", ["objective.masked_lm.shifted=true"])
