"""Beam search against looking at every text there is."""

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


def toy(tokenizer, seed: int) -> stemma.Model:
    torch.manual_seed(seed)
    model = stemma.build("gpt2@tiny", tokenizer.vocab_size, CHANGES)
    perturb(model.network, seed)
    model.tokenizer = tokenizer
    return model


def every_text(model: stemma.Model, prompt: list[int], longest: int, alpha: float) -> list[tuple[float, tuple]]:
    """All texts that end, or are as long as allowed, with what they are compared by: the best first."""
    end = model.tokenizer.special_token_ids["end"]
    found = []
    for length in range(1, longest + 1):
        texts = [text for text in itertools.product(range(model.network.vocab_size), repeat=length)
                 if end not in text[:-1] and (text[-1] == end or length == longest)]
        logits = model.logits(torch.tensor([[*prompt, *text] for text in texts])).log_softmax(-1)
        for row, text in zip(logits, texts, strict=True):
            chance = sum(float(row[len(prompt) - 1 + place, token]) for place, token in enumerate(text))
            found.append((chance / ((5 + length) / 6) ** alpha, text, chance))
    return sorted(found, reverse=True)


@pytest.mark.parametrize("alpha", [0.0, 0.6, 2.0, -1.0])
@pytest.mark.parametrize("seed", range(3))
def test_enough_beams_are_exhaustive(tokenizer, seed, alpha):
    model = toy(tokenizer, seed)
    assert model.network.vocab_size == 6
    prompts = [[3], [4, 5, 3]]
    found = generate(model, prompts, tokens=3, beams=216, completions=5, length_penalty=alpha, batch=500)
    for number, prompt in enumerate(prompts):
        expected = every_text(model, prompt, 3, alpha)[:5]
        mine = [one for one in found if one.prompt_index == number]
        assert [one.tokens for one in mine] == [text for _, text, _ in expected]
        assert [one.log_probability for one in mine] == pytest.approx([chance for *_, chance in expected], abs=1e-4)


def plain_search(model: stemma.Model, prompt: list[int], longest: int, beams: int, alpha: float) -> tuple[int, ...]:
    """Beam search as it is told: no early end, everything read anew."""
    end = model.tokenizer.special_token_ids["end"]
    live, ended = [((), 0.0)], []
    for length in range(1, longest + 1):
        found = []
        for text, chance in live:
            logits = model.logits(torch.tensor([[*prompt, *text]]))[0, -1].log_softmax(-1).tolist()
            found += [((*text, token), chance + more) for token, more in enumerate(logits)]
        found = sorted(found, key=lambda pair: -pair[1])[:2 * beams]  # an end must be among the best, too
        over = [pair for pair in found if pair[0][-1] == end or length == longest]
        ended += [(chance / ((5 + length) / 6) ** alpha, text) for text, chance in over]
        live = [pair for pair in found if pair not in over][:beams]
    return max(ended)[1]


@pytest.mark.parametrize("alpha", [0.0, 1.0])
@pytest.mark.parametrize("beams", [2, 4])
def test_few_beams_find_what_a_plain_search_finds(tokenizer, beams, alpha):
    lengths = set()
    for seed in range(20):
        model = toy(tokenizer, seed)
        (found,) = generate(model, [[3, 4]], tokens=6, beams=beams, length_penalty=alpha)
        assert found.tokens == plain_search(model, [3, 4], 6, beams, alpha)
        lengths.add(len(found.tokens))
    assert len(lengths) > 1


def test_a_length_penalty_favours_length(tokenizer):
    shorter, longer = (sum(len(one.tokens) for seed in range(6) for one in
                           generate(toy(tokenizer, seed), [[3], [4]], tokens=8, beams=4, length_penalty=alpha))
                       for alpha in (0.0, 3.0))
    assert shorter < longer
    assert length_penalty(1, 0.6) == 1.0 and length_penalty(7, 1.0) == 2.0


@pytest.mark.parametrize("alpha, tokens, over", [(0.0, 20, True), (1.0, 20, False), (1.0, 2, True), (-3.0, 20, True)])
def test_the_search_goes_on_while_a_beginning_could_still_win(alpha, tokens, over):
    """After one token a beginning of -2 can reach -2 / ((5 + n) / 6)^alpha, with n from 2 to `tokens`."""
    ended = [FinishedHypothesis(-1.4, -1.4, (2,))]
    assert is_done(-2.0, ended, GenerationOptions(beams=2, length_penalty=alpha), 1, tokens) == over
    assert is_done(-math.inf, [], GenerationOptions(beams=2), 1, tokens) and not is_done(-2.0, [],
        GenerationOptions(beams=2), 1, tokens)


def test_texts_do_not_end_before_they_may(tokenizer):
    end = tokenizer.special_token_ids["end"]
    for seed in range(3):
        for one in generate(toy(tokenizer, seed), [[3]], tokens=6, min_tokens=4, beams=3, completions=3):
            assert len(one.tokens) >= 5 and end not in one.tokens[:4]


def test_a_stop_string_ends_a_beam(tokenizer):
    found = [one for seed in range(5) for one in generate(toy(tokenizer, seed), [[3]], tokens=6, beams=3, stop="b")]
    assert all("b" not in one.text for one in found)
    assert {"stop"} < {one.finish_reason for one in found}


def test_beams_and_completions_must_fit(tokenizer):
    with pytest.raises(UserError) as error:
        generate(toy(tokenizer, 0), [[3]], beams=2, completions=3)
    assert error.value.problems == [("completions", "2 beams cannot give 3 completions; ask for more beams")]
