"""Masked diffusion: masking rates and weights, the loss and its gradients, the bound, and sampling, against a literal
transcription of MDLM."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from literal import mdlm as literal
from small_corpora import draft_of, pieced_corpus, whole

import stemma
from stemma.corpus.corpus import Corpus
from stemma.errors import UserError
from stemma.evaluation.diffusion_bound import DiffusionScorer, bound_tokens
from stemma.evaluation.sentence_likelihood import sentence_log_likelihoods, sentence_score_kinds
from stemma.generation.decoding_mode import decoding_spec
from stemma.generation.diffusion import Unmasking
from stemma.generation.options import GenerationOptions
from stemma.network import dropout as dropout_module
from stemma.objectives import build_network, build_objectives
from stemma.objectives.base import LM_HEAD
from stemma.objectives.masked_diffusion import MaskedDiffusion, MaskedDiffusionSettings, sample_rates
from stemma.recipe_loading import recipe
from stemma.text.tokenizer import Tokenizer
from stemma.training.pretrain_loader import PretrainLoader
from stemma.training.training_step import TrainingStep

SMALL = ["network.layers=2", "network.width=24", "network.heads=3", "network.feedforward=20", "network.dropout=0.2",
         "training.batch_size=3"]
LENGTH = 14


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> Corpus:
    return pieced_corpus(tmp_path_factory.mktemp("pieced"))


@pytest.fixture(scope="module")
def model(tokenizer_folder):
    """A model with random weights everywhere, so that all parts matter."""
    tokenizer = Tokenizer.load(tokenizer_folder)
    built = stemma.build("mdlm@tiny", tokenizer.vocab_size, SMALL)
    built.tokenizer = tokenizer
    randomize(built.network)
    return built


def randomize(network: torch.nn.Module) -> None:
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.3 + 0.1)


@pytest.mark.parametrize("sampling", ["stratified", "independent"])
def test_each_row_has_its_rate_and_its_weight(corpus, sampling):
    objective = MaskedDiffusion("masked_diffusion", MaskedDiffusionSettings(kind="masked_diffusion", sampling=sampling))
    fractions, weights = [], []
    for seed in range(20):
        draft = draft_of(whole(corpus), "stream", 64, rows=32, seed=seed)
        original, candidates = draft.original_ids.copy(), MaskedDiffusion.candidates(draft)
        objective.make_targets(draft, np.random.default_rng(seed))
        target = draft.token_targets[LM_HEAD]
        masked = draft.input_ids == corpus.tokenizer.special_id("mask")
        assert set(masked.reshape(-1).nonzero()[0]) == set(target.index)
        assert (target.labels == original.reshape(-1)[target.index]).all()
        assert not (masked & ~candidates).any() and target.denominator == candidates.sum()
        row_weights = np.full(len(original), np.nan)
        row_weights[target.index // original.shape[1]] = target.weights
        fractions.append(masked.sum(1) / candidates.sum(1))
        weights.append(row_weights)
    fraction, rate = np.stack(fractions), 1 / np.stack(weights)
    known = ~np.isnan(rate)
    spread = np.sqrt(rate * (1 - rate) / 62)
    assert np.abs((fraction - rate)[known] / (spread[known] + 1e-3)).max() < 5
    assert rate[known].min() >= 1e-3 and rate[known].max() <= 1
    assert fraction.mean() == pytest.approx(0.5, abs=0.05)
    if sampling == "stratified":
        parts = np.floor(np.where(known, rate, np.nan) * 32)
        assert np.nanmax(np.abs(parts - np.arange(32))) <= 1


def test_rates_are_uniform_above_their_minimum():
    uniform = np.random.default_rng(0).random(4000)
    for stratified in (True, False):
        rates = sample_rates(uniform, 0.1, stratified)
        assert np.abs(np.sort(rates) - np.linspace(0.1, 1, 4000)).max() < 0.03
    assert np.abs(np.sort(sample_rates(uniform, 0.1, True)) - np.linspace(0.1, 1, 4000)).max() < 0.001


def literal_weights(network) -> literal.Weights:
    head = network.heads[LM_HEAD]
    final = network.encoder.final_norm
    weights = {"tokens": network.embedding.tokens.weight, "output_matrix": head.weight, "output_bias": head.bias,
               "norm": final.weight, "norm_bias": final.bias}
    for index, block in enumerate(network.encoder.blocks):
        for name, matrix in zip(("query", "key", "value"), block.attention.input.weight.chunk(3), strict=True):
            weights[f"{index}.{name}"] = matrix
        weights |= {f"{index}.output": block.attention.output.weight, f"{index}.inner": block.feedforward.input.weight,
                    f"{index}.inner_bias": block.feedforward.input.bias,
                    f"{index}.outer": block.feedforward.output.weight,
                    f"{index}.outer_bias": block.feedforward.output.bias,
                    f"{index}.norm1": block.attention_norm.weight, f"{index}.norm1_bias": block.attention_norm.bias,
                    f"{index}.norm2": block.feedforward_norm.weight, f"{index}.norm2_bias": block.feedforward_norm.bias}
    return weights


@pytest.mark.parametrize("training", [False, True], ids=["evaluation", "training"])
def test_the_loss_and_its_gradients_equal_the_transcription(corpus_folder, monkeypatch, training):
    chosen, corpus = recipe("mdlm@tiny", SMALL), Corpus.open(corpus_folder)
    objectives = build_objectives(chosen)
    loader, again = (PretrainLoader(chosen, corpus, objectives, seed=1) for _ in range(2))
    batch = replace(loader.get_batch(0, LENGTH).batch, objectives=("masked_diffusion",))
    draft = again.build_draft(0, LENGTH)[0]
    loader.close()
    again.close()
    network = build_network(chosen, corpus.tokenizer.vocab_size).double()
    randomize(network)
    weights, settings = literal_weights(network), chosen.settings.network
    drawn: list[torch.Tensor] = []
    draw = dropout_module.dropout_mask
    monkeypatch.setattr(dropout_module, "dropout_mask", lambda *arguments: drawn.append(draw(*arguments)) or drawn[-1])
    torch.manual_seed(3)
    network.train(training)
    # all positions are computed here, so that every dropout mask has its full length
    streams = {"encoder": replace(batch.streams["encoder"], output_positions=None)}
    ours = TrainingStep(network, objectives)(replace(batch, streams=streams)).total
    assert len(drawn) == (4 if training else 0)
    target, mask_token = batch.token_targets[LM_HEAD], corpus.tokenizer.special_id("mask")
    theirs = torch.zeros((), dtype=torch.float64)
    for row, tokens in enumerate(draft.original_ids.tolist()):
        ids = batch.streams["encoder"].input_ids[row].tolist()
        masked = [position for position, token in enumerate(ids) if token == mask_token]
        at = target.index // len(ids) == row
        assert masked == (target.index[at] % len(ids)).tolist()
        if not masked:
            continue
        rate = 1 / float(target.weights[at][0])
        scores = literal.logits(weights, 2, 3, settings.position.base, settings.norm.epsilon, ids,
                                [mask[row] for mask in drawn] if training else None)
        theirs = theirs + literal.row_cost(scores, tokens, masked, rate, mask_token)
    theirs = theirs / int(MaskedDiffusion.candidates(draft).sum())
    close = {"rtol": 1e-4, "atol": 1e-6, "check_dtype": False}  # the softmax is in single precision
    torch.testing.assert_close(ours, theirs, **close)
    parameters = list(network.parameters())
    for actual, expected in zip(torch.autograd.grad(ours, parameters, materialize_grads=True),
                                torch.autograd.grad(theirs, parameters, materialize_grads=True), strict=True):
        torch.testing.assert_close(actual, expected, **close)


def test_the_bound_is_the_mean_over_all_masks(model):
    """The estimate against the sum over all sets of masked tokens; the same text has the same score."""
    tokens = np.array(model.tokenizer.encode("the cat sees a", special=False).ids)[:5]
    scorer = DiffusionScorer(model, samples=600)
    template, special = scorer.template, scorer.template.index(None)
    row = [token for slot in template for token in (tokens.tolist() if slot is None else [slot])]
    exact = literal.bound(lambda ids: model.logits(torch.tensor([ids]))[0], row, special, len(tokens),
                          scorer.mask_token_id)
    [result] = bound_tokens(scorer, [tokens])
    deviation = result.variance**0.5
    assert 0 < deviation < 0.2 and abs(-result.log_probabilities.sum() - exact) < 4 * deviation
    assert (bound_tokens(scorer, [tokens])[0].log_probabilities == result.log_probabilities).all()


def test_long_texts_are_bounded_in_windows(model):
    """The first window is scored whole, the others at their new tokens; with one target a window is exact."""
    tokens = np.array(model.tokenizer.encode("the cat sees a dog and the dog sees a cat.", special=False).ids)[:9]
    scorer = DiffusionScorer(model, length=2 + 4, stride=1, samples=3)
    [result] = bound_tokens(scorer, [tokens])
    first = scorer.template.index(None)
    for last in range(4, len(tokens)):
        row = [token for slot in scorer.template
               for token in (tokens[last - 3:last + 1].tolist() if slot is None else [slot])]
        row[first + 3] = scorer.mask_token_id
        scores = model.logits(torch.tensor([row]))[0, first + 3]
        expected = float(literal.log_probability(scores, int(tokens[last]), scorer.mask_token_id))
        assert result.log_probabilities[last] == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("cache", [True, False])
@pytest.mark.parametrize("steps", [1, 3, 40])
def test_greedy_sampling_unmasks_as_the_paper_does(model, steps, cache):
    """Each position is unmasked in a step that is uniform among all steps, given what was unmasked before."""
    spec, tokenizer = decoding_spec(model), model.tokenizer
    prompt, count = tokenizer.encode("the cat", special=False).ids, 6
    uniform = torch.rand(2, 2, count, generator=torch.Generator().manual_seed(steps))
    options = GenerationOptions(tokens=count, steps=steps, greedy=True, cache=cache)
    state = Unmasking(model, spec, [prompt, prompt], options, uniform, tokenizer.vocab_size)
    with torch.inference_mode():
        log_probabilities = state.add_block(count)
    first = spec.row_template.index(None) + len(prompt)
    for row in range(2):
        tokens, values = [spec.mask_token_id] * count, [0.0] * count
        for step in range(steps):
            ids = [token for slot in spec.row_template for token in ([*prompt, *tokens] if slot is None else [slot])]
            scores = model.logits(torch.tensor([ids]))[0]
            for position in range(count):
                if int(uniform[row, 0, position] * steps) == step:
                    row_scores = scores[first + position].clone()
                    row_scores[spec.mask_token_id] = -torch.inf
                    tokens[position] = int(row_scores.argmax())
                    values[position] = float(row_scores.log_softmax(-1).max())
        assert state.text[row].tolist() == [*prompt, *tokens]
        assert log_probabilities[row].tolist() == pytest.approx(values, rel=1e-4)


def test_sampling_in_one_step_follows_the_distribution_of_the_network(model):
    spec, tokenizer = decoding_spec(model), model.tokenizer
    prompt = tokenizer.encode("the cat", special=False).ids
    count, rows = 1, 3000
    uniform = torch.rand(rows, 2, count, generator=torch.Generator().manual_seed(0))
    state = Unmasking(model, spec, [prompt] * rows, GenerationOptions(tokens=count, steps=1), uniform,
                      tokenizer.vocab_size)
    with torch.inference_mode():
        state.add_block(count)
    ids = [token for slot in spec.row_template
           for token in ([*prompt, spec.mask_token_id] if slot is None else [slot])]
    scores = model.logits(torch.tensor([ids]))[0, spec.row_template.index(None) + len(prompt)]
    scores[spec.mask_token_id] = -torch.inf
    expected = scores.softmax(-1)
    counted = torch.bincount(state.text[:, -1], minlength=tokenizer.vocab_size) / rows
    assert counted[spec.mask_token_id] == 0
    assert ((counted - expected).abs() <= 5 * (expected / rows).sqrt() + 1 / rows).all()


def test_generation_is_reproducible_and_has_no_masks(model):
    texts = [model.generate("the cat", tokens=12, steps=steps, seed=3, min_tokens=12)[0] for steps in (4, 4, 12)]
    assert texts[0].text == texts[1].text and texts[0].text != texts[2].text
    assert all(len(each.tokens) == 12 for each in texts)
    assert all(model.tokenizer.special_id("mask") not in each.tokens for each in texts)


def test_a_mask_is_never_filled_with_the_mask_token(model):
    [prediction] = model.fill("the cat [MASK] a dog", top=model.tokenizer.vocab_size)
    by_token = {candidate["token"]: candidate["probability"] for candidate in prediction["candidates"]}
    assert by_token[model.tokenizer.id_to_token(model.tokenizer.special_id("mask"))] == 0
    assert sum(by_token.values()) == pytest.approx(1, abs=1e-4)


@pytest.mark.parametrize(("changes", "message"), [
    (["network.embedding.logit_softcap=15"], "soft-capped logits are bounded"),
    (["objective.masked_diffusion.minimum_rate=0"], "between 0 and 1"),
    (["corpus.packing=contiguous"], "packing")])
def test_what_does_not_combine_is_refused(changes, message):
    with pytest.raises(UserError, match=message):
        recipe("mdlm@tiny", changes)


def test_wrong_options_are_refused(model, tokenizer_folder):
    with pytest.raises(UserError, match="these options") as caught:
        model.generate("the", beams=2, repetition_penalty=1.2)
    assert "beams" in str(caught.value) and "repetition_penalty" in str(caught.value)
    with pytest.raises(UserError, match="must be 1 or more"):
        DiffusionScorer(model, samples=0)
    with pytest.raises(UserError, match="--length 2"):
        DiffusionScorer(model, length=2)
    causal = stemma.build("gpt2@tiny", 60)
    causal.tokenizer = Tokenizer.load(tokenizer_folder)
    with pytest.raises(UserError, match="--steps is for diffusion models"):
        causal.generate("the", steps=4)


def test_sentences_are_scored_by_single_masks_or_by_the_bound(model):
    text, mask_token = "the cat sees a dog", model.tokenizer.special_id("mask")
    corpus = model.recipe.settings.corpus
    ids = model.tokenizer.with_template(corpus.single, corpus.pair).encode(text).ids
    single = 0.0
    for position in range(1, len(ids) - 1):
        row = [*ids[:position], mask_token, *ids[position + 1:]]
        scores = model.logits(torch.tensor([row]))[0, position]
        single += float(literal.log_probability(scores, ids[position], mask_token))
    assert list(sentence_score_kinds(model)) == ["masked", "bound"]
    assert sentence_log_likelihoods(model, [text])[0] == pytest.approx(single, rel=1e-4)
    tokens = np.array(model.tokenizer.encode(text, special=False).ids)
    expected = bound_tokens(DiffusionScorer(model, samples=32), [tokens])[0].log_probabilities.sum()
    assert sentence_log_likelihoods(model, [text, "a dog"], "bound")[0] == pytest.approx(expected, rel=1e-4)
