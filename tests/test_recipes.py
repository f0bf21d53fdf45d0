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
    ("gpt@base", (12, 768, 12, 3072)), ("gpt2@small", (12, 768, 12, 3072)), ("gpt2@medium", (24, 1024, 16, 4096)),
    ("gpt2@large", (36, 1280, 20, 5120)), ("gpt2@xl", (48, 1600, 25, 6400)), ("gpt3@small", (12, 768, 12, 3072)),
    ("gpt3@large", (24, 1536, 16, 6144)), ("gpt3@xl", (24, 2048, 24, 8192)), ("gpt3@13b", (40, 5140, 40, 20560)),
    ("gpt3@175b", (96, 12288, 96, 49152)), ("transformer-xl@large", (18, 1024, 16, 4096)),
    ("transformer-xl@base", (16, 410, 10, 2100)), ("xlnet@base", (12, 768, 12, 3072)),
    ("xlnet@large", (24, 1024, 16, 4096)), ("universal-transformer@base", (6, 1024, 16, 4096)),
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
    embedding = settings.network.embedding
    assert (embedding.width, embedding.segments, embedding.scale, embedding.norm) == (None, 2, False, True)
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


@pytest.mark.parametrize("name", [name for name in lineage.names() if name != "transformer"])
def test_every_recipe_that_trains_has_the_laptop_sizes(name):
    assert [shape(f"{name}@{size}")[:2] for size in ("tiny", "mini", "midi")] == [(2, 128), (4, 256), (4, 512)]


def test_the_gpt_line_as_published():
    first, second, third = (lineage.recipe(name).settings for name in ("gpt", "gpt2", "gpt3"))
    assert [one.tokenizer.vocab_size for one in (first, second, third)] == [40478, 50257, 50257]
    assert [one.corpus.sequence_length for one in (first, second, third)] == [512, 1024, 2048]
    assert [one.network.norm.place for one in (first, second, third)] == ["post", "pre", "pre"]
    assert [one.network.initialization.residual for one in (first, second, third)] == [False, True, True]
    assert [lineage.recipe(name).parent for name in ("gpt", "gpt2", "gpt3")] == ["transformer", "gpt", "gpt2"]
    assert third.network.attention.windows == [0, 256] and not second.network.attention.windows
    assert third.training.batch_size * third.corpus.sequence_length == 2**19  # half a million tokens
    optimizer = third.training.optimizer
    assert (optimizer.beta1, optimizer.beta2, optimizer.weight_decay) == (0.9, 0.95, 0.1)
    assert lineage.recipe("gpt3@xl").settings.network.attention.head_width == 128


def test_transformer_xl_and_xlnet_as_published():
    xl, xlnet = (lineage.recipe(name).settings for name in ("transformer-xl", "xlnet"))
    assert (xl.network.memory.length, xl.network.memory.evaluation) == (384, 1600)
    assert xl.network.embedding.cutoffs == [20000, 40000, 200000] and xl.network.embedding.shrink == 4
    assert xl.corpus.packing == "contiguous" and xl.network.position.clamp == 1000
    assert lineage.recipe("xlnet").parent == "transformer-xl"
    assert xlnet.network.memory.length == 384 and xlnet.network.memory.evaluation is None
    assert xlnet.corpus.packing == "contiguous_pair" and xlnet.network.embedding.cutoffs == []
    task = xlnet.objective["permutation_lm"]
    assert (task.context, task.longest_span, task.both_directions) == (6, 5, True)


def test_the_universal_transformer_as_published():
    network = lineage.recipe("universal-transformer").settings.network
    assert network.depth.kind == "recurrent" and network.depth.halting.threshold == 0.99
