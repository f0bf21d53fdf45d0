"""Log-probabilities of text: windows, memories and caches give the values of one pass over the whole text."""

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
MEMORY = ["network.memory.length=6", "network.memory.eval_length=9", "network.attention.head_width=8"]
VARIANTS = {
    "gpt": ("gpt@tiny", ["network.position.maximum=64"]),
    "gpt2": ("gpt2@tiny", ["network.position.maximum=64"]),
    "gpt3": ("gpt3@tiny", ["network.position.maximum=64", "network.attention.windows=[0, 5]"]),
    "backward": ("gpt2@tiny", ["network.position.maximum=64", "objective.causal_lm.direction=backward"]),
    "universal": ("universal-transformer@tiny", []),
    "universal-convolution": ("universal-transformer@tiny", ["network.transition=convolution"]),
    "xl": ("transformer-xl@tiny", MEMORY),
    "xl-adaptive": ("transformer-xl@tiny", [*MEMORY, "network.embedding.cutoffs=[20, 50]",
                                            "network.embedding.div_val=2"]),
    "xlnet": ("xlnet@tiny", ["network.memory.length=6", "network.memory.eval_length=9",
                             "network.attention.head_width=8"]),
}
WINDOWED = ["gpt", "gpt2", "gpt3", "universal", "universal-convolution"]
WITH_MEMORY = ["xl", "xl-adaptive", "xlnet"]


def tokenizer(kind="byte_bpe", roles=None):
    text = "the old clerk reads a letter. a young reader forgets the river. " * 20
    return train_tokenizer(iter([text]), kind, 300, lowercase=False, roles=roles)


def build_model(name: str, length: int = 16, roles=("end",)) -> stemma.Model:
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
def reference_log_probabilities(model: stemma.Model, row_ids: np.ndarray, backward: bool = False) -> np.ndarray:
    """The log-probabilities of all tokens but the first, from one pass and the full softmax."""
    stream = Stream(torch.tensor(row_ids[None, :-1].copy()), Causal(),
                    reversed_rows=torch.tensor([True]) if backward else None)
    logits = model.lm_head()(model.network({"encoder": stream})["encoder"])
    return logits.log_softmax(-1)[0].gather(1, torch.tensor(row_ids[1:, None].copy()))[:, 0].numpy()


def test_log_probabilities_in_blocks_match_the_full_softmax(monkeypatch):
    model = build_model("gpt2")
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
def test_a_text_that_fits_the_window_is_scored_in_one_pass(name, count):
    model = build_model(name)
    text = random_text(model, count)
    (result,) = score_tokens(LMScorer(model), [text])
    row_ids = np.concatenate([[model.tokenizer.special_token_ids["end"]], text[::-1] if name == "backward" else text])
    expected = reference_log_probabilities(model, row_ids, name == "backward")
    np.testing.assert_allclose(result[::-1] if name == "backward" else result, expected, atol=2e-5)


@pytest.mark.parametrize("name", ["gpt2", "gpt3", "universal"])
@pytest.mark.parametrize("stride", [1, 3, 8, 16])
def test_each_token_is_scored_with_the_context_of_its_window(name, stride):
    model = build_model(name)
    texts = [random_text(model, length, seed) for seed, length in enumerate([50, 16, 1, 17, 33])]
    reader = LMScorer(model, stride=stride)
    for text, result in zip(texts, score_tokens(reader, texts), strict=True):
        row_ids, done = reader.with_bos(text), 0
        while done < len(text):
            end = min(len(text), done + stride if done else 16)
            expected = reference_log_probabilities(model, row_ids[max(0, end - 16):end + 1])[-(end - done):]
            np.testing.assert_allclose(result[done:end], expected, atol=2e-5)
            done = end
    with_context = [reference_log_probabilities(model, row_ids[max(0, position - 15):position + 2])[-1]
                    for row_ids in [reader.with_bos(texts[0])] for position in range(50)]
    (every,) = score_tokens(LMScorer(model, stride=1), texts[:1])
    np.testing.assert_allclose(every, with_context, atol=2e-5)


def test_without_a_begin_token_the_first_token_is_not_scored():
    model = build_model("gpt2", roles=[])
    text = random_text(model, 40)
    reader = LMScorer(model)
    assert reader.bos_id is None
    (result,) = score_tokens(reader, [text])
    assert math.isnan(result[0]) and np.isfinite(result[1:]).all()
    np.testing.assert_allclose(result[1:17], reference_log_probabilities(model, text[:17]), atol=2e-5)
    (one,) = score_tokens(reader, [text[:1]])
    assert len(one) == 1 and math.isnan(one[0])


