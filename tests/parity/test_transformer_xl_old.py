"""Transformer-XL agrees with transformers 4.35.2, which runs in an environment of its own."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from literal import adaptive_softmax, transformer_xl
from parity import old_transformers
from parity.reference import perturb
from safetensors.torch import load_file, save_file
from torch import Tensor

import stemma
from stemma.errors import UserError
from stemma.exchange.tensor_map import to_hf
from stemma.exchange.transformer_xl import TRANSFORMER_XL
from stemma.network.inputs_outputs import Stream
from stemma.visibility import Causal

pytestmark = pytest.mark.slow

SIZES = {"d_model": 12, "d_embed": 12, "n_head": 3, "d_head": 5, "d_inner": 17, "n_layer": 2, "vocab_size": 41}
CASES = {
    # As published, but tiny: narrower and narrower clusters, only the first cluster's projection not shared.
    "published": {"cutoffs": [9, 20], "div_val": 2, "mem_len": 5, "clamp_len": 6, "same_length": True},
    "wide_embedding": {"d_embed": 16, "cutoffs": [9, 20], "div_val": 2, "mem_len": 5, "clamp_len": 6},
    "character": {"cutoffs": [], "div_val": 1, "mem_len": 6, "clamp_len": -1, "same_length": False, "untie_r": False},
    "one_width": {"cutoffs": [7, 19], "div_val": 1, "mem_len": 4, "clamp_len": 3, "same_length": False},
    "undivided": {"cutoffs": [], "div_val": 1, "mem_len": 4, "clamp_len": 0, "same_length": True},
    "undivided_and_projected": {"cutoffs": [], "div_val": 3, "mem_len": 7, "same_length": False},
    "one_narrow_width": {"d_embed": 8, "cutoffs": [7, 19], "div_val": 1, "mem_len": 9, "same_length": True},
    "all_shared": {"d_embed": 16, "cutoffs": [9, 20, 31], "div_val": 2, "mem_len": 3, "tie_projs": [True] * 4},
    "no_memory": {"cutoffs": [10], "div_val": 2, "mem_len": 0, "same_length": False, "layer_norm_epsilon": 0.01},
}
# What is told of those that we do not build.
REFUSED = {"wide_embedding": "d_embed", "character": "untie_r", "one_narrow_width": "d_embed",
           "all_shared": "tie_projs", "no_memory": "network.memory.evaluation"}


@dataclass
class Reference:
    """A model of theirs and what it answered."""
    folder: Path  # model/ and model_bin/ inside
    case: dict[str, Any]
    config: dict[str, Any]
    answers: dict[str, Tensor]

    def state(self) -> dict[str, Tensor]:
        return torch.load(self.folder / "model_bin/pytorch_model.bin", weights_only=True)


@pytest.fixture(scope="module")
def python(request) -> Path:
    """The interpreter that has the old library."""
    place = Path(request.config.cache.mkdir("transformers-4.35.2"))
    try:
        return old_transformers.environment(place / "environment")
    except subprocess.CalledProcessError as problem:
        if "pip" not in problem.cmd:
            raise
        pytest.skip(f"transformers {old_transformers.VERSION} cannot be installed here")


@pytest.fixture(scope="module")
def made(python, tmp_path_factory) -> Path:
    """The folder with every reference."""
    out = tmp_path_factory.mktemp("references")
    old_transformers.references(python, [
        {"name": f"{name}-{start}", "seed": number, "config": {**SIZES, **settings}, "rows": 2,
         "segments": [4, 7, 1, 3], "start": start}
        for number, (name, settings) in enumerate(CASES.items()) for start in ("zeros", "empty")], out)
    return out


@pytest.fixture(params=[f"{name}-{start}" for name in CASES for start in ("zeros", "empty")])
def reference(request, made) -> Reference:
    folder = made / request.param
    case = next(case for case in json.loads((made / "cases.json").read_text()) if case["name"] == request.param)
    return Reference(folder, case, json.loads((folder / "model/config.json").read_text()),
                     load_file(folder / "answers.safetensors"))


def transcribed(reference: Reference) -> tuple[transformer_xl.Weights, adaptive_softmax.Weights]:
    """Their tensors under the names of the literal references: the stack's, and those of the words."""
    state = {name: value.double() for name, value in reference.state().items()}
    config = reference.config
    stack, words = {}, {}
    for layer in range(config["n_layer"]):
        attention, feedforward = f"transformer.layers.{layer}.dec_attn", f"transformer.layers.{layer}.pos_ff"
        query, key, value = state[f"{attention}.qkv_net.weight"].chunk(3)
        stack |= {f"{layer}.{name}": tensor for name, tensor in {
            "query": query, "key": key, "value": value, "relative": state[f"{attention}.r_net.weight"],
            "u": state[f"{attention}.r_w_bias"], "v": state[f"{attention}.r_r_bias"],
            "output": state[f"{attention}.o_net.weight"],
            "attention_norm": state[f"{attention}.layer_norm.weight"],
            "attention_norm_bias": state[f"{attention}.layer_norm.bias"],
            "inner": state[f"{feedforward}.CoreNet.0.weight"], "inner_bias": state[f"{feedforward}.CoreNet.0.bias"],
            "outer": state[f"{feedforward}.CoreNet.3.weight"], "outer_bias": state[f"{feedforward}.CoreNet.3.bias"],
            "feedforward_norm": state[f"{feedforward}.layer_norm.weight"],
            "feedforward_norm_bias": state[f"{feedforward}.layer_norm.bias"]}.items()}
    bounds = [0, *config["cutoffs"], config["vocab_size"]]
    single = config["div_val"] == 1  # then one table and one projection serve all clusters
    for cluster in range(len(bounds) - 1):
        number, rows = (0, slice(*bounds[cluster:cluster + 2])) if single else (cluster, slice(None))
        words[f"{cluster}.table"] = state[f"transformer.word_emb.emb_layers.{number}.weight"][rows]
        words[f"{cluster}.bias"] = state[f"crit.out_layers.{number}.bias"][rows]
        if f"transformer.word_emb.emb_projs.{number}" in state:
            words[f"{cluster}.projection"] = state[f"transformer.word_emb.emb_projs.{number}"]
            words[f"{cluster}.output_projection"] = state[f"crit.out_projs.{cluster}"]
    if config["cutoffs"]:
        words |= {"tail": state["crit.cluster_weight"], "tail_bias": state["crit.cluster_bias"]}
    return stack, words


