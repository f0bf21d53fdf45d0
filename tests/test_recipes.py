"""The recipes that come with the package: each is sound by itself, and says what its paper says."""

from __future__ import annotations

import pytest

from stemma import lineage
from stemma.schema.layers import flatten

ALL = [f"{name}@{size}" for name in lineage.names() for size in lineage.recipe(name).sizes]


@pytest.mark.parametrize("label", ALL)
def test_every_recipe_resolves_at_every_size_and_says_what_it_is(label):
    found = lineage.recipe(label)
    assert found.label == label
    assert found.title and found.year and found.paper and found.summary.endswith(".")
    assert found.origin.keys() == flatten(found.values).keys() and "command line" not in found.origin.values()


def test_the_tree_has_one_entry_per_file_and_known_parents():
    family = lineage.family()
    names = {info.name for info in family}
    assert names == {path.stem for path in lineage.RECIPES.glob("*.toml")} >= {"transformer", "bert"}
    assert all(info.parent is None or info.parent in names for info in family)


@pytest.mark.parametrize("name", lineage.names())
def test_each_file_opens_with_its_idea(name):
    assert (lineage.RECIPES / f"{name}.toml").read_text().startswith("# ")


def shape(label: str) -> tuple[int, int, int, int]:
    network = lineage.recipe(label).settings.network
    return network.layers, network.width, network.heads, network.feedforward


@pytest.mark.parametrize(("label", "expected"), [
    ("transformer@base", (6, 512, 8, 2048)), ("transformer@big", (6, 1024, 16, 4096)),
    ("bert@base", (12, 768, 12, 3072)), ("bert@large", (24, 1024, 16, 4096)),
    ("bert@tiny", (2, 128, 2, 512)), ("bert@mini", (4, 256, 4, 1024)),
    ("bert@small", (4, 512, 8, 2048)), ("bert@medium", (8, 512, 8, 2048)), ("bert@midi", (4, 512, 8, 2048)),
])
def test_published_shapes(label, expected):
    assert shape(label) == expected


def test_the_transformer_as_published():
    settings = lineage.recipe("transformer").settings
    assert settings.network.decoder.layers == 6
    assert settings.network.norm.model_dump() == {"kind": "layer", "place": "post", "epsilon": 1e-6}
    optimizer = settings.training.optimizer
    assert (optimizer.kind, optimizer.beta1, optimizer.beta2, optimizer.epsilon) == ("adam", 0.9, 0.98, 1e-9)
    assert settings.training.schedule.kind == "noam" and settings.training.warmup_steps == 4000
    for label, width in (("transformer@base", 512), ("transformer@big", 1024)):
        peak = (width * 4000) ** -0.5  # the paper's formula at the end of the warm-up
        assert lineage.recipe(label).settings.training.learning_rate == pytest.approx(peak, rel=2e-3)


def test_bert_as_published():
    found = lineage.recipe("bert")
    settings = found.settings
    assert found.parent == "transformer" and settings.network.decoder is None
    assert settings.tokenizer.model_dump() == {"kind": "wordpiece", "vocab_size": 30522, "lowercase": True,
                                               "cjk_spacing": True}
    assert settings.corpus.first_phase.model_dump() == {"share": 0.9, "sequence_length": 128}
    assert settings.corpus.sequence_length == settings.network.position.maximum == 512
    assert settings.network.embedding.model_dump() == {"width": None, "segments": 2, "scale": False, "norm": True}
    assert list(settings.objective) == ["next_sentence", "masked_lm"]
    masked = settings.objective["masked_lm"]
    assert (masked.rate, masked.mask, masked.random, masked.dynamic, masked.duplicates) == (0.15, 0.8, 0.1, False, 10)
    training = settings.training
    assert (training.batch_size, training.steps) == (256, 1_000_000)
    assert (training.learning_rate, training.warmup_steps) == (1e-4, 10_000)
    assert training.optimizer.model_dump() == {"kind": "adamw", "beta1": 0.9, "beta2": 0.999, "epsilon": 1e-6,
                                               "weight_decay": 0.01}


@pytest.mark.parametrize("name", lineage.names())
def test_laptop_sizes_fit_a_laptop(name):
    for size in ("tiny", "mini", "midi"):
        settings = lineage.recipe(name, size=size).settings
        assert settings.corpus.sequence_length <= 128 and settings.training.batch_size <= 64
        assert settings.training.warmup_steps < settings.training.steps <= 5000
