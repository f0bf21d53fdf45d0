"""Beam search against an exhaustive search over all texts."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from parity.reference import perturb

import stemma
from stemma.errors import UserError
from stemma.generation.beam import FinishedHypothesis, is_done, length_penalty
from stemma.generation.generate import generate
from stemma.generation.options import GenerationOptions
from stemma.text.train_tokenizer import train_tokenizer

CHANGES = ["network.layers=1", "network.width=16", "network.heads=2", "network.feedforward=16",
           "corpus.sequence_length=16"]


@pytest.fixture(scope="module")
def tokenizer():
    """Six tokens: padding, unknown, the end, and three letters."""
    return train_tokenizer(iter(["a b c\n" * 4]), "word", 6, lowercase=False, roles={"end"})


def build_toy_model(tokenizer, seed: int) -> stemma.Model:
    torch.manual_seed(seed)
    model = stemma.build("gpt2@tiny", tokenizer.vocab_size, CHANGES)
    perturb(model.network, seed)
    model.tokenizer = tokenizer
    return model


def every_text(model: stemma.Model, prompt: list[int], longest: int, alpha: float) -> list[tuple[float, tuple]]:
    """All texts that end or have the maximum length, as (score, tokens, log-probability), best first."""
    end = model.tokenizer.special_token_ids["end"]
    results = []
    for length in range(1, longest + 1):
        texts = [text for text in itertools.product(range(model.network.vocab_size), repeat=length)
                 if end not in text[:-1] and (text[-1] == end or length == longest)]
        logits = model.logits(torch.tensor([[*prompt, *text] for text in texts])).log_softmax(-1)
        for row, text in zip(logits, texts, strict=True):
            log_probability = sum(float(row[len(prompt) - 1 + index, token]) for index, token in enumerate(text))
            results.append((log_probability / ((5 + length) / 6) ** alpha, text, log_probability))
    return sorted(results, reverse=True)


@pytest.mark.parametrize("alpha", [0.0, 0.6, 2.0, -1.0])
@pytest.mark.parametrize("seed", range(3))
def test_beam_search_with_enough_beams_equals_exhaustive_search(tokenizer, seed, alpha):
    model = build_toy_model(tokenizer, seed)
    assert model.network.vocab_size == 6
    prompts = [[3], [4, 5, 3]]
    result = generate(model, prompts, tokens=3, beams=216, completions=5, length_penalty=alpha, batch=500)
    for index, prompt in enumerate(prompts):
        expected = every_text(model, prompt, 3, alpha)[:5]
        completions = [completion for completion in result if completion.prompt_index == index]
        assert [completion.tokens for completion in completions] == [text for _, text, _ in expected]
        assert [c.log_probability for c in completions] == pytest.approx([value for *_, value in expected], abs=1e-4)


def plain_search(model: stemma.Model, prompt: list[int], longest: int, beams: int, alpha: float) -> tuple[int, ...]:
    """Beam search by its definition: no early stopping and no cache."""
    end = model.tokenizer.special_token_ids["end"]
    live, ended = [((), 0.0)], []
    for length in range(1, longest + 1):
        candidates = []
        for text, score in live:
            logits = model.logits(torch.tensor([[*prompt, *text]]))[0, -1].log_softmax(-1).tolist()
            candidates += [((*text, token), score + more) for token, more in enumerate(logits)]
        # 2 * beams, so that at least `beams` hypotheses stay live if others end
        candidates = sorted(candidates, key=lambda pair: -pair[1])[:2 * beams]
        finished = [pair for pair in candidates if pair[0][-1] == end or length == longest]
        ended += [(score / ((5 + length) / 6) ** alpha, text) for text, score in finished]
        live = [pair for pair in candidates if pair not in finished][:beams]
    return max(ended)[1]


@pytest.mark.parametrize("alpha", [0.0, 1.0])
@pytest.mark.parametrize("beams", [2, 4])
def test_few_beams_find_what_an_uncached_search_finds(tokenizer, beams, alpha):
    lengths = set()
    for seed in range(20):
        model = build_toy_model(tokenizer, seed)
        (result,) = generate(model, [[3, 4]], tokens=6, beams=beams, length_penalty=alpha)
        assert result.tokens == plain_search(model, [3, 4], 6, beams, alpha)
        lengths.add(len(result.tokens))
    assert len(lengths) > 1


def test_a_length_penalty_favours_longer_texts(tokenizer):
    def total_length(alpha):
        models = [build_toy_model(tokenizer, seed) for seed in range(6)]
        return sum(len(completion.tokens) for model in models for completion in
                   generate(model, [[3], [4]], tokens=8, beams=4, length_penalty=alpha))

    shorter, longer = total_length(0.0), total_length(3.0)
    assert shorter < longer
    assert length_penalty(1, 0.6) == 1.0 and length_penalty(7, 1.0) == 2.0


@pytest.mark.parametrize("alpha, tokens, expected", [(0.0, 20, True), (1.0, 20, False), (1.0, 2, True),
                                                     (-3.0, 20, True)])
def test_the_search_continues_while_a_live_hypothesis_could_still_win(alpha, tokens, expected):
    """After one token a hypothesis with -2 can reach -2 / ((5 + n) / 6)^alpha, with n from 2 to `tokens`."""
    ended = [FinishedHypothesis(-1.4, -1.4, (2,))]
    assert is_done(-2.0, ended, GenerationOptions(beams=2, length_penalty=alpha), 1, tokens) == expected
    assert is_done(-math.inf, [], GenerationOptions(beams=2), 1, tokens) and not is_done(-2.0, [],
        GenerationOptions(beams=2), 1, tokens)


def test_min_tokens_delays_the_end_token(tokenizer):
    end = tokenizer.special_token_ids["end"]
    for seed in range(3):
        model = build_toy_model(tokenizer, seed)
        for completion in generate(model, [[3]], tokens=6, min_tokens=4, beams=3, completions=3):
            assert len(completion.tokens) >= 5 and end not in completion.tokens[:4]


def test_a_stop_string_ends_a_beam(tokenizer):
    models = [build_toy_model(tokenizer, seed) for seed in range(5)]
    result = [c for model in models for c in generate(model, [[3]], tokens=6, beams=3, stop="b")]
    assert all("b" not in completion.text for completion in result)
    assert {"stop"} < {completion.finish_reason for completion in result}


def test_more_completions_than_beams_are_refused(tokenizer):
    with pytest.raises(UserError) as error:
        generate(build_toy_model(tokenizer, 0), [[3]], beams=2, completions=3)
    assert error.value.problems == [("completions", "2 beams cannot give 3 completions; ask for more beams")]
