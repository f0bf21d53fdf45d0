"""Token classification at the first subtoken of each word, against a slow reference."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
import toy_tasks
from conftest import small_text
from torch.nn import functional

import stemma
from stemma.exchange.default_heads import default_task_heads
from stemma.network.network import Network
from stemma.schema.task_options import parse_task_options
from stemma.task_config import TaskConfig
from stemma.tasks.data.examples import TaggedExample
from stemma.tasks.objectives.token_classification import first_subtokens
from stemma.tasks.runs.build_objective import build_task_objective
from stemma.tasks.runs.finetune_run import input_encoder_for, predict_examples, task_head_specs
from stemma.text.train_tokenizer import train_tokenizer

LABELS = ("B-PER", "I-PER", "O")
WORDS = ["The", "librarian", ",", "Printer's", "a", "e\u0301le\u0300ve", "\u200b", "\u5b57", "x" * 30, "."]


def first_literally(words: list[str], offsets: list[tuple[int, int]]) -> list[int]:
    """Character by character: the first token that holds one of a word's."""
    found, begin = [], 0
    for word in words:
        inside = set(range(begin, begin + len(word)))
        found.append(next((number for number, (a, b) in enumerate(offsets) if inside & set(range(a, b))), -1))
        begin += len(word) + 1
    return found


@pytest.mark.parametrize("kind", ["wordpiece", "bpe", "byte_bpe", "unigram", "word", "character"])
def test_the_first_subtoken_of_each_word(kind):
    tokenizer = train_tokenizer(iter([small_text()]), kind, 60 if kind == "wordpiece" else 400, lowercase=True,
                                roles={"padding", "unknown", "start", "separator"})
    for words in (WORDS, WORDS[::-1], ["\u200b"], ["the"] * 5):
        offsets = tokenizer.encode(" ".join(words), special=False).offsets
        found = first_subtokens(words, np.array(offsets, np.int64).reshape(-1, 2)).tolist()
        assert found == first_literally(words, offsets)
        assert -1 not in found or "\u200b" in words or kind in ("bpe", "character")


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> stemma.Model:
    body = stemma.load(toy_tasks.save_model(tmp_path_factory.mktemp("tagger") / "model", vocabulary=64))
    corpus = body.recipe.settings.corpus
    card = TaskConfig("task", "tag", LABELS, default_task_heads(body, "tag", 3, "task"), corpus.single, corpus.pair,
                      24, (),
                parse_task_options("tag", {"counts": [1, 1, 2]}))
    torch.manual_seed(1)
    network = Network(body.recipe.settings.network, body.network.vocab_size, task_head_specs({"task": card})).eval()
    network.load_state_dict(body.network.state_dict(), strict=False)
    return replace(body, network=network, task_configs={"task": card})


@pytest.fixture
def learner(model):
    return build_task_objective(model.task_config(), input_encoder_for(model.task_config(), model.require_tokenizer()))


@torch.no_grad()
def test_the_loss_uses_first_subtokens_only(model, learner):
    sentences = [["the", "old", "clerk"], ["a", "librarian", "translates", "."], ["noon"]]
    tags = [["B-PER", "I-PER", "I-PER"], ["O", "B-PER", "O", "O"], ["O"]]
    examples = [TaggedExample("", tuple(words), tuple(said)) for words, said in zip(sentences, tags, strict=True)]
    items = learner.encode(examples)
    batch = learner.collate(model, items)
    logits, right = [], []
    for words, said in zip(sentences, tags, strict=True):
        encoding = model.require_tokenizer().encode(" ".join(words))
        scores = model.network.head("task")(model.hidden(torch.tensor([encoding.ids])))[0]
        places = [place + 1 for place in first_literally(words, encoding.offsets[1:-1])]
        assert len(encoding.ids) > len(words) + 2 or len(words) == 1  # there are words of several pieces
        logits.append(scores[places])
        right += [LABELS.index(tag) for tag in said]
    expected = functional.cross_entropy(torch.cat(logits), torch.tensor(right))
    for parts in ([batch], batch.slices(1)):
        found = sum(float(learner.loss(model.network, model.network(part.streams), part)["task"]) for part in parts)
        assert found == pytest.approx(float(expected), abs=1e-5)
    said = predict_examples(model, learner, examples)
    for one, scores in zip(said, logits, strict=True):
        assert one["tags"] == [LABELS[number] for number in scores.argmax(-1)]
        assert one["scores"] == pytest.approx(scores.softmax(-1).amax(-1).tolist(), abs=1e-5)


def test_every_word_is_predicted_once_in_its_max_context_window(model, learner):
    words = tuple(small_text().split()[:300])
    tags = tuple(LABELS[number % 3] for number in range(len(words)))
    items = learner.encode([TaggedExample("", ("noon",), ("O",)), TaggedExample("", words, tags)])[1:]
    assert len(items) > 10 and {item.example_index for item in items} == {1}
    asked = np.concatenate([item.decode_info[1] for item in items])
    assert sorted(asked) == list(range(len(words)))
    tokenizer = model.require_tokenizer()
    for item in items:
        assert len(item.sequences[0].input_ids) <= 24
        for place, word, tag in zip(*item.decode_info, item.target, strict=True):
            piece = tokenizer.id_to_token(item.sequences[0].input_ids[place])
            assert words[word].lower().startswith(piece) and LABELS[tag] == tags[word]
    inner = [place for item in items[1:-1] for place in item.decode_info[0]]
    assert min(inner) >= 3 and max(inner) <= 24 - 4  # not at the edges, where half of the neighbours are out of sight
    (said,) = predict_examples(model, learner, [TaggedExample("", words, None)])
    assert len(said["tags"]) == len(words) == len(said["scores"]) and min(said["scores"]) > 1 / 3


def test_a_word_without_a_subtoken_gets_the_outside_tag(model, learner):
    said = predict_examples(model, learner, [TaggedExample("", ("\u200b", "clerk"), None),
                                             TaggedExample("", ("\u200b",), None)])
    assert said[0]["tags"][0] == "O" and said[0]["scores"][0] == 0 and said[1]["tags"] == ["O"]


def test_a_document_of_100_000_words_is_encoded_in_seconds(model, learner):
    items = learner.encode([TaggedExample("", ("clerk",) * 100_000, ("O",) * 100_000)])
    assert sum(len(item.decode_info[1]) for item in items) == 100_000
