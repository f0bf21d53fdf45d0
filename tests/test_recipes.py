"""The built-in recipes: each is valid at every size and has the values of its paper."""

from __future__ import annotations

import itertools

import pytest

from stemma import recipe_files, recipe_loading
from stemma.schema.overrides import flatten
from stemma.training.phases import build_phases

ALL = [f"{name}@{size}" for name in recipe_loading.recipe_names() for size in recipe_loading.recipe(name).sizes]
NEURAL = [name for name in recipe_loading.recipe_names()
          if not recipe_loading.recipe(name).settings.training.method]
RECURRENT = ["nnlm", "lstm-lm", "awd-lstm", "ulmfit", "context2vec", "elmo", "rnnsearch", "cove", "lm-init-seq2seq",
             "bilstm"]  # and an ancestor without recurrence


@pytest.mark.parametrize("label", ALL)
def test_every_recipe_loads_at_every_size_and_has_title_year_paper_and_summary(label):
    loaded = recipe_loading.recipe(label)
    assert loaded.label == label
    assert loaded.title and loaded.year and loaded.paper and loaded.summary.endswith(".")
    assert loaded.origin.keys() == flatten(loaded.values).keys() and "command line" not in loaded.origin.values()


def test_the_tree_has_one_entry_per_file_and_known_parents():
    family = recipe_loading.list_recipes()
    names = {info.name for info in family}
    assert names == {path.stem for path in recipe_files.RECIPES.glob("*.toml")} >= {"transformer", "bert"}
    assert all(info.parent is None or info.parent in names for info in family)


@pytest.mark.parametrize("name", recipe_loading.recipe_names())
def test_each_file_begins_with_a_comment(name):
    assert (recipe_files.RECIPES / f"{name}.toml").read_text().startswith("# ")


def shape(label: str) -> tuple[int, int, int, int]:
    network = recipe_loading.recipe(label).settings.network
    return network.layers, network.width, network.heads, network.feedforward


@pytest.mark.parametrize(("label", "expected"), [
    ("transformer@base", (6, 512, 8, 2048)), ("transformer@big", (6, 1024, 16, 4096)),
    ("bert@base", (12, 768, 12, 3072)), ("bert@large", (24, 1024, 16, 4096)),
    ("bert@tiny", (2, 128, 2, 512)), ("bert@mini", (4, 256, 4, 1024)),
    ("bert@small", (4, 512, 8, 2048)), ("bert@medium", (8, 512, 8, 2048)), ("bert@midi", (4, 512, 8, 2048)),
    ("electra@base", (12, 768, 12, 3072)), ("electra@small", (12, 256, 4, 1024)),
    ("electra@large", (24, 1024, 16, 4096)),
    ("gpt@base", (12, 768, 12, 3072)), ("gpt2@small", (12, 768, 12, 3072)), ("gpt2@medium", (24, 1024, 16, 4096)),
    ("gpt2@large", (36, 1280, 20, 5120)), ("gpt2@xl", (48, 1600, 25, 6400)), ("gpt3@small", (12, 768, 12, 3072)),
    ("gpt3@large", (24, 1536, 16, 6144)), ("gpt3@xl", (24, 2048, 24, 8192)), ("gpt3@13b", (40, 5140, 40, 20560)),
    ("gpt3@175b", (96, 12288, 96, 49152)), ("transformer-xl@large", (18, 1024, 16, 4096)),
    ("transformer-xl@base", (16, 410, 10, 2100)), ("xlnet@base", (12, 768, 12, 3072)),
    ("bert-wwm@base", (12, 768, 12, 3072)), ("bert-wwm-ext@base", (12, 768, 12, 3072)),
    ("spanbert@base", (12, 768, 12, 3072)), ("spanbert@large", (24, 1024, 16, 4096)),
    ("roberta@base", (12, 768, 12, 3072)), ("roberta@large", (24, 1024, 16, 4096)),
    ("albert@base", (12, 768, 12, 3072)), ("albert@large", (24, 1024, 16, 4096)),
    ("albert@xlarge", (24, 2048, 16, 8192)), ("albert@xxlarge", (12, 4096, 64, 16384)),
    ("neobert@base", (28, 768, 12, 2048)), ("ltg-bert@base", (12, 768, 12, 2048)),
    ("ltg-bert@small", (12, 384, 6, 1024)), ("ltg-bert@xs", (12, 192, 3, 512)), ("gpt-bert@base", (12, 768, 12, 2560)),
    ("gpt-bert@small", (12, 384, 6, 1280)), ("mdlm@small", (12, 768, 12, 3072)), ("nanochat@d20", (20, 1280, 10, 5120)),
    ("xlnet@large", (24, 1024, 16, 4096)), ("universal-transformer@base", (6, 1024, 16, 4096)),
])
def test_sizes_have_the_published_layers_widths_and_heads(label, expected):
    assert shape(label) == expected


