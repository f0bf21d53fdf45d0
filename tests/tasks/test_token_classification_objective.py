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
    """Character by character: the first token that contains a character of the word."""
    result, begin = [], 0
    for word in words:
        inside = set(range(begin, begin + len(word)))
        result.append(next((index for index, (a, b) in enumerate(offsets) if inside & set(range(a, b))), -1))
        begin += len(word) + 1
    return result


@pytest.mark.parametrize("kind", ["wordpiece", "bpe", "byte_bpe", "unigram", "word", "character"])
def test_the_first_subtoken_of_each_word_equals_the_reference(kind):
    tokenizer = train_tokenizer(iter([small_text()]), kind, 60 if kind == "wordpiece" else 400, lowercase=True,
                                roles={"padding", "unknown", "start", "separator"})
    for words in (WORDS, WORDS[::-1], ["\u200b"], ["the"] * 5):
        offsets = tokenizer.encode(" ".join(words), special=False).offsets
        result = first_subtokens(words, np.array(offsets, np.int64).reshape(-1, 2)).tolist()
        assert result == first_literally(words, offsets)
        assert -1 not in result or "\u200b" in words or kind in ("bpe", "character")


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> stemma.Model:
    body = stemma.load(toy_tasks.save_model(tmp_path_factory.mktemp("tagger") / "model", vocabulary=64))
    corpus = body.recipe.settings.corpus
    config = TaskConfig("task", "tag", LABELS, default_task_heads(body, "tag", 3, "task"), corpus.single, corpus.pair,
                      24, (),
                parse_task_options("tag", {"counts": [1, 1, 2]}))
    torch.manual_seed(1)
    network = Network(body.recipe.settings.network, body.network.vocab_size, task_head_specs({"task": config})).eval()
    network.load_state_dict(body.network.state_dict(), strict=False)
    return replace(body, network=network, task_configs={"task": config})


@pytest.fixture
def learner(model):
    return build_task_objective(model.task_config(), input_encoder_for(model.task_config(), model.require_tokenizer()))


@torch.no_grad()
def test_the_loss_uses_first_subtokens_only(model, learner):
    sentences = [["the", "old", "clerk"], ["a", "librarian", "translates", "."], ["noon"]]
    tags = [["B-PER", "I-PER", "I-PER"], ["O", "B-PER", "O", "O"], ["O"]]
    examples = [TaggedExample("", tuple(words), tuple(word_tags))
                for words, word_tags in zip(sentences, tags, strict=True)]
    items = learner.encode(examples)
    batch = learner.collate(model, items)
    logits, targets = [], []
    for words, word_tags in zip(sentences, tags, strict=True):
        encoding = model.require_tokenizer().encode(" ".join(words))
        scores = model.network.head("task")(model.hidden(torch.tensor([encoding.ids])))[0]
        positions = [position + 1 for position in first_literally(words, encoding.offsets[1:-1])]
        assert len(encoding.ids) > len(words) + 2 or len(words) == 1  # some words have several subtokens
        logits.append(scores[positions])
        targets += [LABELS.index(tag) for tag in word_tags]
    expected = functional.cross_entropy(torch.cat(logits), torch.tensor(targets))
    for parts in ([batch], batch.slices(1)):
        result = sum(float(learner.loss(model.network, model.network(part.streams), part)["task"]) for part in parts)
        assert result == pytest.approx(float(expected), abs=1e-5)
    predictions = predict_examples(model, learner, examples)
    for prediction, scores in zip(predictions, logits, strict=True):
        assert prediction["tags"] == [LABELS[label_index] for label_index in scores.argmax(-1)]
        assert prediction["scores"] == pytest.approx(scores.softmax(-1).amax(-1).tolist(), abs=1e-5)


def test_every_word_is_predicted_once_in_its_max_context_window(model, learner):
    words = tuple(small_text().split()[:300])
    tags = tuple(LABELS[index % 3] for index in range(len(words)))
    items = learner.encode([TaggedExample("", ("noon",), ("O",)), TaggedExample("", words, tags)])[1:]
    assert len(items) > 10 and {item.example_index for item in items} == {1}
    predicted_words = np.concatenate([item.decode_info[1] for item in items])
    assert sorted(predicted_words) == list(range(len(words)))
    tokenizer = model.require_tokenizer()
    for item in items:
        assert len(item.sequences[0].input_ids) <= 24
        for position, word, tag in zip(*item.decode_info, item.target, strict=True):
            piece = tokenizer.id_to_token(item.sequences[0].input_ids[position])
            assert words[word].lower().startswith(piece) and LABELS[tag] == tags[word]
    inner = [position for item in items[1:-1] for position in item.decode_info[0]]
    assert min(inner) >= 3 and max(inner) <= 24 - 4  # not at the edges, where half of the neighbours are out of sight
    (predictions,) = predict_examples(model, learner, [TaggedExample("", words, None)])
    assert len(predictions["tags"]) == len(words) == len(predictions["scores"]) and min(predictions["scores"]) > 1 / 3


def test_a_word_without_a_subtoken_gets_the_outside_tag(model, learner):
    predictions = predict_examples(model, learner, [TaggedExample("", ("\u200b", "clerk"), None),
                                             TaggedExample("", ("\u200b",), None)])
    assert predictions[0]["tags"][0] == "O" and predictions[0]["scores"][0] == 0 and predictions[1]["tags"] == ["O"]


def test_a_document_of_100_000_words_is_encoded_in_seconds(model, learner):
    items = learner.encode([TaggedExample("", ("clerk",) * 100_000, ("O",) * 100_000)])
    assert sum(len(item.decode_info[1]) for item in items) == 100_000
