"""Transformer-XL agrees with transformers 4.35.2, which runs in its own environment."""

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
    # As published, but tiny: embedding sizes shrink, and all projections but the first cluster's are tied.
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
# case -> the key that the error names
REFUSED = {"wide_embedding": "d_embed", "character": "untie_r", "one_narrow_width": "d_embed",
           "all_shared": "tie_projs", "no_memory": "network.memory.eval_length"}


@dataclass
class Reference:
    """A model of transformers 4.35.2 and its outputs."""
    folder: Path  # with model/ and model_bin/
    case: dict[str, Any]
    config: dict[str, Any]
    outputs: dict[str, Tensor]

    def state(self) -> dict[str, Tensor]:
        return torch.load(self.folder / "model_bin/pytorch_model.bin", weights_only=True)


@pytest.fixture(scope="module")
def python(request) -> Path:
    """The Python interpreter with the old transformers."""
    folder = Path(request.config.cache.mkdir("transformers-4.35.2"))
    try:
        return old_transformers.environment(folder / "environment")
    except subprocess.CalledProcessError as problem:
        if "pip" not in problem.cmd:
            raise
        pytest.skip(f"transformers {old_transformers.VERSION} cannot be installed here")


@pytest.fixture(scope="module")
def references_folder(python, tmp_path_factory) -> Path:
    """The folder with all references."""
    out = tmp_path_factory.mktemp("references")
    old_transformers.references(python, [
        {"name": f"{name}-{start}", "seed": seed, "config": {**SIZES, **settings}, "rows": 2,
         "segments": [4, 7, 1, 3], "start": start}
        for seed, (name, settings) in enumerate(CASES.items()) for start in ("zeros", "empty")], out)
    return out


@pytest.fixture(params=[f"{name}-{start}" for name in CASES for start in ("zeros", "empty")])
def reference(request, references_folder) -> Reference:
    folder = references_folder / request.param
    cases = json.loads((references_folder / "cases.json").read_text())
    case = next(case for case in cases if case["name"] == request.param)
    return Reference(folder, case, json.loads((folder / "model/config.json").read_text()),
                     load_file(folder / "outputs.safetensors"))


def transcribed(reference: Reference) -> tuple[transformer_xl.Weights, adaptive_softmax.Weights]:
    """The tensors under the names of the literal references: of the stack, and of embedding and adaptive softmax."""
    state = {name: value.double() for name, value in reference.state().items()}
    config = reference.config
    stack, embedding = {}, {}
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
    single = config["div_val"] == 1  # all clusters share one matrix and one projection
    for cluster in range(len(bounds) - 1):
        stored_index, rows = (0, slice(*bounds[cluster:cluster + 2])) if single else (cluster, slice(None))
        embedding[f"{cluster}.table"] = state[f"transformer.word_emb.emb_layers.{stored_index}.weight"][rows]
        embedding[f"{cluster}.bias"] = state[f"crit.out_layers.{stored_index}.bias"][rows]
        if f"transformer.word_emb.emb_projs.{stored_index}" in state:
            embedding[f"{cluster}.projection"] = state[f"transformer.word_emb.emb_projs.{stored_index}"]
            embedding[f"{cluster}.output_projection"] = state[f"crit.out_projs.{cluster}"]
    if config["cutoffs"]:
        embedding |= {"tail": state["crit.cluster_weight"], "tail_bias": state["crit.cluster_bias"]}
    return stack, embedding


def assert_near(result: Tensor, expected: Tensor, what: str, atol: float) -> None:
    assert expected.std() > 1e-3, "the expected values are constant, so the comparison shows nothing"
    difference = float((result - expected).abs().max())
    assert difference <= atol, f"{what} differs by {difference:.2e}"


@torch.no_grad()
def test_literal_transcription_agrees(reference):
    stack, embedding = transcribed(reference)
    config = reference.config
    width, cutoffs, memory_length = config["d_model"], config["cutoffs"], config["mem_len"]
    clamp = config["clamp_len"] if config["clamp_len"] > 0 else None
    for row in range(reference.case["rows"]):
        zeros = memory_length if reference.case["start"] == "zeros" else 0
        memory = transformer_xl.no_memory(config["n_layer"], width, zeros)
        for index, expected in enumerate(segments_of(reference)):
            x = adaptive_softmax.embedded(expected["ids"][row].tolist(), embedding, cutoffs, width)
            hidden, memory = transformer_xl.segment(x, memory, stack, config["n_head"], memory_length, clamp,
                                                    config["same_length"], config["layer_norm_epsilon"])
            scores = torch.stack([adaptive_softmax.log_probabilities(state_vector, embedding, cutoffs)
                                  for state_vector in hidden])
            assert_near(hidden, expected["hidden"][row], f"hidden state of segment {index}", 1e-5)
            assert_near(scores, expected["log_probabilities"][row], f"log-probability in segment {index}", 1e-5)
            if memory_length:
                assert_near(torch.stack(memory), expected["memory"][:, row], f"memory after segment {index}", 1e-5)