def test_the_transformer_as_published():
    settings = recipe_loading.recipe("transformer").settings
    assert settings.network.decoder.layers == 6
    assert settings.network.norm.model_dump() == {
        "kind": "layer", "placement": "post", "epsilon": 1e-6, "weight": True, "bias": True, "first": True}
    optimizer = settings.training.optimizer
    assert (optimizer.kind, optimizer.beta1, optimizer.beta2, optimizer.epsilon) == ("adam", 0.9, 0.98, 1e-9)
    assert settings.training.schedule.kind == "noam" and settings.training.warmup_steps == 4000
    for label, width in (("transformer@base", 512), ("transformer@big", 1024)):
        peak = (width * 4000) ** -0.5  # the paper's formula at the end of the warm-up
        assert recipe_loading.recipe(label).settings.training.learning_rate == pytest.approx(peak, rel=2e-3)


def test_bert_as_published():
    bert = recipe_loading.recipe("bert")
    settings = bert.settings
    assert bert.parent == "transformer" and settings.network.decoder is None
    assert settings.tokenizer.model_dump(exclude_none=True) == {
        "kind": "wordpiece", "vocab_size": 30522, "lowercase": True, "cjk_spacing": True, "simplify": False}
    assert settings.corpus.first_phase.model_dump(exclude_none=True) == {"fraction": 0.9, "sequence_length": 128}
    assert len(build_phases(settings)) == 1  # one schedule over both
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


def test_electra_as_published():
    """Table 6 of the paper, and the released code: 85% of the selected tokens are replaced by [MASK]."""
    small, base, large = (recipe_loading.recipe(f"electra@{size}").settings for size in ("small", "base", "large"))
    assert recipe_loading.recipe("electra").label == "electra@base"
    for settings in (small, base, large):
        masked, detection = settings.objective["masked_lm"], settings.objective["replaced_token"]
        assert list(settings.objective) == ["masked_lm", "replaced_token"]
        assert (masked.mask, masked.random, masked.dynamic, masked.unit) == (0.85, 0.0, True, "token")
        assert (masked.weight, detection.weight) == (1, 50)
        assert (settings.training.warmup_steps, settings.training.optimizer.weight_decay) == (10_000, 0.01)
        assert settings.corpus.first_phase is None and settings.network.position.maximum == 512
    assert [settings.objective["masked_lm"].rate for settings in (small, base, large)] == [0.15, 0.15, 0.25]
    assert [settings.network.generator_network().width for settings in (small, base, large)] == [64, 256, 256]
    assert [settings.network.generator_network().heads for settings in (small, base, large)] == [1, 4, 4]
    assert [settings.network.generator_network().feedforward for settings in (small, base, large)] == [256, 1024, 1024]
    assert [settings.network.generator_network().layers for settings in (small, base, large)] == [12, 12, 24]
    assert [settings.network.embedding.width for settings in (small, base, large)] == [128, None, None]
    assert [settings.training.batch_size for settings in (small, base, large)] == [128, 256, 2048]
    assert [settings.training.learning_rate for settings in (small, base, large)] == [5e-4, 2e-4, 2e-4]
    assert [settings.training.steps for settings in (small, base, large)] == [1_000_000, 766_000, 400_000]
    assert [settings.corpus.sequence_length for settings in (small, base, large)] == [128, 512, 512]


@pytest.mark.parametrize("name", NEURAL)
def test_laptop_sizes_have_short_sequences_small_batches_and_few_steps(name):
    for size in ("tiny", "mini", "midi"):
        settings = recipe_loading.recipe(name, size=size).settings
        assert settings.corpus.sequence_length <= 128 and settings.training.batch_size <= 64
        assert settings.training.warmup_steps < settings.training.steps <= 5000


