"""Perplexity per token, word and byte, against values by hand."""

from __future__ import annotations

import math

import pytest
import torch
from closeness import assert_close
from parity.reference import perturb

import stemma
from stemma.errors import UserError
from stemma.evaluation import perplexity as task
from stemma.evaluation.perplexity import count_words, exp_mean, perplexity
from stemma.text.readers import Passage
from stemma.text.train_tokenizer import train_tokenizer

TEXT = "the old clerk reads a letter. a young reader forgets the river. " * 20
SMALL = ["network.layers=1", "network.width=16", "network.heads=2", "network.feedforward=16",
         "corpus.sequence_length=12"]


def random_model(kind="byte_bpe", recipe="gpt2@tiny", changes=(), roles=("end",), lowercase=False) -> stemma.Model:
    tokenizer = train_tokenizer(iter([TEXT]), kind, 300, lowercase=lowercase, roles=set(roles))
    torch.manual_seed(1)
    model = stemma.build(recipe, tokenizer.vocab_size, [*SMALL, *changes])
    perturb(model.network, 0)
    model.tokenizer = tokenizer
    return model


def passages(*texts: str) -> list[Passage]:
    return [Passage(text, True, "here") for text in texts]


def by_hand(model: stemma.Model, text: str) -> tuple[float, int]:
    """Nats and token count of a text that fits the maximum length."""
    start = [model.tokenizer.special_token_ids["end"]] if "end" in model.tokenizer.special_token_ids else []
    ids = torch.tensor([start + model.tokenizer.encode(text, special=False).ids])
    chances = model.logits(ids[:, :-1]).log_softmax(-1).gather(2, ids[:, 1:, None])
    return -float(chances.double().sum()), chances.numel()


def test_words_are_split_at_spaces_and_chinese_characters_are_words():
    assert count_words("") == 0
    assert count_words(" one two\n\tthree.") == 3
    assert count_words("北京 is 大") == 4
    assert count_words("a北b") == 3


def test_exponentials_never_overflow():
    assert exp_mean(2.0, 2) == pytest.approx(math.e)
    assert exp_mean(1e6, 1) == math.inf
    assert math.isnan(exp_mean(0.0, 0))


def test_perplexity_and_bits_equal_values_by_hand(caplog):
    model = random_model()
    caplog.clear()
    texts = ["the old clerk", "a young reader é", "River"]
    seen: list[int] = []
    result = perplexity(model, passages(*texts), by_document=True, on_progress=seen.append)
    each = [by_hand(model, text) for text in texts]
    nats, tokens = (sum(column) for column in zip(*each, strict=True))
    assert result["tokens"] == tokens == sum(seen) and result["documents"] == 3 and result["unscored"] == 0
    assert (result["words"], result["characters"], result["bytes"]) == (8, 34, 35)
    assert result["perplexity"] == pytest.approx(math.exp(nats / tokens), rel=1e-5)
    assert result["word_perplexity"] == pytest.approx(math.exp(nats / 8), rel=1e-5)
    assert result["bits_per_byte"] == pytest.approx(nats / math.log(2) / 35, rel=1e-5)
    assert result["bits_per_character"] == pytest.approx(nats / math.log(2) / 34, rel=1e-5)
    assert result["unknown_rate"] == 0 and result["lossless"] and not caplog.messages
    assert [document["perplexity"] for document in result["by_document"]] == \
           pytest.approx([math.exp(nats / tokens) for nats, tokens in each], rel=1e-5)
    assert [document["begins"] for document in result["by_document"]] == texts


@pytest.mark.parametrize(("recipe", "changes"), [("gpt2@tiny", []), ("transformer-xl@tiny", []), ("xlnet@tiny", []),
                                                 ("gpt2@tiny", ["objective.causal_lm.direction=backward"])])
