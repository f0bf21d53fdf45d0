"""Fine-tuning uses the recipe's [finetuning] section, not its pre-training settings."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import pytest
import toy_tasks
from safetensors.torch import load_file

import stemma
from stemma.cli import main
from stemma.errors import UserError
from stemma.exchange.load import _finetuned_as_published
from stemma.recipe_loading import diff, recipe, recipe_names
from stemma.tasks.pipeline.stage_recipes import continued_pretraining_recipe
from stemma.tasks.runs.common import ORIGIN, finetune_overrides, resume
from stemma.tasks.runs.finetune import TaskArguments, finetune
from stemma.tasks.runs.finetune_defaults import BRIEF_FACTOR, MAX_EPOCHS
from stemma.text.tokenizer import Tokenizer

# optimizer, learning rate at a width, epochs, warm-up, clipping, layer decay; the recipes say where from
PUBLISHED = {
    **dict.fromkeys(("word2vec", "glove", "fasttext"), ("adamw", 2e-3, 100, 10, 0.0, 1.0, None)),  # our choice
    "transformer": ("adam", 7e-5, 512, 3, 0.1, 1.0, None),
    "universal-transformer": ("adam", 7e-5, 512, 3, 0.1, 1.0, None),
    "universal-transformer-seq2seq": ("adam", 7e-5, 512, 3, 0.1, 1.0, None),
    "transformer-xl": ("adam", 7e-5, 512, 3, 0.1, 1.0, None),
    "mass": ("adam", 1e-4, 1024, 3, 0.1, 1.0, None),
    "bart": ("adamw", 3e-5, 1024, 3, 0.025, 0.1, None),
    "t5": ("adafactor", 1e-3, 768, 3, 0.0, None, None),
    "prefix-lm": ("adafactor", 1e-3, 768, 3, 0.0, None, None),
    "gpt": ("adamw", 6.25e-5, 768, 3, 0.002, 1.0, None),
    "gpt2": ("adamw", 6.25e-5, 768, 3, 0.002, 1.0, None),
    "gpt3": ("adamw", 6.25e-5, 768, 3, 0.002, 1.0, None),
    "bert": ("adamw", 5e-5, 768, 3, 0.1, 1.0, None),
    "bert-wwm": ("adamw", 3e-5, 768, 3, 0.1, 1.0, None),
    "bert-wwm-ext": ("adamw", 3e-5, 768, 3, 0.1, 1.0, None),
    "roberta": ("adamw", 2e-5, 1024, 10, 0.06, None, None),
    "albert": ("adamw", 2e-5, 768, 10, 0.06, 1.0, None),
    "electra": ("adamw", 1e-4, 768, 3, 0.1, 1.0, 0.8),
    "ernie": ("adamw", 5e-5, 768, 10, 0.0, 1.0, None),
    "ernie-2": ("adamw", 3e-5, 768, 4, 0.1, 1.0, None),
    "spanbert": ("adamw", 2e-5, 768, 10, 0.1, 1.0, None),
    "structbert": ("adamw", 5e-5, 768, 3, 0.1, 1.0, None),
    "unilm": ("adamw", 3e-5, 1024, 10, 0.1, 1.0, None),
    "xlnet": ("adamw", 2e-5, 1024, 5, 0.1, 1.0, None),
    "modernbert": ("stable_adamw", 5e-5, 768, 3, 0.06, None, None),
    "ettin": ("stable_adamw", 5e-5, 768, 3, 0.06, None, None),
    "neobert": ("adamw", 5e-5, 768, 3, 0.1, 1.0, None),
    "ltg-bert": ("adamw", 5e-5, 768, 3, 0.1, 1.0, None),
    "gpt-bert": ("adamw", 5e-5, 768, 3, 0.1, 1.0, None),
    "mdlm": ("adamw", 2e-5, 1024, 10, 0.06, None, None),
    "rnnsearch": ("adamw", 1e-4, 2000, 3, 0.1, 1.0, None),
    "cove": ("adamw", 1e-4, 600, 3, 0.1, 1.0, None),
    "lm-init-seq2seq": ("adamw", 1e-4, 650, 3, 0.1, 1.0, None),
    "bilstm": ("adam", 2e-3, 600, 10, 0.1, 5.0, None),
    "nnlm": ("adamw", 1e-3, 100, 3, 0.1, None, None),
    "lstm-lm": ("adamw", 1e-3, 650, 3, 0.1, None, None),
    "awd-lstm": ("adamw", 1e-3, 400, 3, 0.1, None, None),
    "ulmfit": ("adamw", 0.01, 400, 50, 0.0, None, 0.3846),
    "elmo": ("adamw", 1e-3, 1024, 3, 0.1, None, None),
    "context2vec": ("adamw", 1e-3, 600, 3, 0.1, None, None),
    "nanochat": ("adamw", 6.25e-5, 768, 3, 0.002, 1.0, None),
    "ettin-decoder": ("stable_adamw", 5e-5, 768, 3, 0.06, None, None),
}
QUICK = ["training.batch_size=16", "training.threads=1"]


@pytest.fixture(scope="module")
def sets(tmp_path_factory):
    return toy_tasks.write_sets(tmp_path_factory.mktemp("sets"), "classify", train=32, dev=16)


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    place = tmp_path_factory.mktemp("models")
    return {name: toy_tasks.save_model(place / name, f"{name}@tiny") for name in ("bert", "albert", "electra")}


def tuned(model, sets, out, *changes, kind="classify", **options):
    finetune(TaskArguments(kind, sets), model, out, changes=[*QUICK, *changes], **options)
    return stemma.recipe(out / "recipe.toml")


def without_section(text):
    """A stored recipe from before the section existed."""
    kept, inside = [], False
    for line in text.split("\n"):
        inside = line.startswith("[finetuning") or inside and not line.startswith("[")
        if not inside and not line.startswith(('"finetuning.', "finetuning.")):
            kept.append(line)
    assert "finetuning" not in "\n".join(kept).replace("fine-tuning", "")
    return "\n".join(kept)


# --- what recipes say


@pytest.mark.parametrize("name", [name for name in recipe_names() if not recipe(name).settings.network.depth.counts])
def test_every_recipe_is_fine_tuned_as_its_paper_does(name):
    kind, rate, width, epochs, warmup, clip, decay = PUBLISHED[name]
    chosen = recipe(name)
    said = chosen.settings.finetuning
    assert (said.optimizer.kind, said.learning_rate, said.width, said.epochs, said.warmup, said.clip_norm,
            said.layer_decay) == (kind, rate, width, epochs, warmup, clip, decay)
    training = chosen.with_changes(finetune_overrides(chosen.settings), ORIGIN).settings.training
    assert training.optimizer == said.optimizer and training.optimizer.kind != "lamb"
    assert training.schedule == said.schedule and training.clip_norm == clip
    assert training.learning_rate == pytest.approx(rate * width / chosen.settings.network.width, rel=1e-2)
    assert training.spike_factor is None and training.layer_decay is None


@pytest.mark.parametrize(("name", "rate", "decay"), [
    ("bert@tiny", 3e-4, None), ("bert@base", 5e-5, None), ("bert@large", 3.75e-5, None), ("roberta@large", 2e-5, None),
    ("electra@small", 3e-4, 0.8), ("electra@base", 1e-4, 0.8), ("electra@large", 5e-5, 0.9),
    ("albert@xxlarge", 2e-5, None), ("t5@small", 1e-3, None), ("t5@11b", 1e-3, None), ("xlnet@large", 2e-5, None)])
def test_learning_rates_scale_with_width_and_sizes_can_override(name, rate, decay):
    chosen = recipe(name).settings
    assert chosen.finetuning.learning_rate_for(chosen.network.width) == rate and chosen.finetuning.layer_decay == decay


def test_the_section_is_inherited_shown_and_compared(capsys):
    assert recipe("roberta").origin["finetuning.optimizer.epsilon"] == "bert"
    changes = {change.key: (change.before, change.after) for change in diff("bert", "roberta")}
    assert changes["finetuning.epochs"] == (3.0, 10.0) and changes["finetuning.optimizer.beta2"] == (0.999, 0.98)
    assert changes["finetuning.clip_norm"] == (1.0, None)
    assert main(["show", "electra"]) == main(["diff", "bert", "electra"]) == 0
    shown, compared = capsys.readouterr().out.split("bert -> electra")
    assert "finetuning.layer_decay " in shown and "finetuning.layer_decay_top" in shown
    assert "finetuning.learning_rate" in compared


def test_invalid_values_are_reported_with_all_other_problems():
    with pytest.raises(UserError) as caught:
        recipe("albert@tiny", ["finetuning.layer_decay=0.9", "finetuning.warmup=1.5", "finetuning.rate=1"])
    assert {place.split(" = ")[0] for place, _ in caught.value.problems} == {
        "finetuning.layer_decay", "finetuning.warmup", "finetuning.rate"}


# --- what a fine-tune does with it


def test_a_model_is_not_fine_tuned_with_the_optimizer_of_its_pre_training(tmp_path, sets):
    model = toy_tasks.save_model(tmp_path / "lamb", "albert@tiny", "training.optimizer.kind=lamb")
    training = tuned(model, sets, tmp_path / "run", steps=1).settings.training
    assert training.optimizer.kind == "adamw" and training.optimizer.weight_decay == 0.01
    assert training.learning_rate == pytest.approx(BRIEF_FACTOR * 2e-5 * 768 / 32)


def test_epochs_and_warm_up_come_from_the_recipe_unless_overridden(tmp_path, models, sets):
    training = tuned(models["albert"], sets, tmp_path / "default").settings.training
    assert (training.steps, training.warmup_steps) == (2 * MAX_EPOCHS, 2)  # 32 examples, 16 at a time; 6%
    chosen = tuned(models["bert"], sets, tmp_path / "typed", "finetuning.learning_rate=1e-4", "finetuning.width=32",
                   "finetuning.epochs=2", "finetuning.warmup=0.5", "finetuning.optimizer.kind=adamax",
                   "remove=finetuning.clip_norm")
    training = chosen.settings.training
    assert (training.learning_rate, training.steps, training.warmup_steps) == (1e-4, 4, 2)
    assert training.optimizer.kind == "adamax" and training.clip_norm is None
    assert chosen.origin["finetuning.epochs"] == "command line"
    training = tuned(models["bert"], sets, tmp_path / "both", "finetuning.learning_rate=1e-4", "finetuning.epochs=2",
                     "training.learning_rate=7e-4", "training.optimizer.kind=adam", epochs=1).settings.training
    assert (training.learning_rate, training.optimizer.kind, training.steps) == (7e-4, "adam", 2)


def test_all_problems_are_reported_together(tmp_path, models, sets):
    with pytest.raises(UserError) as caught:
        tuned(models["bert"], sets, tmp_path / "run", "finetuning.epochs=0", "training.batch_size=0", "network.heads=0")
    assert len(caught.value.problems) == 3 and not (tmp_path / "run").exists()


def test_layer_decay_of_the_recipe_is_used_unless_all_layers_are_frozen(tmp_path, models, sets):
    decayed = tuned(models["electra"], sets, tmp_path / "decayed", "finetuning.layer_decay=0.8", steps=1)
    assert (decayed.settings.training.layer_decay, decayed.settings.training.layer_decay_top) == (0.8, 2)
    assert tuned(models["electra"], sets, tmp_path / "laptop", steps=1).settings.training.layer_decay is None
    for number, change in enumerate(("training.frozen=all", "training.frozen=3", "remove=finetuning.layer_decay")):
        training = tuned(models["electra"], sets, tmp_path / f"{number}", change, steps=1).settings.training
        assert training.layer_decay is None
    again = tuned(tmp_path / "2", sets, tmp_path / "again", steps=1)  # what was taken away stays so
    assert again.settings.finetuning.layer_decay is None


def test_a_sweep_and_a_learning_rate_override_exclude_each_other(tmp_path, models, sets):
    from stemma.tasks.runs.sweep import Sweep

    with pytest.raises(UserError, match="--rates and finetuning.learning_rate exclude each other"):
        tuned(models["bert"], sets, tmp_path / "run", "finetuning.learning_rate=1e-4", trials=Sweep((1e-3, 1e-4)))


def test_continued_pretraining_uses_the_same_optimizer_and_no_layer_decay():
    settings = continued_pretraining_recipe(recipe("albert@tiny"), steps=100).settings.training
    assert settings.optimizer.kind == "adamw" and settings.warmup_steps == 6
    assert continued_pretraining_recipe(recipe("electra@tiny")).settings.training.layer_decay is None


def test_question_windows_follow_the_task_config(tmp_path, models):
    sets = toy_tasks.write_sets(tmp_path / "sets", "qa", train=8, dev=4)
    for change, found in (("finetuning.stride=9", {"stride": 9}), ("finetuning.overlap=5", {"overlap": 5})):
        tuned(models["bert"], sets, tmp_path / change, change, kind="qa", steps=1)
        values = json.loads((tmp_path / change / "model/tasks.json").read_text())["task"]["values"]
        assert {key: values[key] for key in ("stride", "overlap") if key in values} == found


# --- folders of others, and old ones


def test_a_hugging_face_folder_has_the_section_of_its_family(tmp_path, models):
    for name, model in [(name, models[name]) for name in ("bert", "albert")]:
        shutil.copytree(model, tmp_path / name)
        (tmp_path / name / "recipe.toml").unlink(missing_ok=True)
        (tmp_path / name / "checksums.json").unlink(missing_ok=True)
        assert stemma.load(tmp_path / name).recipe.values["finetuning"] == recipe(name).values["finetuning"]


def test_a_hugging_face_folder_of_a_published_size_has_the_section_of_that_size():
    base = recipe("electra")
    large = _finetuned_as_published(base, {"network.layers": 24, "network.width": 1024})
    assert large.values["finetuning"] == recipe("electra@large").values["finetuning"]
    assert large.values["network"] == base.values["network"]
    assert _finetuned_as_published(base, {"network.layers": 3, "network.width": 1024}) == base


@pytest.mark.parametrize(("name", "expected"), [("electra@large", "electra@large"), ("t5@tiny", "t5@tiny")])
def test_an_old_recipe_has_the_section_of_its_family(tmp_path, name, expected):
    (tmp_path / "recipe.toml").write_text(without_section(recipe(name).to_toml()))
    assert stemma.recipe(tmp_path / "recipe.toml").values == recipe(expected).values


def test_an_old_custom_recipe_has_the_defaults(tmp_path):
    mine = replace(recipe("t5@tiny"), name="mine")
    (tmp_path / "recipe.toml").write_text(without_section(mine.to_toml()))
    said = stemma.recipe(tmp_path / "recipe.toml").settings.finetuning
    assert (said.optimizer.kind, said.learning_rate, said.width, said.clip_norm) == ("adamw", 5e-5, 768, 1.0)


def test_an_old_fine_tuning_run_resumes_to_the_same_bytes(tmp_path, models, sets):
    run = tmp_path / "run"
    tuned(models["bert"], sets, run, "training.checkpoint_every=2", steps=4)
    before = load_file(run / "model/model.safetensors")
    shutil.rmtree(run / "checkpoints/step-4")
    shutil.rmtree(run / "model")
    (run / "result.json").unlink()
    (run / "recipe.toml").write_text(without_section((run / "recipe.toml").read_text()))
    (run / "checksums.json").unlink()  # which such a run did not have either
    resume(run)
    after = load_file(run / "model/model.safetensors")
    assert before.keys() == after.keys() and all((before[key] == after[key]).all() for key in before)


@pytest.mark.parametrize(("name", "usual"), [("bert", None), ("modernbert", "mean"), ("gpt2", "last")])
def test_the_pooling_of_a_text_can_be_chosen(tmp_path, tokenizer_folder, name, usual):
    small = ["network.width=16", "network.heads=2", "network.layers=1", "network.feedforward=32"]
    tokenizer = Tokenizer.load(tokenizer_folder)
    model = stemma.build(f"{name}@tiny", tokenizer.vocab_size, small)
    model.tokenizer = tokenizer
    stemma.save(model, tmp_path / "start")
    (tmp_path / "rows.tsv").write_text("\n".join(["text\tlabel", *(f"the old ship {n}\t{n % 2}" for n in range(8))]))
    rows = [tmp_path / "rows.tsv", tmp_path / "rows.tsv"]
    for pooling in (None, "mean", "first", "last"):
        out = tmp_path / str(pooling)
        stemma.finetune("classify", tmp_path / "start", *rows, out, steps=1, changes=[
            *QUICK, "finetuning.style=plain", *([] if pooling is None else [f"finetuning.pooling={pooling}"])])
        tuned = stemma.load(out)
        assert getattr(tuned.task_config().heads["task"], "place", None) == (pooling or usual)
        assert len(tuned.predict(["the old ship", "a river"])) == 2
