"""Perplexity by hand: nats of every token, over what was counted in the raw text."""

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


def made(kind="byte_bpe", recipe="gpt2@tiny", changes=(), roles=("end",), lowercase=False) -> stemma.Model:
    tokenizer = train_tokenizer(iter([TEXT]), kind, 300, lowercase=lowercase, roles=set(roles))
    torch.manual_seed(1)
    model = stemma.build(recipe, tokenizer.vocab_size, [*SMALL, *changes])
    perturb(model.network, 0)
    model.tokenizer = tokenizer
    return model


def passages(*texts: str) -> list[Passage]:
    return [Passage(text, True, "here") for text in texts]


def by_hand(model: stemma.Model, text: str) -> tuple[float, int]:
    """Nats and tokens of a text that fits the window."""
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


def test_the_numbers_by_hand(caplog):
    model = made()
    caplog.clear()
    texts = ["the old clerk", "a young reader é", "River"]
    seen: list[int] = []
    found = perplexity(model, passages(*texts), by_document=True, on_progress=seen.append)
    each = [by_hand(model, text) for text in texts]
    nats, tokens = (sum(column) for column in zip(*each, strict=True))
    assert found["tokens"] == tokens == sum(seen) and found["documents"] == 3 and found["unscored"] == 0
    assert (found["words"], found["characters"], found["bytes"]) == (8, 34, 35)
    assert found["perplexity"] == pytest.approx(math.exp(nats / tokens), rel=1e-5)
    assert found["word_perplexity"] == pytest.approx(math.exp(nats / 8), rel=1e-5)
    assert found["bits_per_byte"] == pytest.approx(nats / math.log(2) / 35, rel=1e-5)
    assert found["bits_per_character"] == pytest.approx(nats / math.log(2) / 34, rel=1e-5)
    assert found["unknown_rate"] == 0 and found["lossless"] and not caplog.messages
    assert [one["perplexity"] for one in found["by_document"]] == \
           pytest.approx([math.exp(nats / tokens) for nats, tokens in each], rel=1e-5)
    assert [one["begins"] for one in found["by_document"]] == texts


@pytest.mark.parametrize(("recipe", "changes"), [("gpt2@tiny", []), ("transformer-xl@tiny", []), ("xlnet@tiny", []),
                                                 ("gpt2@tiny", ["objective.causal_lm.direction=backward"])])
def test_the_perplexity_of_a_uniform_model_is_its_vocabulary_size(recipe, changes):
    model = made(recipe=recipe, changes=changes)
    with torch.no_grad():
        for parameter in model.network.parameters():
            parameter.zero_()
    found = perplexity(model, passages(TEXT, "the river"))
    assert found["perplexity"] == pytest.approx(model.network.vocab_size, rel=1e-6)
    assert found["bits_per_byte"] == pytest.approx(math.log2(model.network.vocab_size) * found["tokens"]
                                                   / found["bytes"], rel=1e-6)


def test_unscored_tokens_are_not_counted():
    text = "the old clerk"
    for changes, counted in (([], " old clerk"), (["objective.causal_lm.direction=backward"], "the old ")):
        model = made(roles=(), changes=changes)
        assert len(model.tokenizer.encode(text).ids) == 3
        found = perplexity(model, passages(text))
        assert (found["tokens"], found["unscored"]) == (2, 1)
        assert (found["words"], found["characters"]) == (2, len(counted))
    nats, tokens = by_hand(made(roles=()), text)
    assert perplexity(made(roles=()), passages(text))["perplexity"] == pytest.approx(math.exp(nats / tokens), rel=1e-5)


def test_chunks_of_one_document_are_one_text(monkeypatch):
    model = made()
    whole = perplexity(model, passages("the old clerk reads a letter."))
    parts = perplexity(model, [Passage("the old clerk", True, ""), Passage(" reads a letter.", False, "")])
    assert parts["perplexity"] == pytest.approx(whole["perplexity"], rel=1e-6) and parts["documents"] == 1
    several = perplexity(model, passages(*[TEXT[:200]] * 5, "a"))
    monkeypatch.setattr(task, "GROUP_CHARACTERS", 300)
    again = perplexity(model, passages(*[TEXT[:200]] * 5, "a"))
    assert again["perplexity"] == pytest.approx(several["perplexity"], rel=1e-6)
    assert [again[key] for key in ("tokens", "words", "documents")] == \
           [several[key] for key in ("tokens", "words", "documents")]


@pytest.mark.parametrize(("kind", "lowercase", "text", "said"), [
    ("wordpiece", False, "the old zebra 北", "tokens are unknown"),
    ("wordpiece", True, "The old clerk", "knows no capitals"),
    ("wordpiece", False, "the  old clerk", "does not keep all white space"),
])
def test_incomparable_numbers_are_reported(kind, lowercase, text, said, caplog):
    model = made(kind, roles=("end", "unknown"), lowercase=lowercase)
    caplog.clear()
    found = perplexity(model, passages(text))
    assert len(caplog.messages) == 1 and said in caplog.messages[0] and not found["lossless"]
    assert (found["unknown_rate"] > 0) == ("unknown" in said)


def test_a_single_word_or_token_is_reported(caplog):
    model = made()
    caplog.clear()
    perplexity(model, passages("river"))
    assert len(caplog.messages) == 1 and "single word" in caplog.messages[0]
    with pytest.raises(UserError, match="nothing to predict"):
        perplexity(made(roles=()), passages("the"))
    bare = stemma.build("gpt2@tiny", 300, SMALL)
    with pytest.raises(UserError, match="no tokenizer"):
        perplexity(bare, passages("the"))


def test_a_shorter_stride_gives_more_context_and_is_reported():
    model = made()
    found = {stride: perplexity(model, passages(TEXT[:300]), stride=stride) for stride in (1, 6, 12, None)}
    assert found[1]["perplexity"] != pytest.approx(found[12]["perplexity"], rel=1e-4)
    assert_close(found[None]["perplexity"], found[6]["perplexity"])
    assert [found[6][key] for key in ("length", "stride")] == [12, 6] and "memory" not in found[6]
    remembering = perplexity(made(recipe="transformer-xl@tiny"), passages(TEXT[:300]), memory=5)
    assert remembering["memory"] == 5 and "stride" not in remembering