def test_backward_without_an_end_token_the_last_token_is_not_scored():
    model = build_model("backward", roles=[])
    text = random_text(model, 12)
    (result,) = score_tokens(LMScorer(model), [text])
    assert math.isnan(result[-1])
    np.testing.assert_allclose(result[:-1][::-1], reference_log_probabilities(model, text[::-1], True), atol=2e-5)


class Segments(Visibility):
    """The attention mask over the whole text that equals reading segments with a memory."""

    def __init__(self, length: int, memory: int, first: int):
        for name, value in {"length": length, "memory": memory, "first": first}.items():
            object.__setattr__(self, name, value)

    def allows(self, query, key):
        begins = self.first + (query - self.first).div(self.length, rounding_mode="floor") * self.length
        return (key[None, :] <= query[:, None]) & (key[None, :] >= (begins - self.memory)[:, None])


@torch.no_grad()
def in_one_pass(model: stemma.Model, reader: LMScorer, row_ids: np.ndarray) -> np.ndarray:
    """Log-probabilities from one pass over the whole text, with the attention span of the memory."""
    before = model.network.settings
    memory = before.memory.model_copy(update={"evaluation": 1000, "start": "empty", "same_length": False})
    ids = torch.tensor(row_ids[None])
    length = len(row_ids)
    try:
        if reader.permuted:  # the first token is read alone, then segments of the others
            model.network.settings = before.model_copy(update={"memory": memory})
            order = torch.arange(length)[None]
            attention_mask = Permutation(order) & Segments(reader.length, reader.memory, 1)
            stream = Stream(ids, attention_mask, query_positions=torch.arange(1, length)[None])
            hidden = model.network({"encoder": stream})[QUERY]
        else:  # the memory starts with zeros and limits the attention span, so one pass is equivalent
            hidden = model.network({"encoder": Stream(ids[:, :-1], Causal())})["encoder"]
    finally:
        model.network.settings = before
    return model.lm_head()(hidden).log_softmax(-1)[0].gather(1, ids[0, 1:, None])[:, 0].numpy()


@pytest.mark.parametrize("name", WITH_MEMORY)
@pytest.mark.parametrize("length", [3, 8, 100])
def test_reusing_the_memory_equals_recomputing(name, length):
    model = build_model(name)
    texts = [random_text(model, count, seed) for seed, count in enumerate([40, 7, 1, 23])]
    reader = LMScorer(model, length=length)
    for text, result in zip(texts, score_tokens(reader, texts), strict=True):
        np.testing.assert_allclose(result, in_one_pass(model, reader, reader.with_bos(text)), atol=3e-5)


@pytest.mark.parametrize("name", WITH_MEMORY)
@pytest.mark.parametrize("count", [4, 7, 10, 31])
def test_a_last_segment_of_one_token_is_scored_too(name, count):
    model = build_model(name)
    text, reader = random_text(model, count), LMScorer(model, length=3)
    (result,) = score_tokens(reader, [text])
    np.testing.assert_allclose(result, in_one_pass(model, reader, reader.with_bos(text)), atol=3e-5)


def test_another_memory_length_is_used_and_restored():
    model = build_model("xl")
    text = random_text(model, 60)
    before = model.network.settings
    short, usual, long = (score_tokens(LMScorer(model, length=4, memory=m), [text])[0] for m in (2, None, 30))
    assert np.abs(short - usual)[8:].max() > 1e-3 and np.abs(long - usual)[20:].max() > 1e-3
    assert model.network.settings is before
    assert_close(score_tokens(LMScorer(model, length=4, memory=9), [text])[0], usual)


def test_with_a_memory_each_token_is_read_once(monkeypatch):
    model = build_model("xl")
    num_read = []
    monkeypatch.setattr(LMScorer, "_forward", lambda self, ids, *rest, original=LMScorer._forward, **more:
                        num_read.append(ids.numel()) or original(self, ids, *rest, **more))
    score_tokens(LMScorer(model, length=5), [random_text(model, 50)])
    assert sum(num_read) == 50


@pytest.mark.parametrize("name", [name for name in VARIANTS if name != "xl-adaptive"])  # its clusters differ in size
def test_a_model_of_zeros_gives_uniform_probabilities(name):
    model = build_model(name)
    with torch.no_grad():
        for parameter in model.network.parameters():
            parameter.zero_()
    (result,) = score_tokens(LMScorer(model), [random_text(model, 37)])
    np.testing.assert_allclose(result, -math.log(model.network.vocab_size), rtol=1e-6)


CONTEXTS = ["the old clerk", "the old clerk", "the old clerk", "a young", "the river the river", ""]
CONTINUATIONS = [" reads", " forgets a letter", " the", " reader forgets", " reader", "the old"]