def assert_near(ours: Tensor, theirs: Tensor, what: str, atol: float) -> None:
    assert theirs.std() > 1e-3, "the answers are all alike, so they prove nothing"
    difference = float((ours - theirs).abs().max())
    assert difference <= atol, f"{what} differs by {difference:.2e}"


@torch.no_grad()
def test_literal_transcription_agrees(reference):
    stack, words = transcribed(reference)
    config = reference.config
    width, cutoffs, memory_length = config["d_model"], config["cutoffs"], config["mem_len"]
    clamp = config["clamp_len"] if config["clamp_len"] > 0 else None
    for row in range(reference.case["rows"]):
        zeros = memory_length if reference.case["start"] == "zeros" else 0
        memory = transformer_xl.no_memory(config["n_layer"], width, zeros)
        for number, theirs in enumerate(segments_of(reference)):
            x = adaptive_softmax.embedded(theirs["ids"][row].tolist(), words, cutoffs, width)
            hidden, memory = transformer_xl.segment(x, memory, stack, config["n_head"], memory_length, clamp,
                                                    config["same_length"], config["layer_norm_epsilon"])
            scores = torch.stack([adaptive_softmax.log_probabilities(each, words, cutoffs) for each in hidden])
            assert_near(hidden, theirs["hidden"][row], f"hidden state of segment {number}", 1e-5)
            assert_near(scores, theirs["log_probabilities"][row], f"log-probability in segment {number}", 1e-5)
            if memory_length:
                assert_near(torch.stack(memory), theirs["memory"][:, row], f"memory after segment {number}", 1e-5)