def test_the_perplexity_of_a_uniform_model_is_its_vocabulary_size(recipe, changes):
    model = random_model(recipe=recipe, changes=changes)
    with torch.no_grad():
        for parameter in model.network.parameters():
            parameter.zero_()
    result = perplexity(model, passages(TEXT, "the river"))
    assert result["perplexity"] == pytest.approx(model.network.vocab_size, rel=1e-6)
    assert result["bits_per_byte"] == pytest.approx(math.log2(model.network.vocab_size) * result["tokens"]
                                                   / result["bytes"], rel=1e-6)


def test_unscored_tokens_are_not_counted():
    text = "the old clerk"
    for changes, counted in (([], " old clerk"), (["objective.causal_lm.direction=backward"], "the old ")):
        model = random_model(roles=(), changes=changes)
        assert len(model.tokenizer.encode(text).ids) == 3
        result = perplexity(model, passages(text))
        assert (result["tokens"], result["unscored"]) == (2, 1)
        assert (result["words"], result["characters"]) == (2, len(counted))
    nats, tokens = by_hand(random_model(roles=()), text)
    result = perplexity(random_model(roles=()), passages(text))
    assert result["perplexity"] == pytest.approx(math.exp(nats / tokens), rel=1e-5)


def test_chunks_of_one_document_are_one_text(monkeypatch):
    model = random_model()
    complete = perplexity(model, passages("the old clerk reads a letter."))
    parts = perplexity(model, [Passage("the old clerk", True, ""), Passage(" reads a letter.", False, "")])
    assert parts["perplexity"] == pytest.approx(complete["perplexity"], rel=1e-6) and parts["documents"] == 1
    several = perplexity(model, passages(*[TEXT[:200]] * 5, "a"))
    monkeypatch.setattr(task, "GROUP_CHARACTERS", 300)
    again = perplexity(model, passages(*[TEXT[:200]] * 5, "a"))
    assert again["perplexity"] == pytest.approx(several["perplexity"], rel=1e-6)
    assert [again[key] for key in ("tokens", "words", "documents")] == \
           [several[key] for key in ("tokens", "words", "documents")]


@pytest.mark.parametrize(("kind", "lowercase", "text", "expected"), [
    ("wordpiece", False, "the old zebra 北", "tokens are unknown"),
    ("wordpiece", True, "The old clerk", "knows no capitals"),
    ("wordpiece", False, "the  old clerk", "does not keep all white space"),
])
def test_incomparable_numbers_are_reported(kind, lowercase, text, expected, caplog):
    model = random_model(kind, roles=("end", "unknown"), lowercase=lowercase)
    caplog.clear()
    result = perplexity(model, passages(text))
    assert len(caplog.messages) == 1 and expected in caplog.messages[0] and not result["lossless"]
    assert (result["unknown_rate"] > 0) == ("unknown" in expected)


def test_a_single_word_or_token_is_reported(caplog):
    model = random_model()
    caplog.clear()
    perplexity(model, passages("river"))
    assert len(caplog.messages) == 1 and "single word" in caplog.messages[0]
    with pytest.raises(UserError, match="nothing to predict"):
        perplexity(random_model(roles=()), passages("the"))
    bare = stemma.build("gpt2@tiny", 300, SMALL)
    with pytest.raises(UserError, match="no tokenizer"):
        perplexity(bare, passages("the"))


def test_a_shorter_stride_gives_more_context_and_is_reported():
    model = random_model()
    result = {stride: perplexity(model, passages(TEXT[:300]), stride=stride) for stride in (1, 6, 12, None)}
    assert result[1]["perplexity"] != pytest.approx(result[12]["perplexity"], rel=1e-4)
    assert_close(result[None]["perplexity"], result[6]["perplexity"])
    assert [result[6][key] for key in ("length", "stride")] == [12, 6] and "memory" not in result[6]
    remembering = perplexity(random_model(recipe="transformer-xl@tiny"), passages(TEXT[:300]), memory=5)
    assert remembering["memory"] == 5 and "stride" not in remembering