def segments_of(reference: Reference) -> Iterator[dict[str, Tensor]]:
    for index in range(len(reference.case["segments"])):
        yield {name.removeprefix(f"{index}."): value for name, value in reference.outputs.items()
               if name.startswith(f"{index}.")}


@torch.no_grad()
@pytest.mark.parametrize("layout", ["model", "model_bin"])
def test_the_loaded_model_agrees_or_is_refused(reference, layout):
    """With memory over several segments. An empty start is a setting of Stemma: network.memory.start."""
    name, _, start = reference.case["name"].rpartition("-")
    if name in REFUSED:
        with pytest.raises(UserError, match=REFUSED[name]):
            stemma.load(reference.folder / layout)
        return
    model = stemma.load(reference.folder / layout)
    assert model.load_warnings == []
    assert model.parameter_count() == json.loads((reference.folder / "info.json").read_text())["parameters"]
    network = model.network
    network.settings = network.settings.model_copy(
        update={"memory": network.settings.memory.model_copy(update={"start": start})})
    state = network.new_cache()
    for index, expected in enumerate(segments_of(reference)):
        hidden = network({"encoder": Stream(expected["ids"], Causal())}, state)["encoder"]
        assert_near(hidden, expected["hidden"], f"hidden state of segment {index}", 1e-4)
        assert_near(network.head("vocabulary")(hidden), expected["log_probabilities"], f"segment {index}", 1e-4)


@torch.no_grad()
@pytest.mark.parametrize("name", [name for name in CASES if name not in REFUSED])
def test_a_saved_model_loads_in_transformers_with_the_same_outputs(references_folder, tmp_path, name, python):
    """transformers -> Stemma -> transformers: the same tensors and the same outputs."""
    model = stemma.load(references_folder / f"{name}-zeros/model")
    perturb(model.network, 5)
    stemma.save(model, tmp_path / "stemma")
    generator = torch.Generator().manual_seed(2)
    segments = [torch.randint(model.network.vocab_size, (2, length), generator=generator) for length in (3, 6, 2)]
    save_file({str(index): ids for index, ids in enumerate(segments)}, tmp_path / "ids.safetensors")
    loading_info = old_transformers.read(python, tmp_path / "stemma", tmp_path / "ids.safetensors",
                                         tmp_path / "outputs")
    assert loading_info["missing_keys"] in ([], ["transformer.pos_emb.inv_freq"])  # it is computed
    assert loading_info["unexpected_keys"] == loading_info["mismatched_keys"] == loading_info["error_msgs"] == []
    assert loading_info["parameters"] == model.parameter_count()
    outputs, state = load_file(tmp_path / "outputs.safetensors"), model.network.new_cache()
    for index, ids in enumerate(segments):
        hidden = model.network({"encoder": Stream(ids, Causal())}, state)["encoder"]
        assert_near(hidden, outputs[f"{index}.hidden"], f"hidden state of segment {index}", 1e-4)
        assert_near(model.lm_head()(hidden), outputs[f"{index}.log_probabilities"], f"segment {index}", 1e-4)


def test_the_published_size_has_the_published_tensors(references_folder):
    """The parameter count of transformers, and the names and shapes of all saved tensors at that size."""
    published = json.loads((references_folder / "published.json").read_text())
    assert published["parameters"] == 285_205_322
    with torch.device("meta"):
        network = stemma.build("transformer-xl@large").network
    state = network.state_dict()
    keys = TRANSFORMER_XL.tensor_keys(network.heads, state, bare=False)
    shapes = {name: list(tensor.shape) for name, tensor in to_hf(keys, state, network.settings.heads).items()}
    copies = {name for name, _ in TRANSFORMER_XL.tied_names(shapes, bare=False)}
    assert shapes == {name: shape for name, shape in published["tensors"].items()
                      if name not in copies and not name.endswith(TRANSFORMER_XL.ignored_buffers)}
