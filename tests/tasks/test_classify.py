"""Fine-tuning one label a text: it learns, it repeats itself exactly, and it leaves the model alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from conftest import SEED

from stemma.errors import UserError
from stemma.exchange.build import build
from stemma.exchange.model import Model
from stemma.tasks.classify import Classifier, Settings, _batches, finetune
from stemma.text.tokenizer import Tokenizer

SMALL = ["network.layers=1", "network.width=32", "network.feedforward=64", "network.dropout=0",
         "network.attention.dropout=0"]
QUICK = Settings(epochs=4, learning_rate=3e-3, batch_size=8)


@pytest.fixture(scope="module")
def model(tokenizer_folder) -> Model:
    tokenizer = Tokenizer.load(tokenizer_folder)
    torch.manual_seed(3 + SEED)
    made = build("bert@tiny", tokenizer.vocab_size, SMALL)
    made.tokenizer = tokenizer
    return made


def examples(count: int, seed: int) -> list[tuple[str, int]]:
    """Sentences that hold one of two words, at any place among others."""
    rng = np.random.default_rng(seed)
    made = []
    for number in range(count):
        words = ["a", "of", "in", "to", "it"] * 2
        words = [words[i] for i in rng.permutation(len(words))[: rng.integers(3, 9)]]
        words.insert(int(rng.integers(len(words) + 1)), ("ship", "river")[number % 2])
        made.append((" ".join(words), number % 2))
    return made


@pytest.mark.parametrize("pooling", ["mean", "start"])
def test_it_learns_to_tell_two_words_apart(model, pooling):
    settings = Settings(epochs=12, learning_rate=3e-3, batch_size=8, pooling=pooling)
    losses: list[float] = []
    fitted = finetune(model, examples(64, 0), settings, seed=1 + SEED, watch=lambda epoch, loss: losses.append(loss))
    assert fitted.accuracy(examples(100, 1)) > 0.9
    assert len(losses) == 12 and losses[-1] < losses[0] / 2


def test_the_seed_decides_everything(model):
    first, again, other = (finetune(model, examples(32, 0), QUICK, seed) for seed in (5, 5, 6))
    weights = [torch.cat([p.detach().flatten() for p in each.parameters()]) for each in (first, again, other)]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


def test_the_model_it_started_from_is_untouched(model):
    before = {name: tensor.clone() for name, tensor in model.network.state_dict().items()}
    finetune(model, examples(16, 0), QUICK)
    assert all(torch.equal(before[name], tensor) for name, tensor in model.network.state_dict().items())
    assert model.network.heads


def test_every_weight_of_the_body_is_trained(model):
    fitted = finetune(model, examples(32, 0), QUICK)
    before, after = model.network.encoder.state_dict(), fitted.network.encoder.state_dict()
    same = [name for name in before if torch.equal(before[name], after[name]) and not name.endswith("key.bias")]
    assert not same  # a key's bias shifts every score alike, so it may stay


def test_neighbours_in_a_batch_do_not_change_an_answer(model):
    torch.manual_seed(0)
    classifier = Classifier(model, 3).eval()
    texts = [text for text, _ in examples(9, 2)] + ["of " * 30]
    rows = classifier.encode(texts)
    with torch.inference_mode():
        together = classifier(rows)
        alone = torch.cat([classifier([row]) for row in rows])
    torch.testing.assert_close(together, alone, atol=1e-5, rtol=1e-4)
    assert together.shape == (10, 3)


def test_texts_longer_than_the_network_reads_are_cut(model):
    rows = Classifier(model, 2).encode(["of " * 1000])
    assert len(rows[0]) == model.recipe.settings.network.position.maximum


def test_batches_hold_each_example_once_and_similar_lengths():
    lengths = list(np.random.default_rng(0).integers(3, 60, 200))
    first, second = (_batches(lengths, 16, np.random.default_rng(seed)) for seed in (0, 1))
    assert sorted(sum(first, [])) == list(range(200))
    assert first != second
    padded = sum(max(lengths[i] for i in batch) * len(batch) for batch in first)
    assert padded < 1.35 * sum(lengths)


def test_bad_wishes_are_named(model):
    with pytest.raises(UserError, match="nothing to fine-tune on"):
        finetune(model, [])
    with pytest.raises(UserError, match="choose mean or start"):
        finetune(model, examples(4, 0), Settings(pooling="max"))


@pytest.mark.parametrize("frozen", [False, True])
def test_the_embedding_can_stand_still(model, frozen):
    fitted = finetune(model, examples(16, seed=1), Settings(epochs=1, learning_rate=3e-3, frozen_embedding=frozen))
    same = torch.equal(fitted.network.embedding.tokens.weight, model.network.embedding.tokens.weight)
    assert same == frozen
    assert not torch.equal(fitted.network.encoder.blocks[0].attention.input.weight,
                           model.network.encoder.blocks[0].attention.input.weight)
