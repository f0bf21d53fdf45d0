"""The default learning rate, epochs and warm-up of fine-tuning, and the pre-training record they depend on."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import pytest
import toy_tasks

import stemma
from stemma.errors import CorruptFileError
from stemma.pretraining_record import FILE, PretrainingRecord, read_record
from stemma.recipe_loading import recipe
from stemma.tasks.runs.finetune import TaskArguments, finetune, finetune_recipe
from stemma.tasks.runs.finetune_defaults import (
    BRIEF_FACTOR,
    MAX_EPOCHS,
    MIN_STEPS,
    StartModel,
    default_epochs,
    default_learning_rate,
    describe_values,
    published_dropouts,
    stated_keys,
    uses_layer_decay,
)
from stemma.training.pretrain import pretrain

BRIEF = StartModel("BERT", 128, 1_400_000, True, PretrainingRecord(900_000, 5.6, 7.1))
PUBLISHED = StartModel("BERT", 768, 110_000_000)


@pytest.fixture(scope="module")
def sets(tmp_path_factory):
    return toy_tasks.write_sets(tmp_path_factory.mktemp("sets"), "classify", train=32, dev=16)


@pytest.fixture(scope="module")
def start(tmp_path_factory):
    return toy_tasks.save_model(tmp_path_factory.mktemp("models") / "bert")


def tuned(model, sets, out, *changes, **options):
    return finetune(TaskArguments("classify", sets), model, out,
                    changes=["training.batch_size=16", "training.threads=1", *changes], **options)


def as_published(start, folder):
    """The folder as another program would have written it."""
    shutil.copytree(start, folder)
    for name in ("recipe.toml", "checksums.json"):
        (folder / name).unlink(missing_ok=True)
    return folder


# --- the rule


@pytest.mark.parametrize(("name", "width", "rate", "epochs"), [
    ("bert", 768, 5e-5, 3), ("bert", 1024, 3.75e-5, 3), ("roberta", 1024, 2e-5, 10), ("electra", 256, 3e-4, 3),
    ("xlnet", 1024, 2e-5, 5), ("t5", 768, 1e-3, 3)])
@pytest.mark.parametrize("steps_per_epoch", [2, 2000])
def test_a_published_checkpoint_has_the_values_of_its_paper(name, width, rate, epochs, steps_per_epoch):
    settings, model = recipe(name).settings.finetuning, replace(PUBLISHED, width=width)
    assert default_learning_rate(settings, model) == rate
    assert default_epochs(settings, model, steps_per_epoch) == epochs and uses_layer_decay(model)


@pytest.mark.parametrize(("tokens", "loss", "brief"), [
    (900_000, 5.6, True),  # fewer than 20 tokens per parameter
    (30_000_000, 5.6, False), (30_000_000, 6.9, True),  # enough tokens; but little learnt
    (30_000_000, None, False), (900_000, None, True)])
def test_a_pre_training_is_brief_by_its_tokens_or_by_what_it_learnt(tokens, loss, brief):
    record = PretrainingRecord(tokens, loss, None if loss is None else 7.1)
    assert replace(BRIEF, record=record).is_briefly_pretrained is brief
    assert replace(BRIEF, record=record, laptop_size=False).is_briefly_pretrained is brief


def test_without_a_record_only_laptop_sizes_are_briefly_pre_trained():
    assert replace(BRIEF, record=None).is_briefly_pretrained and not PUBLISHED.is_briefly_pretrained


def test_after_a_brief_pre_training_the_rate_is_higher_and_few_examples_are_read_more_often():
    settings = recipe("bert@tiny").settings.finetuning
    assert default_learning_rate(settings, BRIEF) == pytest.approx(BRIEF_FACTOR * 5e-5 * 768 / 128)
    assert default_epochs(settings, BRIEF, 2) == MAX_EPOCHS
    assert default_epochs(settings, BRIEF, MIN_STEPS // 8) == 8
    assert default_epochs(settings, BRIEF, MIN_STEPS) == 3
    assert default_epochs(recipe("roberta@tiny").settings.finetuning, BRIEF, MIN_STEPS) == 10  # the paper's
    assert not uses_layer_decay(BRIEF)


def test_a_learning_rate_relative_to_the_tensors_is_not_raised():
    settings = recipe("t5@tiny").settings.finetuning
    assert default_learning_rate(settings, BRIEF) == settings.learning_rate_for(128)


def test_stated_values_are_not_changed():
    settings = recipe("electra@tiny").settings.finetuning
    assert default_learning_rate(settings, BRIEF, {"learning_rate"}) == settings.learning_rate_for(128)
    assert default_learning_rate(settings, BRIEF, {"width"}) == settings.learning_rate_for(128)
    assert default_epochs(settings, BRIEF, 2, {"epochs"}) == settings.epochs
    assert uses_layer_decay(BRIEF, {"layer_decay"})


def test_values_of_the_command_line_and_of_the_users_recipes_count_as_stated(tmp_path):
    assert stated_keys(recipe("bert@tiny")) == stated_keys(recipe("electra@tiny")) == set()
    assert stated_keys(recipe("bert@tiny", ["finetuning.epochs=2"])) == {"epochs"}
    (tmp_path / "mine.toml").write_text('parent = "bert"\n[finetuning]\nlearning_rate = 1e-3\nwidth = 128\n')
    assert stated_keys(recipe(tmp_path / "mine.toml", size="tiny")) == {"learning_rate", "width"}


def test_the_values_are_described_in_plain_words():
    assert describe_values({"learning_rate": 3e-4, "epochs": 8, "warmup": 0.1}) == \
        "learning rate 3e-4, 8 epochs, warm-up 10%"
    assert describe_values({"learning_rate": 0.016, "epochs": 1.0}) == "learning rate 0.016, 1 epoch"
    assert BRIEF.describe() == "width 128, pre-trained on 900 K tokens (1.50 nats below unigram)"
    assert PUBLISHED.describe() == "as published for BERT, at width 768"


# --- in a run


def test_a_run_says_and_stores_what_was_chosen_and_why(tmp_path, start, sets, caplog):
    caplog.set_level("INFO", "stemma")
    result = tuned(start, sets, tmp_path / "run")
    chosen = result["defaults"]
    assert chosen == {"learning_rate": pytest.approx(BRIEF_FACTOR * 1.2e-3), "epochs": MAX_EPOCHS, "warmup": 0.1,
                      "reason": "width 32, pre-training not recorded, 32 examples"}
    assert result["steps"] == 2 * MAX_EPOCHS
    assert [f"{describe_values(chosen)}: {chosen['reason']}"] == \
        [record.getMessage() for record in caplog.records if "warm-up" in record.getMessage()]
    assert json.loads((tmp_path / "run/result.json").read_text())["defaults"] == chosen


@pytest.mark.parametrize(("changes", "options", "left"), [
    (["training.learning_rate=1e-4"], {"steps": 1}, {"warmup"}),
    (["finetuning.learning_rate=1e-4", "finetuning.warmup=0.2"], {"epochs": 1}, set()),
    (["finetuning.epochs=1", "training.warmup_steps=1"], {}, {"learning_rate"}),
    (["training.steps=2"], {}, {"learning_rate", "warmup"})])
def test_stated_values_win_and_are_no_defaults(tmp_path, start, sets, changes, options, left):
    result = tuned(start, sets, tmp_path / "run", *changes, **options)
    assert result.get("defaults", {"reason": ""}).keys() - {"reason"} == left
    training = stemma.recipe(tmp_path / "run/recipe.toml").settings.training
    stated = dict(change.split("=") for change in changes)
    if "training.learning_rate" in stated:
        assert training.learning_rate == 1e-4
    if "finetuning.learning_rate" in stated:
        assert training.learning_rate == pytest.approx(1e-4 * 768 / 32)
    assert result["steps"] <= 2


def test_a_folder_of_another_program_is_tuned_as_its_paper_says(tmp_path, start, sets):
    result = tuned(as_published(start, tmp_path / "published"), sets, tmp_path / "run")
    assert result["defaults"] == {"learning_rate": 1.2e-3, "epochs": 3.0, "warmup": 0.1,
                                  "reason": "as published for BERT, at width 32, 32 examples"}


# --- the record


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory, sets):
    folder = tmp_path_factory.mktemp("pretrained")
    text = "\n".join(json.loads(line)["text"] for line in sets["train"].read_text().splitlines())
    (folder / "text.txt").write_text(text + "\n")
    small = [*toy_tasks.SMALL, "corpus.sequence_length=48", "tokenizer.vocab_size=300", "training.threads=1"]
    result = pretrain("modernbert@tiny", folder / "text.txt", folder / "run", steps=4, changes=small,
                      reading=stemma.training.run_folder.TextReadingOptions(documents="line"))
    return folder, result


def test_a_run_stores_its_tokens_and_losses_with_the_model(pretrained):
    folder, result = pretrained
    record = read_record(folder / "run/model")
    assert record == PretrainingRecord(result["tokens"], result["validation_loss"], result["unigram_loss"])
    assert stemma.load(folder / "run").pretraining == record


def test_the_record_is_kept_by_saving_and_fine_tuning_and_continued(tmp_path, pretrained, sets):
    folder, result = pretrained
    record = read_record(folder / "run/model")
    stemma.save(stemma.load(folder / "run"), tmp_path / "saved")
    assert read_record(tmp_path / "saved") == record
    tuned_result = tuned(tmp_path / "saved", sets, tmp_path / "tuned", steps=1)
    assert read_record(tmp_path / "tuned/model") == record
    assert f"pre-trained on {record.tokens / 1000:.3g} K tokens" in tuned_result["defaults"]["reason"]
    reading = stemma.training.run_folder.TextReadingOptions(documents="line")
    more = pretrain("modernbert@tiny", folder / "text.txt", tmp_path / "more", steps=2, init_from=folder / "run",
                    changes=["training.threads=1"], reading=reading)
    assert read_record(tmp_path / "more/model").tokens == record.tokens + more["tokens"]
    (tmp_path / "saved" / FILE).unlink()
    (tmp_path / "saved/checksums.json").unlink()
    pretrain("modernbert@tiny", folder / "text.txt", tmp_path / "unknown", steps=1, init_from=tmp_path / "saved",
             changes=["training.threads=1"], reading=reading)
    assert read_record(tmp_path / "unknown/model") is None  # as of a published checkpoint


def test_a_damaged_record_is_reported(tmp_path, start):
    shutil.copytree(start, tmp_path / "model")
    (tmp_path / "model" / FILE).write_text('{"steps": 3}')
    with pytest.raises(CorruptFileError, match=f"{FILE} is damaged"):
        stemma.load(tmp_path / "model")


@pytest.mark.parametrize(("label", "changes", "expected"), [
    ("roberta@tiny", [], {"network.dropout": 0.1, "network.attention.dropout": 0.1}),
    ("t5@mini", [], dict.fromkeys(("network.dropout", "network.inner_dropout", "network.output_dropout",
                                   "network.attention.dropout"), 0.1)),
    ("bert@tiny", ["network.dropout=0.05"], {"network.attention.dropout": 0.1}),
    ("albert@tiny", [], {}), ("bert@small", [], {}), ("bert@base", [], {})])
def test_laptop_sizes_are_fine_tuned_with_the_dropouts_of_the_paper(label, changes, expected):
    assert published_dropouts(recipe(label, changes)) == expected


def test_a_recipe_of_the_users_own_has_the_dropouts_of_its_parent(tmp_path):
    (tmp_path / "mine.toml").write_text('parent = "gpt2"\ntitle = "Mine"\nyear = 2026\nsummary = "Wider."\n'
                                        "[sizes.tiny]\nlaptop = true\nnetwork.width = 64\n")
    assert published_dropouts(recipe(f"{tmp_path}/mine.toml", size="tiny"))["network.dropout"] == 0.1


@pytest.mark.parametrize(("change", "expected"), [((), 0.1), (("network.dropout=0.0",), 0.0)])
def test_the_fine_tuned_network_has_them_unless_the_user_says_otherwise(tmp_path, change, expected):
    model = stemma.load(toy_tasks.save_model(tmp_path / "start", "roberta@tiny"))
    assert finetune_recipe(model, change).settings.network.dropout == expected
