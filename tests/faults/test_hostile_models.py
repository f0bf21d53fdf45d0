"""Untrusted model folders are refused with an error before anything large is allocated."""

from __future__ import annotations

import json
import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from random_models import SIZES, save_random
from safetensors.torch import load_file, save_file

from stemma.cli import main
from stemma.exchange.load import load

FILL = ["fill", "model", "the [MASK] reads"]
DEEP = "[" * 100_000 + "]" * 100_000


@pytest.fixture(scope="session")
def models(tmp_path_factory, tokenizer_folder) -> Path:
    """Models that are saved as BERT, as ALBERT, and in stemma's own format."""
    folder = tmp_path_factory.mktemp("models")
    save_random(folder / "bert", tokenizer_folder)
    save_random(folder / "own", tokenizer_folder, changes=(*SIZES, "network.norm.placement=pre"))
    save_random(folder / "albert", tokenizer_folder, "albert@tiny", (*SIZES, "network.embedding.width=16"))
    return folder


@pytest.fixture
def model(tmp_path, monkeypatch, models) -> Callable[[str], Path]:
    """Copies a model into the working directory without checksums, as a downloaded folder has none."""
    monkeypatch.chdir(tmp_path)

    def copy_model(name: str, recipe: bool = True) -> Path:
        shutil.copytree(models / name, "model")
        Path("model/checksums.json").unlink()
        if not recipe:
            Path("model/recipe.toml").unlink()
        return Path("model")

    return copy_model


def refusal(capsys, *words: object) -> str:
    capsys.readouterr()
    start = time.process_time()
    code = main([str(word) for word in words])
    captured = capsys.readouterr()
    assert code == 2 and captured.err.startswith("error: ") and captured.out == "", (code, captured)
    assert "internal error" not in captured.err and "Traceback" not in captured.err
    assert time.process_time() - start < 20, "something large was allocated"
    return captured.err


def configure(folder: Path, **values: object) -> None:
    file = folder / "config.json"
    config = json.loads(file.read_text()) | values
    file.write_text(json.dumps({key: value for key, value in config.items() if value != "absent"}))


# ---- sizes ----

@pytest.mark.parametrize("recipe", [True, False])
@pytest.mark.parametrize(("key", "value", "message"), [
    ("num_hidden_layers", 1_000_000, "num_hidden_layers = 1000000   the weights have 2 layers"),
    ("num_hidden_layers", 3, "num_hidden_layers = 3   the weights have 2 layers"),
    ("hidden_size", 10**9, "hidden_size = 1000000000   bert.embeddings.word_embeddings.weight is "),
    ("vocab_size", 10**30, f"vocab_size = {10**30}   bert.embeddings.word_embeddings.weight is "),
])
def test_config_sizes_that_differ_from_the_weights_are_refused(model, capsys, key, value, message, recipe):
    configure(model("bert", recipe), **{key: value})
    assert message in refusal(capsys, *FILL)


@pytest.mark.parametrize(("key", "value", "message"), [
    ("intermediate_size", 10**18, "network.feedforward"), ("max_position_embeddings", 10**30, "position.maximum"),
    ("type_vocab_size", 10**30, "embedding.segments"), ("num_attention_heads", 10**12, "network.heads"),
    ("intermediate_size", 65, "intermediate.dense.weight"), ("hidden_size", "32", "network.width"),
    ("num_hidden_layers", [2], "network.layers"), ("model_type", ["bert"], "model_type"),
])
def test_impossible_sizes_in_a_config_are_refused(model, capsys, key, value, message):
    configure(model("bert", recipe=False), **{key: value})
    assert message in refusal(capsys, *FILL)


def test_the_number_of_shared_layers_is_bounded_too(model, capsys):
    configure(model("albert", recipe=False), num_hidden_layers=1_000_000)
    assert "network.layers = 1000000" in refusal(capsys, *FILL)


@pytest.mark.parametrize(("key", "value", "message"), [
    ("layers", 1_000_000, "network.layers"), ("layers", 9_000, "the weights have 2 layers"),
    ("width", 1_000_000_000, "network.width"), ("width", 64, "embedding.tokens.weight is "),
])
def test_wrong_sizes_in_a_model_s_recipe_are_refused(model, capsys, key, value, message):
    file = model("own") / "recipe.toml"
    changed, times = re.subn(rf"(?m)^({key} *= )\d+", rf"\g<1>{value}", file.read_text())
    assert times
    file.write_text(changed)
    assert message in refusal(capsys, *FILL)


@pytest.mark.parametrize(("key", "value"), [("vocab_size", "x"), ("vocab_size", 10**30), ("heads", 5), ("heads", [[]])])
def test_invalid_values_in_stemmas_config_are_refused(model, capsys, key, value):
    configure(model("own"), **{key: value})
    assert key in refusal(capsys, *FILL)


# ---- contradictions between recipe.toml and config.json ----

@pytest.mark.parametrize(("key", "value", "message"), [
    ("num_attention_heads", 4, "num_attention_heads = 4   recipe.toml has network.heads = 2"),
    ("hidden_act", "relu", "hidden_act = relu   recipe.toml has network.activation = gelu"),
    ("layer_norm_eps", 0.5, "layer_norm_eps = 0.5   recipe.toml has network.norm.epsilon = "),
])
def test_a_config_that_contradicts_the_recipe_is_refused(model, capsys, key, value, message):
    configure(model("bert"), **{key: value})
    assert message in refusal(capsys, *FILL)