@pytest.mark.parametrize("name", [name for name in NEURAL if name not in ("transformer", *RECURRENT)])
def test_every_recipe_that_trains_has_the_laptop_sizes(name):
    assert [shape(f"{name}@{size}")[:2] for size in ("tiny", "mini", "midi")] == [(2, 128), (4, 256), (4, 512)]


@pytest.mark.parametrize("name", RECURRENT)
def test_recurrent_recipes_are_as_wide_as_transformers_and_less_deep(name):
    layers = 1 if name in ("nnlm", "context2vec") else 2
    directions = 2 if name == "elmo" else 1  # each as wide
    assert [shape(f"{name}@{size}")[:2] for size in ("tiny", "mini", "midi")] == [
        (layers, directions * width) for width in (128, 256, 512)]


def test_structbert_as_published():
    structbert = recipe_loading.recipe("structbert")
    tasks = structbert.settings.objective
    assert list(tasks) == ["sentence_order", "masked_lm", "word_structure"]  # in this order: they edit the same rows
    assert tasks["sentence_order"].swapped == tasks["sentence_order"].other == pytest.approx(1 / 3)
    assert (tasks["word_structure"].rate, tasks["word_structure"].length) == (0.05, 3)
    assert structbert.settings.training.warmup_steps * 10 == structbert.settings.training.steps
    assert {change.key.split(".")[0] for change in structbert.diff("bert")} == {"objective", "training"}