@pytest.mark.parametrize("name", [name for name in VARIANTS if name != "backward"])
def test_continuations_have_the_scores_of_the_whole_text(name):
    model = build_model(name, length=24)
    result = score_continuations(model, CONTEXTS, CONTINUATIONS)
    reader = LMScorer(model)
    for context, continuation, one in zip(CONTEXTS, CONTINUATIONS, result, strict=True):
        before = len(model.tokenizer.encode(context, special=False).ids)
        ids = np.array(model.tokenizer.encode(context + continuation, special=False).ids)
        expected = score_tokens(reader, [ids])[0][before:]
        assert one.num_tokens == len(expected) >= 1 and one.num_truncated == 0
        assert one.log_probability == pytest.approx(expected.sum(), abs=1e-4)


@torch.no_grad()
def greedy_continuation(reader: LMScorer, context: str, count: int) -> list[int]:
    """Token ids of greedy decoding, recomputed for every token."""
    row_ids = list(reader.with_bos(np.array(reader.model.tokenizer.encode(context, special=False).ids)))
    for _ in range(count):
        with torch.inference_mode():
            ids = torch.tensor([[*row_ids, 0]])
            cache = reader.new_cache(keep=True)
            reader.prefill(ids[:, :-1], cache)
            hidden = reader.target_states(ids[:, -2:], torch.tensor([[True]]), cache)
            row_ids.append(int(reader.model.lm_head()(hidden).argmax()))
    return row_ids[-count:]


@pytest.mark.parametrize("name", ["gpt2", "xl", "xlnet"])
def test_is_greedy_is_true_exactly_for_the_greedy_continuation(name):
    model = build_model(name, length=40)
    reader = LMScorer(model)
    hits = 0
    for context in [a + b for a in ("the old clerk", "a", "young", "forgets the", "the river")
                    for b in (".", " reads", " river", " letter", " a", " old")]:
        greedy_ids = greedy_continuation(reader, context, 2)
        text = model.tokenizer.decode(greedy_ids, skip_special=False)
        if model.tokenizer.encode(context + text, special=False).ids[-2:] != greedy_ids or "\ufffd" in text:
            continue  # the text has another tokenization
        greedy, other = score_continuations(model, [context] * 2, [text, " river forgets"])
        assert greedy.is_greedy and greedy.num_tokens == 2
        spelt = model.tokenizer.encode(context + " river forgets", special=False).ids[-other.num_tokens:]
        assert other.is_greedy == (spelt == greedy_continuation(reader, context, other.num_tokens))
        hits += 1
    assert hits >= 1


def test_a_token_across_the_boundary_belongs_to_the_continuation():
    model = build_model("gpt2")
    reader = LMScorer(model)
    ((context, tokens),) = encode_pairs(reader, ["the old cl"], ["erk reads"])
    assert model.tokenizer.decode(tokens).strip() == "clerk reads"
    assert list(np.concatenate([context, tokens])[1:]) == model.tokenizer.encode("the old clerk reads").ids


def test_a_context_that_is_too_long_is_truncated_at_its_start():
    model = build_model("gpt2", length=8)
    long = "the old clerk reads a letter. " * 6
    for continuations in ([" the river"], [" the river", " a"]):
        result = score_continuations(model, [long] * len(continuations), continuations)
        ids = model.tokenizer.encode(long + " the river", special=False).ids
        assert result[0].num_tokens == 2 and result[0].num_truncated == len(ids) + 1 - 2 - 7
        expected = reference_log_probabilities(model, np.array(ids[-9:]))[-2:].sum()
        assert result[0].log_probability == pytest.approx(expected, abs=1e-4)


def test_models_and_options_that_cannot_score_are_refused():
    bert = stemma.build("bert@tiny", 100, ["network.width=16"])
    with pytest.raises(UserError, match="bert@tiny fills gaps and does not read from one end"):
        LMScorer(bert)
    model = build_model("gpt2")
    with pytest.raises(UserError) as error:
        LMScorer(model, length=65, stride=0, memory=4)
    assert [option for option, _ in error.value.problems] == ["--length 65", "--stride 0", "--memory 4"]
    with pytest.raises(UserError) as error:
        LMScorer(build_model("xl"), stride=4, memory=0)
    assert [option for option, _ in error.value.problems] == ["--stride 4", "--memory 0"]
    with pytest.raises(UserError, match='"" adds no token to "the old"'):
        score_continuations(model, ["the old"], [""])
    with pytest.raises(UserError, match="tokens long and gpt2@tiny"):
        score_continuations(model, ["the old"], [" river" * 40])
    with pytest.raises(UserError, match="reads texts from their end"):
        score_continuations(build_model("backward"), ["a"], [" b"])