def test_a_stemma_config_that_contradicts_the_recipe_is_refused(model, capsys):
    folder = model("own")
    network = json.loads((folder / "config.json").read_text())["network"]
    configure(folder, network=network | {"heads": 4})
    assert "heads = 4   recipe.toml has network.heads = 2" in refusal(capsys, *FILL)


@pytest.mark.parametrize("name", ["bert", "own"])
def test_dropout_is_read_from_the_config_with_a_warning(model, capsys, name):
    folder = model(name)
    if name == "bert":
        configure(folder, hidden_dropout_prob=0.25, attention_probs_dropout_prob="absent")
    else:
        network = json.loads((folder / "config.json").read_text())["network"]
        configure(folder, network=network | {"dropout": 0.25})
    network = load(folder).recipe.settings.network
    assert network.dropout == 0.25 and network.attention.dropout == 0.0
    assert main(FILL) == 0
    assert " = 0.25 of config.json is used; recipe.toml has 0" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["bert", "own", "albert"])
def test_a_saved_model_loads_without_warnings(models, name):
    assert load(models / name).load_warnings == []


# ---- weights ----

@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("name", ["bert", "own"])
def test_nan_and_infinite_weights_are_refused_by_name(model, capsys, name, value):
    file = model(name) / "model.safetensors"
    weights = load_file(file)
    key = next(name for name in weights if "feedforward.input.weight" in name or "1.intermediate.dense.weight" in name)
    weights[key][1, 2] = value
    save_file(weights, file, {"format": "pt"})
    Path("text.txt").write_text("the clerk reads\n")
    for verb in (FILL, ["embed", "model", "text.txt", "--out", "vectors.npy"]):
        message = refusal(capsys, *verb)
        assert "hold NaN or infinite numbers" in message and key in message
    assert not Path("vectors.npy").exists()


def test_large_finite_weights_are_accepted(model):
    """Their sum overflows, but each of them is finite."""
    file = model("bert") / "model.safetensors"
    weights = load_file(file)
    weights["bert.embeddings.word_embeddings.weight"][:, :] = torch.finfo(torch.float32).max
    weights.pop("cls.predictions.decoder.weight", None)
    save_file(weights, file, {"format": "pt"})
    assert load("model").network.vocab_size > 0


@pytest.mark.parametrize("name", ["/etc/hostname", "../outside.safetensors", "down/../../outside.safetensors",
                                  "down/inside.safetensors"])
def test_a_weight_index_with_a_path_outside_its_folder_is_refused(model, capsys, name):
    folder = model("bert")
    shutil.copy(folder / "model.safetensors", "outside.safetensors")
    (folder / "down").mkdir()
    (folder / "model.safetensors").rename(folder / "down/inside.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": name}}))
    assert f"names {name}, which is not a file beside it" in refusal(capsys, *FILL)


# ---- JSON and tokenizers ----

@pytest.mark.parametrize(("name", "content"), [
    ("config.json", DEEP), ("tokenizer.json", DEEP), ("tokenizer_config.json", DEEP), ("tasks.json", DEEP),
    ("tasks.json", "[1]"), ("model.safetensors.index.json", DEEP), ("config.json", '{"model_type": ' + DEEP + "}"),
    ("tokenizer.json", '{"model": {"vocab": ' + DEEP + "}}"),
])
def test_deeply_nested_json_is_refused(model, capsys, name, content):
    folder = model("bert")
    if "index" in name:
        (folder / "model.safetensors").unlink()
    (folder / name).write_text(content)
    assert name in refusal(capsys, *FILL)


@pytest.mark.parametrize("verb", ["fill", "corpus"])
def test_a_regular_expression_that_backtracks_too_long_is_refused(model, capfd, verb):
    """The Rust library panics and would print a backtrace to the file descriptor, not through Python."""
    file = model("bert") / "tokenizer.json"
    content = json.loads(file.read_text())
    content["pre_tokenizer"] = {"type": "Split", "pattern": {"Regex": "(a+)+$"}, "behavior": "Isolated",
                                "invert": False}
    file.write_text(json.dumps(content))
    text = "a" * 60 + "!"
    Path("text.txt").write_text(text + "\n")
    command = ["fill", "model", f"[MASK] {text}"] if verb == "fill" else \
        ["corpus", "build", "text.txt", "--tokenizer", "model", "--out", "made", "--workers", "1"]
    message = refusal(capfd, *command)
    assert "a regular expression in its tokenizer.json gives up" in message and message.count("\n") == 1, message
    assert not Path("made").exists()


# ---- recipes ----

@pytest.mark.parametrize(("changes", "message"), [
    (["network.width=1000000000"], "network.width = 1000000000"),
    (["network.width=1000000000", "network.heads=7"], "network.width = 1000000000"),
    (["network.layers=1000000"], "network.layers = 1000000"),
    (["network.width=1000000", "network.feedforward=1000000", "network.heads=10"], "GB of memory"),
    (["network.position.maximum=100000000000"], "GB of memory"),
    (["network.position.maximum=10000000000000"], "network.position.maximum"),
])
def test_networks_larger_than_memory_are_refused(tmp_path, monkeypatch, capsys, corpus_folder, changes, message):
    monkeypatch.chdir(tmp_path)
    assert message in refusal(capsys, "pretrain", "bert@tiny", "--corpus", corpus_folder, "--steps", 1, "--out", "run",
                                      *changes)
    assert list(tmp_path.iterdir()) == []
