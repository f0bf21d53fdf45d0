"""Options and keys of Hugging Face's scripts and of UER: the error names a key or an option that exists suggestion."""

from __future__ import annotations

from typing import Any

import pytest
import typer

from stemma import recipe_loading
from stemma.cli import app, main
from stemma.errors import UserError
from stemma.schema.aliases import ALIASES, key_hint
from stemma.schema.recipe_checks import known_keys


def verbs(command: Any, path: tuple[str, ...] = ()) -> dict[str, Any]:
    inner = getattr(command, "commands", None)
    if inner is None:
        return {" ".join(path): command}
    return {name: verb for word, subcommand in inner.items() for name, verb in verbs(subcommand, (*path, word)).items()}


VERBS = verbs(typer.main.get_command(app))
OPTIONS = {name: {option for parameter in verb.params for option in parameter.opts if option.startswith("--")}
           for name, verb in VERBS.items()}
ARGUMENTS = {name: {parameter.metavar for parameter in verb.params if not parameter.opts[0].startswith("-")}
             for name, verb in VERBS.items()}
KEYS = {key for name in recipe_loading.recipe_names() for key in known_keys(recipe_loading.recipe(name).values)}
KEYS |= set(known_keys(recipe_loading.recipe("bert", ["training.optimizer.kind=muon",
                                               "training.schedule.kind=warmup_stable_decay"]).values))


@pytest.mark.parametrize("word", ALIASES)
def test_every_suggested_key_or_option_exists(word):
    for suggestion in ALIASES[word]:
        if suggestion.is_option:
            assert any(suggestion.name in options for options in OPTIONS.values()), suggestion
        elif suggestion.is_key:
            assert suggestion.name in KEYS, suggestion
        elif suggestion.name:
            assert any(suggestion.name in arguments for arguments in ARGUMENTS.values()), suggestion
        else:
            assert suggestion.note


PRETRAIN = {
    "--lr": "training.learning_rate=VALUE", "--learning_rate": "training.learning_rate=VALUE",
    "--per_device_train_batch_size": "training.batch_size=VALUE", "--batch-size": "training.batch_size=VALUE",
    "--num_train_epochs": "--tokens", "--epochs": "--tokens", "--total_steps": "--steps", "--max-steps": "--steps",
    "--warmup_steps": "training.warmup_steps=VALUE", "--warmup_ratio": "training.warmup_steps=VALUE",
    "--weight_decay": "training.optimizer.weight_decay=VALUE", "--max_seq_length": "corpus.sequence_length=VALUE",
    "--mlm_probability": "objective.masked_lm.rate=VALUE", "--save_steps": "training.checkpoint_every=VALUE",
    "--output_dir": "--out", "--model_name_or_path": "--from", "--fp16": "training.precision=VALUE",
    "--bf16": "training.precision=VALUE", "--gradient_accumulation_steps": "training.micro_batch_size=VALUE",
    "--hidden_size": "network.width=VALUE", "--num_hidden_layers": "network.layers=VALUE",
    "--num_attention_heads": "network.heads=VALUE", "--instances_buffer_size": "memory-mapped",
    "--config_path": "RECIPE", "--train_file": "--corpus", "--validation_file": "corpus.validation=VALUE",
    "--vocab_path": "--corpus", "--random_seed": "--seed", "--overwrite_output_dir": "--overwrite",
    "--report_to": "--tensorboard",
}
FINETUNE = {"--lr": "training.learning_rate=VALUE", "--num_train_epochs": "--epochs", "--train_file": "--train",
            "--validation_file": "--dev", "--test_path": "--test", "--model_name_or_path": "--model",
            "--output_model_path": "--out", "--seq_length": "corpus.sequence_length=VALUE"}
OTHER_VERBS = {("predict", "--model_name_or_path"): "MODEL", ("predict", "--prediction_path"): "--out",
             ("generate", "--max_new_tokens"): "--tokens", ("generate", "--num_beams"): "--beams",
             ("corpus build", "--vocab_path"): "--tokenizer", ("compare", "--lr"): "training.learning_rate=VALUE",
             ("tokenizer train", "--vocab_size"): "--vocab-size", ("compare", "--seed"): "--seeds"}


@pytest.mark.parametrize(("verb", "typed", "ours"), [
    *(("pretrain", typed, ours) for typed, ours in PRETRAIN.items()),
    *(("finetune classify", typed, ours) for typed, ours in FINETUNE.items()),
    *((verb, typed, ours) for (verb, typed), ours in OTHER_VERBS.items()),
])
def test_options_of_other_tools_get_a_hint(verb, typed, ours, capsys):
    assert main([*verb.split(), f"{typed}=3"]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f'error: no option "{typed}" of `stemma {verb}`. ') and error.count("\n") == 1
    assert "Did you mean" not in error and ours in error
    if ours.startswith("--"):
        assert ours in OPTIONS[verb]
    elif ours.isupper():
        assert ours in ARGUMENTS[verb]
    elif ours.endswith("=VALUE"):
        assert ours.removesuffix("=VALUE") in KEYS and any("KEY=VALUE" in argument for argument in ARGUMENTS[verb])


@pytest.mark.parametrize(("typed", "ours"), [
    ("lr=1e-3", "training.learning_rate"), ("training.lr=1e-3", "training.learning_rate"),
    ("learning_rate=1e-3", "training.learning_rate"), ("per_device_train_batch_size=8", "training.batch_size"),
    ("weight_decay=0.1", "training.optimizer.weight_decay"),
    ("training.weight_decay=1", "training.optimizer.weight_decay"),
    ("warmup_ratio=0.1", "training.warmup_steps"), ("max_seq_length=64", "corpus.sequence_length"),
    ("mlm_probability=0.2", "objective.masked_lm.rate"), ("save_steps=9", "training.checkpoint_every"),
    ("fp16=true", "training.precision"), ("hidden_size=64", "network.width"), ("n_layer=3", "network.layers"),
    ("network.num_hidden_layers=3", "network.layers"), ("heads=2", "network.heads"), ("n_head=2", "network.heads"),
    ("gradient_accumulation_steps=2", "training.micro_batch_size"),
    ("network.hidden_dropout_prob=0", "network.dropout"),
])
def test_the_error_for_a_key_of_another_tool_suggests_ours(typed, ours):
    with pytest.raises(UserError) as caught:
        recipe_loading.recipe("bert@tiny", [typed])
    (_, problem), = caught.value.problems
    assert problem.startswith(f'no such key. Did you mean "{ours}"?')
    assert ours in set(known_keys(recipe_loading.recipe("bert@tiny").values))


@pytest.mark.parametrize(("typed", "option"), [("seed=3", "--seed"), ("num_train_epochs=3", "--epochs or --tokens"),
                                               ("output_dir=x", "--out"), ("max_steps=3", "--steps")])
def test_the_error_for_an_option_given_as_a_key_names_the_option(typed, option):
    with pytest.raises(UserError, match="no such key; it is an option here: " + option):
        recipe_loading.recipe("bert@tiny", [typed])


def test_keys_of_other_tools_get_a_hint_with_the_recipes_key():
    keys = set(known_keys(recipe_loading.recipe("t5@tiny").values))
    assert '"objective.span_corruption.rate"' in key_hint("mlm_probability", keys)
    assert key_hint("training.learning_rate", keys) is None and key_hint("nonsense", keys) is None
