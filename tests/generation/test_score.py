"""The probability of given text: every way of reading must give what one plain pass over the whole text gives."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from closeness import assert_close
from parity.reference import perturb

import stemma
from stemma.errors import UserError
from stemma.evaluation.likelihood import encode_pairs, log_probabilities, score_continuations, score_tokens
from stemma.evaluation.lm_scorer import LMScorer
from stemma.network.inputs_outputs import QUERY, Stream
from stemma.text.train_tokenizer import train_tokenizer
from stemma.visibility import Causal, Permutation, Visibility

SMALL = ["network.layers=2", "network.width=24", "network.heads=3", "network.feedforward=32"]
MEMORY = ["network.memory.length=6", "network.memory.evaluation=9", "network.attention.head_width=8"]
VARIANTS = {
    "gpt": ("gpt@tiny", ["network.position.maximum=64"]),
    "gpt2": ("gpt2@tiny", ["network.position.maximum=64"]),
    "gpt3": ("gpt3@tiny", ["network.position.maximum=64", "network.attention.windows=[0, 5]"]),
    "backward": ("gpt2@tiny", ["network.position.maximum=64", "objective.causal_lm.direction=backward"]),
    "universal": ("universal-transformer@tiny", []),
    "universal-convolution": ("universal-transformer@tiny", ["network.transition=convolution"]),
    "xl": ("transformer-xl@tiny", MEMORY),
    "xl-adaptive": ("transformer-xl@tiny", [*MEMORY, "network.embedding.cutoffs=[20, 50]",
                                            "network.embedding.shrink=2"]),
    "xlnet": ("xlnet@tiny", ["network.memory.length=6", "network.memory.evaluation=9",
                             "network.attention.head_width=8"]),
}
WINDOWED = ["gpt", "gpt2", "gpt3", "universal", "universal-convolution"]
REMEMBERING = ["xl", "xl-adaptive", "xlnet"]


def tokenizer(kind="byte_bpe", roles=None):
    text = "the old clerk reads a letter. a young reader forgets the river. " * 20
    return train_tokenizer(iter([text]), kind, 300, lowercase=False, roles=roles)


def made(name: str, length: int = 16, roles=("end",)) -> stemma.Model:
    recipe, changes = VARIANTS[name]
    words = tokenizer(roles=set(roles) if roles is not None else None)
    torch.manual_seed(1)
    model = stemma.build(recipe, words.vocab_size, [*SMALL, *changes, f"corpus.sequence_length={length}"])
    perturb(model.network, 3)
    model.tokenizer = words
    return model


def random_text(model: stemma.Model, length: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(5, model.network.vocab_size, length)


@torch.no_grad()
def plainly(model: stemma.Model, laid: np.ndarray, backward: bool = False) -> np.ndarray:
    """The log-probability of all but the first, from one pass and the whole softmax."""
    stream = Stream(torch.tensor(laid[None, :-1].copy()), Causal(),
                    reversed_rows=torch.tensor([True]) if backward else None)
    logits = model.lm_head()(model.network({"encoder": stream})["encoder"])
    return logits.log_softmax(-1)[0].gather(1, torch.tensor(laid[1:, None].copy()))[:, 0].numpy()


def test_log_probabilities_in_blocks_are_those_of_the_whole_softmax(monkeypatch):
    model = made("gpt2")
    hidden, labels = torch.randn(11, 24), torch.randint(model.network.vocab_size, (11,))
    logits = model.lm_head()(hidden)
    labels[::3] = logits.argmax(-1)[::3]
    monkeypatch.setattr("stemma.evaluation.likelihood.BLOCK_LOGITS", 4 * model.network.vocab_size)
    values, likeliest = log_probabilities(model.lm_head(), hidden, labels, model.network.vocab_size)
    torch.testing.assert_close(values, logits.log_softmax(-1).gather(1, labels[:, None])[:, 0])
    assert likeliest.tolist() == (logits.argmax(-1) == labels).tolist()
    assert 4 <= likeliest.sum() < 11


@pytest.mark.parametrize("name", [*WINDOWED, "backward"])
@pytest.mark.parametrize("count", [1, 2, 15, 16])
def test_a_text_that_fits_is_read_in_one_pass(name, count):
    model = made(name)
    text = random_text(model, count)
    (found,) = score_tokens(LMScorer(model), [text])
    laid = np.concatenate([[model.tokenizer.special_token_ids["end"]], text[::-1] if name == "backward" else text])
    expected = plainly(model, laid, name == "backward")
    np.testing.assert_allclose(found[::-1] if name == "backward" else found, expected, atol=2e-5)


@pytest.mark.parametrize("name", ["gpt2", "gpt3", "universal"])
@pytest.mark.parametrize("stride", [1, 3, 8, 16])
def test_each_token_is_guessed_from_its_window(name, stride):
    model = made(name)
    texts = [random_text(model, length, seed) for seed, length in enumerate([50, 16, 1, 17, 33])]
    reader = LMScorer(model, stride=stride)
    for text, found in zip(texts, score_tokens(reader, texts), strict=True):
        laid, done = reader.with_bos(text), 0
        while done < len(text):
            end = min(len(text), done + stride if done else 16)
            expected = plainly(model, laid[max(0, end - 16):end + 1])[-(end - done):]
            np.testing.assert_allclose(found[done:end], expected, atol=2e-5)
            done = end
    with_context = [plainly(model, laid[max(0, place - 15):place + 2])[-1]
                    for laid in [reader.with_bos(texts[0])] for place in range(50)]
    (every,) = score_tokens(LMScorer(model, stride=1), texts[:1])
    np.testing.assert_allclose(every, with_context, atol=2e-5)


def test_without_a_token_before_it_the_first_is_not_scored():
    model = made("gpt2", roles=[])
    text = random_text(model, 40)
    reader = LMScorer(model)
    assert reader.bos_id is None
    (found,) = score_tokens(reader, [text])
    assert math.isnan(found[0]) and np.isfinite(found[1:]).all()
    np.testing.assert_allclose(found[1:17], plainly(model, text[:17]), atol=2e-5)
    (one,) = score_tokens(reader, [text[:1]])
    assert len(one) == 1 and math.isnan(one[0])


def test_backward_without_an_end_token_leaves_the_last_out():
    model = made("backward", roles=[])
    text = random_text(model, 12)
    (found,) = score_tokens(LMScorer(model), [text])
    assert math.isnan(found[-1])
    np.testing.assert_allclose(found[:-1][::-1], plainly(model, text[::-1], True), atol=2e-5)


class Segments(Visibility):
    """What reading segment by segment with a memory comes to, over the whole text at once."""

    def __init__(self, length: int, memory: int, first: int):
        for name, value in {"length": length, "memory": memory, "first": first}.items():
            object.__setattr__(self, name, value)

    def allows(self, query, key):
        begins = self.first + (query - self.first).div(self.length, rounding_mode="floor") * self.length
        return (key[None, :] <= query[:, None]) & (key[None, :] >= (begins - self.memory)[:, None])


@torch.no_grad()
def in_one_pass(model: stemma.Model, reader: LMScorer, laid: np.ndarray) -> np.ndarray:
    """The whole text read at once, everybody seeing as far as with the memory."""
    kept = model.network.settings.memory.model_copy(update={"evaluation": 1000, "start": "empty", "same_length": False})
    before = model.network.settings
    ids = torch.tensor(laid[None])
    length = len(laid)
    try:
        if reader.permuted:  # the first token was read alone, then segments of the rest
            model.network.settings = before.model_copy(update={"memory": kept})
            order = torch.arange(length)[None]
            sees = Permutation(order) & Segments(reader.length, reader.memory, 1)
            stream = Stream(ids, sees, query_positions=torch.arange(1, length)[None])
            hidden = model.network({"encoder": stream})[QUERY]
        else:  # zeros stand before, and nobody looks farther back than the memory is long, so one pass will do
            hidden = model.network({"encoder": Stream(ids[:, :-1], Causal())})["encoder"]
    finally:
        model.network.settings = before
    return model.lm_head()(hidden).log_softmax(-1)[0].gather(1, ids[0, 1:, None])[:, 0].numpy()


@pytest.mark.parametrize("name", REMEMBERING)
@pytest.mark.parametrize("length", [3, 8, 100])
def test_state_reuse_gives_what_recomputing_gives(name, length):
    model = made(name)
    texts = [random_text(model, count, seed) for seed, count in enumerate([40, 7, 1, 23])]
    reader = LMScorer(model, length=length)
    for text, found in zip(texts, score_tokens(reader, texts), strict=True):
        np.testing.assert_allclose(found, in_one_pass(model, reader, reader.with_bos(text)), atol=3e-5)


@pytest.mark.parametrize("name", REMEMBERING)
@pytest.mark.parametrize("count", [4, 7, 10, 31])
def test_a_last_segment_of_one_token_is_no_exception(name, count):
    model = made(name)
    text, reader = random_text(model, count), LMScorer(model, length=3)
    (found,) = score_tokens(reader, [text])
    np.testing.assert_allclose(found, in_one_pass(model, reader, reader.with_bos(text)), atol=3e-5)


def test_a_longer_memory_is_asked_for_and_given_back():
    model = made("xl")
    text = random_text(model, 60)
    before = model.network.settings
    short, usual, long = (score_tokens(LMScorer(model, length=4, memory=m), [text])[0] for m in (2, None, 30))
    assert np.abs(short - usual)[8:].max() > 1e-3 and np.abs(long - usual)[20:].max() > 1e-3
    assert model.network.settings is before
    assert_close(score_tokens(LMScorer(model, length=4, memory=9), [text])[0], usual)


def test_nothing_is_read_twice_with_a_memory(monkeypatch):
    model = made("xl")
    read = []
    monkeypatch.setattr(LMScorer, "_forward", lambda self, ids, *rest, original=LMScorer._forward, **more:
                        read.append(ids.numel()) or original(self, ids, *rest, **more))
    score_tokens(LMScorer(model, length=5), [random_text(model, 50)])
    assert sum(read) == 50


@pytest.mark.parametrize("name", [name for name in VARIANTS if name != "xl-adaptive"])  # its parts differ in size
def test_a_uniform_model_gives_every_token_the_same_share(name):
    model = made(name)
    with torch.no_grad():
        for parameter in model.network.parameters():
            parameter.zero_()
    (found,) = score_tokens(LMScorer(model), [random_text(model, 37)])
    np.testing.assert_allclose(found, -math.log(model.network.vocab_size), rtol=1e-6)


CONTEXTS = ["the old clerk", "the old clerk", "the old clerk", "a young", "the river the river", ""]
CONTINUATIONS = [" reads", " forgets a letter", " the", " reader forgets", " reader", "the old"]


@pytest.mark.parametrize("name", [name for name in VARIANTS if name != "backward"])
def test_continuations_are_scored_as_parts_of_whole_texts(name):
    model = made(name, length=24)
    found = score_continuations(model, CONTEXTS, CONTINUATIONS)
    reader = LMScorer(model)
    for context, continuation, one in zip(CONTEXTS, CONTINUATIONS, found, strict=True):
        before = len(model.tokenizer.encode(context, special=False).ids)
        ids = np.array(model.tokenizer.encode(context + continuation, special=False).ids)
        expected = score_tokens(reader, [ids])[0][before:]
        assert one.num_tokens == len(expected) >= 1 and one.num_truncated == 0
        assert one.log_probability == pytest.approx(expected.sum(), abs=1e-4)


@torch.no_grad()
def said_after(reader: LMScorer, context: str, count: int) -> list[int]:
    """What greedy decoding says: the likeliest token each time, all read anew."""
    laid = list(reader.with_bos(np.array(reader.model.tokenizer.encode(context, special=False).ids)))
    for _ in range(count):
        with torch.inference_mode():
            ids = torch.tensor([[*laid, 0]])
            cache = reader.new_cache(keep=True)
            reader.prefill(ids[:, :-1], cache)
            hidden = reader.target_states(ids[:, -2:], torch.tensor([[True]]), cache)
            laid.append(int(reader.model.lm_head()(hidden).argmax()))
    return laid[-count:]


@pytest.mark.parametrize("name", ["gpt2", "xl", "xlnet"])
def test_greedy_says_whether_it_would_have_been_said(name):
    model = made(name, length=40)
    reader = LMScorer(model)
    hits = 0
    for context in [a + b for a in ("the old clerk", "a", "young", "forgets the", "the river")
                    for b in (".", " reads", " river", " letter", " a", " old")]:
        said = said_after(reader, context, 2)
        text = model.tokenizer.decode(said, skip_special=False)
        if model.tokenizer.encode(context + text, special=False).ids[-2:] != said or "\ufffd" in text:
            continue  # what it says would be spelt with other tokens
        yes, other = score_continuations(model, [context] * 2, [text, " river forgets"])
        assert yes.is_greedy and yes.num_tokens == 2
        spelt = model.tokenizer.encode(context + " river forgets", special=False).ids[-other.num_tokens:]
        assert other.is_greedy == (spelt == said_after(reader, context, other.num_tokens))
        hits += 1
    assert hits >= 1


def test_a_token_over_the_seam_belongs_to_the_continuation():
    model = made("gpt2")
    reader = LMScorer(model)
    ((context, tokens),) = encode_pairs(reader, ["the old cl"], ["erk reads"])
    assert model.tokenizer.decode(tokens).strip() == "clerk reads"
    assert list(np.concatenate([context, tokens])[1:]) == model.tokenizer.encode("the old clerk reads").ids


def test_a_context_without_room_loses_its_beginning():
    model = made("gpt2", length=8)
    long = "the old clerk reads a letter. " * 6
    for continuations in ([" the river"], [" the river", " a"]):
        found = score_continuations(model, [long] * len(continuations), continuations)
        ids = model.tokenizer.encode(long + " the river", special=False).ids
        assert found[0].num_tokens == 2 and found[0].num_truncated == len(ids) + 1 - 2 - 7
        expected = plainly(model, np.array(ids[-9:]))[-2:].sum()
        assert found[0].log_probability == pytest.approx(expected, abs=1e-4)


def test_what_cannot_be_scored_is_told():
    bert = stemma.build("bert@tiny", 100, ["network.width=16"])
    with pytest.raises(UserError, match="bert@tiny fills gaps and does not read from one end"):
        LMScorer(bert)
    model = made("gpt2")
    with pytest.raises(UserError) as told:
        LMScorer(model, length=65, stride=0, memory=4)
    assert [where for where, _ in told.value.problems] == ["--length 65", "--stride 0", "--memory 4"]
    with pytest.raises(UserError) as told:
        LMScorer(made("xl"), stride=4, memory=0)
    assert [where for where, _ in told.value.problems] == ["--stride 4", "--memory 0"]
    with pytest.raises(UserError, match='"" adds no token to "the old"'):
        score_continuations(model, ["the old"], [""])
    with pytest.raises(UserError, match="tokens long and gpt2@tiny"):
        score_continuations(model, ["the old"], [" river" * 40])
    with pytest.raises(UserError, match="reads texts from their end"):
        score_continuations(made("backward"), ["a"], [" b"])