def segments_of(reference: Reference) -> Iterator[dict[str, Tensor]]:
    for number in range(len(reference.case["segments"])):
        yield {name.removeprefix(f"{number}."): value for name, value in reference.answers.items()
               if name.startswith(f"{number}.")}


@torch.no_grad()
@pytest.mark.parametrize("layout", ["model", "model_bin"])
def test_ours_agrees_or_refuses(reference, layout):
    """The state carried from segment to segment. A library that starts from nothing is reached by our own setting."""
    name, _, start = reference.case["name"].rpartition("-")
    if name in REFUSED:
        with pytest.raises(UserError, match=REFUSED[name]):
            stemma.load(reference.folder / layout)
        return
    model = stemma.load(reference.folder / layout)
    assert model.load_warnings == []
    assert model.parameter_count() == json.loads((reference.folder / "told.json").read_text())["parameters"]
    network = model.network
    network.settings = network.settings.model_copy(
        update={"memory": network.settings.memory.model_copy(update={"start": start})})
    state = network.new_cache()
    for number, theirs in enumerate(segments_of(reference)):
        hidden = network({"encoder": Stream(theirs["ids"], Causal())}, state)["encoder"]
        assert_near(hidden, theirs["hidden"], f"hidden state of segment {number}", 1e-4)
        assert_near(network.head("vocabulary")(hidden), theirs["log_probabilities"], f"segment {number}", 1e-4)


@torch.no_grad()
@pytest.mark.parametrize("name", [name for name in CASES if name not in REFUSED])
def test_our_model_loads_in_transformers(made, tmp_path, name, python):
    """theirs -> ours -> theirs: the same tensors, and the same answers of the old library."""
    model = stemma.load(made / f"{name}-zeros/model")
    perturb(model.network, 5)
    stemma.save(model, tmp_path / "stemma")
    generator = torch.Generator().manual_seed(2)
    segments = [torch.randint(model.network.vocab_size, (2, length), generator=generator) for length in (3, 6, 2)]
    save_file({str(number): ids for number, ids in enumerate(segments)}, tmp_path / "ids.safetensors")
    told = old_transformers.read(python, tmp_path / "stemma", tmp_path / "ids.safetensors", tmp_path / "answers")
    assert told["missing_keys"] in ([], ["transformer.pos_emb.inv_freq"])  # which it computes, and need not be stored
    assert told["unexpected_keys"] == told["mismatched_keys"] == told["error_msgs"] == []
    assert told["parameters"] == model.parameter_count()
    answers, state = load_file(tmp_path / "answers.safetensors"), model.network.new_cache()
    for number, ids in enumerate(segments):
        hidden = model.network({"encoder": Stream(ids, Causal())}, state)["encoder"]
        assert_near(hidden, answers[f"{number}.hidden"], f"hidden state of segment {number}", 1e-4)
        assert_near(model.lm_head()(hidden), answers[f"{number}.log_probabilities"], f"segment {number}", 1e-4)


def test_published_size(made):
    """Their count, and the names and shapes of every tensor of ours at that size."""
    told = json.loads((made / "published.json").read_text())
    assert told["parameters"] == 285_205_322
    with torch.device("meta"):
        network = stemma.build("transformer-xl@large").network
    state = network.state_dict()
    keys = TRANSFORMER_XL.tensor_keys(network.heads, state, bare=False)
    ours = {name: list(tensor.shape) for name, tensor in to_hf(keys, state, network.settings.heads).items()}
    copies = {name for name, _ in TRANSFORMER_XL.tied_names(ours, bare=False)}
    assert ours == {name: shape for name, shape in told["tensors"].items()
                    if name not in copies and not name.endswith(TRANSFORMER_XL.ignored_buffers)}