def test_whole_word_bert_as_published():
    wwm, more = recipe_loading.recipe("bert-wwm"), recipe_loading.recipe("bert-wwm-ext")
    assert (wwm.parent, more.parent) == ("bert", "bert-wwm")
    for whole_word, phases in ((wwm, (100_000, 100_000)), (more, (1_000_000, 400_000))):
        settings = whole_word.settings
        assert settings.objective["masked_lm"].unit == "word" and "next_sentence" in settings.objective
        assert settings.training.steps == sum(phases) and settings.corpus.first_phase.sequence_length == 128
        assert settings.corpus.first_phase.fraction == pytest.approx(phases[0] / sum(phases), abs=1e-3)
        assert settings.training.optimizer.kind == "lamb"
        # the authors' table: batches of 2,560 rows of 128, then 384 of 512; a tenth of each phase is its warm-up
        first, second = build_phases(settings)
        assert [(phase.batch_rows, phase.sequence_length) for phase in (first, second)] == [(2560, 128), (384, 512)]
        assert [phase.warmup_steps for phase in (first, second)] == [steps // 10 for steps in phases]
        assert (first.start_fraction, second.end_fraction) == (0, 1)
        assert first.end_fraction == second.start_fraction == settings.corpus.first_phase.fraction
        assert settings.tokenizer.vocab_size == 21128 and settings.tokenizer.cjk_spacing


def test_laptop_sizes_do_not_use_the_published_batch_of_the_first_phase():
    """Their sequences are as short as those of the first phase, so there is one phase unless sequences are longer."""
    for name, size in itertools.product(("bert-wwm", "bert-wwm-ext"), ("tiny", "mini", "midi")):
        settings = recipe_loading.recipe(f"{name}@{size}").settings
        (only,) = build_phases(settings)
        assert only.batch_rows == settings.training.batch_size <= 32
        longer = recipe_loading.recipe(f"{name}@{size}", ["corpus.sequence_length=512"]).settings
        first, second = build_phases(longer)
        assert first.batch_rows * first.sequence_length == second.batch_rows * second.sequence_length <= 32 * 512
        assert first.warmup_steps == second.warmup_steps < longer.training.steps // 5


def test_spanbert_as_published():
    settings = recipe_loading.recipe("spanbert").settings
    assert list(settings.objective) == ["masked_lm", "span_boundary"]
    masked = settings.objective["masked_lm"]
    assert (masked.unit, masked.geometric_p, masked.max_span_words, masked.replace_whole_units, masked.dynamic) == (
        "span", 0.2, 10, True, True)
    assert (masked.rate, masked.mask, masked.random) == (0.15, 0.8, 0.1)
    assert settings.corpus.packing == "doc_sentences" and settings.corpus.first_phase is None
    assert not settings.tokenizer.lowercase and settings.tokenizer.vocab_size == 28996
    assert (settings.training.steps, settings.training.batch_size) == (2_400_000, 256)
    assert settings.training.optimizer.epsilon == 1e-8


def test_gpt_gpt2_and_gpt3_as_published():
    first, second, third = (recipe_loading.recipe(name).settings for name in ("gpt", "gpt2", "gpt3"))
    assert [settings.tokenizer.vocab_size for settings in (first, second, third)] == [40478, 50257, 50257]
    assert [settings.corpus.sequence_length for settings in (first, second, third)] == [512, 1024, 2048]
    assert [settings.network.norm.placement for settings in (first, second, third)] == ["post", "pre", "pre"]
    assert [settings.network.initialization.residual for settings in (first, second, third)] == [False, True, True]
    assert [recipe_loading.recipe(name).parent for name in ("gpt", "gpt2", "gpt3")] == ["transformer", "gpt", "gpt2"]
    assert third.network.attention.windows == [0, 256] and not second.network.attention.windows
    assert third.training.batch_size * third.corpus.sequence_length == 2**19  # half a million tokens
    optimizer = third.training.optimizer
    assert (optimizer.beta1, optimizer.beta2, optimizer.weight_decay) == (0.9, 0.95, 0.1)
    assert recipe_loading.recipe("gpt3@xl").settings.network.attention.head_width == 128


def test_transformer_xl_and_xlnet_as_published():
    xl, xlnet = (recipe_loading.recipe(name).settings for name in ("transformer-xl", "xlnet"))
    assert (xl.network.memory.length, xl.network.memory.eval_length) == (384, 1600)
    assert xl.network.embedding.cutoffs == [20000, 40000, 200000] and xl.network.embedding.div_val == 4
    assert xl.corpus.packing == "contiguous" and xl.network.position.clamp == 1000
    assert recipe_loading.recipe("xlnet").parent == "transformer-xl"
    assert xlnet.network.memory.length == 384 and xlnet.network.memory.eval_length is None
    assert xlnet.corpus.packing == "contiguous_pair" and xlnet.network.embedding.cutoffs == []
    task = xlnet.objective["permutation_lm"]
    assert (task.context, task.longest_span, task.both_directions) == (6, 5, True)


def test_the_universal_transformer_as_published():
    network = recipe_loading.recipe("universal-transformer").settings.network
    assert network.depth.kind == "recurrent" and network.depth.halting.threshold == 0.99
    both = recipe_loading.recipe("universal-transformer-seq2seq").settings  # as in the paper: both stacks are recurrent
    assert {name: (part.body.kind, part.layers, part.attends_to) for name, part in both.network.parts().items()} == {
        "encoder": ("recurrent", 6, None), "decoder": ("recurrent", 6, "encoder")}
    assert both.network.depth == network.depth and list(both.objective) == ["translation"]


def test_roberta_as_published():
    """arXiv:1907.11692, tables 9 and 2."""
    roberta = recipe_loading.recipe("roberta")
    settings = roberta.settings
    assert roberta.parent == "bert" and list(settings.objective) == ["masked_lm"]
    assert settings.objective["masked_lm"].dynamic and settings.corpus.packing == "full_sentences"
    assert settings.corpus.first_phase is None and settings.corpus.short_probability == 0
    assert (settings.tokenizer.kind, settings.tokenizer.vocab_size, settings.tokenizer.lowercase) == (
        "byte_bpe", 50265, False)
    assert (settings.network.embedding.segments, settings.network.norm.epsilon) == (1, 1e-5)
    assert (settings.network.position.maximum, settings.network.position.offset) == (512, 2)
    training = settings.training
    assert (training.batch_size, training.steps, training.clip_norm) == (8192, 500_000, None)
    assert training.optimizer.model_dump() == {"kind": "adamw", "beta1": 0.9, "beta2": 0.98, "epsilon": 1e-6,
                                               "weight_decay": 0.01}
    peaks = [(training.learning_rate, training.warmup_steps)
             for training in (recipe_loading.recipe(f"roberta@{size}").settings.training for size in ("base", "large"))]
    assert peaks == [(6e-4, 24_000), (4e-4, 30_000)]


@pytest.mark.parametrize("changes", [
    ["corpus.packing=segment_pair", "objective.next_sentence.random=0.5"],
    ["corpus.packing=sentence_pair", "objective.next_sentence.random=0.5"],
    ["corpus.packing=full_sentences"], ["corpus.packing=doc_sentences"]], ids=lambda changes: changes[0])
def test_roberta_supports_the_four_input_formats_of_its_paper(changes):
    settings = recipe_loading.recipe("roberta@tiny", changes).settings
    assert settings.packings()["masked_lm"] == changes[0].removeprefix("corpus.packing=")
    assert settings.templates().get("corpus.pair", settings.corpus.pair) == "start A separator separator B separator"


def test_albert_as_published():
    albert = recipe_loading.recipe("albert")
    settings, network = albert.settings, albert.settings.network
    assert albert.parent == "bert" and list(settings.objective) == ["sentence_order", "masked_lm"]
    assert (network.sharing, network.embedding.width, network.activation) == ("all", 128, "gelu_tanh")
    assert {recipe_loading.recipe(f"albert@{size}").settings.network.dropout for size in albert.sizes} == {0.0}
    assert network.attention.dropout == 0.0
    assert (settings.tokenizer.kind, settings.tokenizer.vocab_size, settings.tokenizer.lowercase) == (
        "unigram", 30000, True)
    order, masked = settings.objective.values()
    assert (order.swapped, order.other) == (0.5, 0.0)
    assert masked.unit == "word_ngram" and masked.ngrams == pytest.approx([6 / 11, 3 / 11, 2 / 11], abs=1e-4)
    training = settings.training
    assert (training.batch_size, training.learning_rate, training.warmup_steps, training.steps) == (
        4096, 0.00176, 3125, 125_000)
    assert training.optimizer.kind == "lamb" and settings.corpus.first_phase is None
    tiny = recipe_loading.recipe("albert@tiny").settings.network
    assert tiny.embedding.width < tiny.width  # factorised embedding: transformers requires it of an ALBERT


def test_ernie_masks_tokens_then_phrases_then_entities():
    ernie = recipe_loading.recipe("ernie")
    settings = ernie.settings
    assert ernie.parent == "bert" and recipe_loading.recipe("ernie-2").parent == "ernie"
    assert (settings.tokenizer.vocab_size, settings.network.position.maximum) == (18000, 513)
    assert settings.network.activation == "relu" and settings.network.embedding.tasks == 0
    stages = [(task.unit, task.start_fraction, task.end_fraction) for name, task in settings.objective.items()
              if task.kind == "masked_lm" and task.packing != "dialogue"]
    assert [unit for unit, _, _ in stages] == ["token", "phrase", "entity"]
    assert [start for _, start, _ in stages] == [0.0, *(stop for _, _, stop in stages[:-1])] and stages[-1][2] == 1.0


def test_the_seven_tasks_of_ernie_2_are_added_one_by_one_and_get_equal_steps():
    settings = recipe_loading.recipe("ernie-2").settings
    network = settings.network
    assert (network.embedding.segments, network.embedding.tasks, network.activation) == (4, 7, "gelu")
    tasks: dict[int, set] = {}
    for task in settings.objective.values():
        tasks.setdefault(task.task_id, set()).add((task.start_fraction if task.task_id else 0.0, task.sampling_weight))
    assert sorted(tasks) == list(range(7)) and all(len(schedules) == 1 for schedules in tasks.values())
    starts, turns = zip(*(next(iter(tasks[task_id])) for task_id in range(7)), strict=True)
    assert list(starts) == sorted(set(starts))
    fractions = [0.0] * 7
    for index, (begin, end) in enumerate(zip(starts, (*starts[1:], 1.0), strict=True)):
        for earlier in range(index + 1):
            fractions[earlier] += (end - begin) * turns[earlier] / sum(turns[:index + 1])
    assert fractions == pytest.approx([1 / 7] * 7, abs=1e-3)
    optimizer = settings.training.optimizer
    assert settings.training.batch_size * settings.corpus.sequence_length == 393_216
    assert (settings.training.learning_rate, optimizer.beta2, settings.training.schedule.kind) == (5e-5, 0.98, "noam")
