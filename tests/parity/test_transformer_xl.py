"""Transformer-XL agrees with its literal transcription, with memory over several segments, and has the 4.35 layout.

`test_transformer_xl_old.py` compares the transcription and the layout with transformers 4.35 itself.
"""

from __future__ import annotations

import json

import pytest
import torch
from closeness import assert_close
from literal import adaptive_softmax, transformer_xl
from parity.reference import perturb
from safetensors.torch import load_file, save_file
from torch import Tensor

import stemma
from stemma.errors import UserError
from stemma.network.inputs_outputs import Stream
from stemma.visibility import Causal

VOCABULARY, WIDTH, HEADS = 41, 12, 3
SMALL = {"layers": 2, "width": WIDTH, "heads": HEADS, "attention.head_width": 5, "feedforward": 17, "dropout": 0.0,
         "attention.dropout": 0.0, "inner_dropout": 0.0, "output_dropout": 0.0, "memory.length": 4,
         "memory.evaluation": 6, "embedding.cutoffs": [9, 20],
         "embedding.shrink": 2}
CASES = {
    "published": {},
    "empty start": {"memory.start": "empty"},
    "full memory": {"memory.same_length": False},
    "full memory, empty start": {"memory.same_length": False, "memory.start": "empty"},
    "clamped": {"position.clamp": 3},
    "one embedding size": {"embedding.shrink": 1},
    "one cluster": {"embedding.cutoffs": [VOCABULARY], "embedding.shrink": 1, "norm.epsilon": 0.01},
}
CASE = pytest.mark.parametrize("changes", CASES.values(), ids=CASES)


def small(changes: dict | None = None, seed: int = 0) -> stemma.Model:
    values = {f"network.{key}": value for key, value in {**SMALL, **(changes or {})}.items()}
    base = stemma.recipe("transformer-xl").with_changes(values, "test")
    model = stemma.build(base, VOCABULARY)
    perturb(model.network, seed)
    return model


def transcribed(model: stemma.Model) -> tuple[transformer_xl.Weights, adaptive_softmax.Weights]:
    """The tensors under the names of the literal references: of the stack, and of embedding and adaptive softmax."""
    state = {name: value.double() for name, value in model.network.state_dict().items()}
    stack, embedding = {}, {}
    for layer in range(model.network.settings.layers):
        block = f"encoder.blocks.{layer}."
        query, key, value = state[f"{block}attention.input.weight"].chunk(3)
        stack |= {f"{layer}.{name}": tensor for name, tensor in {
            "query": query, "key": key, "value": value, "output": state[f"{block}attention.output.weight"],
            "relative": state[f"{block}attention.relative.project.weight"],
            "u": state[f"{block}attention.relative.content_bias"],
            "v": state[f"{block}attention.relative.position_bias"],
            "inner": state[f"{block}feedforward.input.weight"], "inner_bias": state[f"{block}feedforward.input.bias"],
            "outer": state[f"{block}feedforward.output.weight"], "outer_bias": state[f"{block}feedforward.output.bias"],
            "attention_norm": state[f"{block}attention_norm.weight"],
            "attention_norm_bias": state[f"{block}attention_norm.bias"],
            "feedforward_norm": state[f"{block}feedforward_norm.weight"],
            "feedforward_norm_bias": state[f"{block}feedforward_norm.bias"]}.items()}
    names = {"embedding.tokens.tables.{}.weight": "{}.table", "embedding.tokens.projections.{}.weight": "{}.projection",
             "heads.vocabulary.biases.{}": "{}.bias"}
    for cluster in range(3):
        embedding |= {name.format(cluster): state[stemma_name.format(cluster)] for stemma_name, name in names.items()
                      if stemma_name.format(cluster) in state}
    head_names = {"heads.vocabulary.first.weight": "0.output_projection", "heads.vocabulary.parts.weight": "tail",
                  "heads.vocabulary.parts.bias": "tail_bias"}
    embedding |= {name: state[stemma_name] for stemma_name, name in head_names.items() if stemma_name in state}
    return stack, embedding


def assert_near(result: Tensor, expected: Tensor, what: str) -> None:
    assert expected.std() > 1e-3, "the expected values are constant, so the comparison shows nothing"
    difference = float((result.double() - expected).abs().max())
    assert difference <= 1e-4, f"{what} differs by {difference:.2e}"


@torch.no_grad()
@CASE
@pytest.mark.parametrize("training", [False, True], ids=["evaluation", "training"])
def test_several_segments_agree_with_the_transcription(changes, training):
    """The memory holds layer inputs in training, and keys and values in evaluation, with another length."""
    model = small(changes)
    network, settings = model.network.train(training), model.network.settings
    stack, embedding = transcribed(model)
    memory_length = settings.memory.length if training else settings.memory.eval_length
    cutoffs = [cutoff for cutoff in settings.embedding.cutoffs if cutoff < VOCABULARY]
    start = transformer_xl.no_memory(settings.layers, WIDTH, memory_length if settings.memory.start == "zeros" else 0)
    memories = [start, start]
    generator, state = torch.Generator().manual_seed(1), None
    for segment, length in enumerate((4, 7, 1, 3)):
        ids = torch.randint(VOCABULARY, (2, length), generator=generator)
        outputs = network({"encoder": Stream(ids, Causal())}, state)
        state = outputs.state
        scores = network.head("vocabulary")(outputs["encoder"])
        hidden_states = outputs["encoder"].flatten(0, 1)
        loss = network.head("vocabulary").loss(hidden_states, ids.flatten(), denominator=2.0 * length)
        expected = 0.0
        for row in range(2):
            x = adaptive_softmax.embedded(ids[row].tolist(), embedding, cutoffs, WIDTH)
            hidden, memories[row] = transformer_xl.segment(
                x, memories[row], stack, HEADS, memory_length, settings.position.clamp, settings.memory.same_length,
                settings.norm.epsilon)
            log_probabilities = torch.stack([adaptive_softmax.log_probabilities(state_vector, embedding, cutoffs)
                                             for state_vector in hidden])
            assert_near(outputs["encoder"][row], hidden, f"hidden state of segment {segment}")
            assert_near(scores[row].log_softmax(-1), log_probabilities, f"log-probability in segment {segment}")
            expected -= log_probabilities[range(length), ids[row]].sum() / (2 * length)
            if training:
                for memory, layer in zip(state.hidden_states, memories[row], strict=True):
                    assert_near(memory[row], layer, f"memory after segment {segment}")
        assert float(loss) == pytest.approx(float(expected), abs=1e-4)


# --- the layout -------------------------------------------------------------------------------------------------------

BLOCK = ["dec_attn.qkv_net.weight", "dec_attn.o_net.weight", "dec_attn.r_net.weight", "dec_attn.r_w_bias",
         "dec_attn.r_r_bias", "dec_attn.layer_norm.weight", "dec_attn.layer_norm.bias", "pos_ff.CoreNet.0.weight",
         "pos_ff.CoreNet.0.bias", "pos_ff.CoreNet.3.weight", "pos_ff.CoreNet.3.bias", "pos_ff.layer_norm.weight",
         "pos_ff.layer_norm.bias"]
BLOCKS = {f"transformer.layers.{layer}.{name}" for layer in range(2) for name in BLOCK}
CLUSTERED = {*(f"transformer.word_emb.emb_layers.{part}.weight" for part in range(3)),
             *(f"transformer.word_emb.emb_projs.{part}" for part in range(3)),
             *(f"crit.out_layers.{part}.bias" for part in range(3)),
             "crit.out_projs.0", "crit.cluster_weight", "crit.cluster_bias"}
ONE_WIDTH = {"transformer.word_emb.emb_layers.0.weight", "crit.out_layers.0.bias", "crit.cluster_weight",
             "crit.cluster_bias"}


def config_of(folder) -> dict:
    return json.loads((folder / "config.json").read_text())


def configure(folder, **changes) -> None:
    (folder / "checksums.json").unlink(missing_ok=True)
    (folder / "recipe.toml").unlink(missing_ok=True)
    (folder / "config.json").write_text(json.dumps({**config_of(folder), **changes}))


def old_layout(model: stemma.Model) -> dict[str, Tensor]:
    """The tensors of the released file, from those of the transcription: u is the bias of a key's content (r_w_bias), v
    that of its distance (r_r_bias)."""
    stack, embedding = transcribed(model)
    tensors = {}
    for layer in range(model.network.settings.layers):
        weights = {key.partition(".")[2]: value for key, value in stack.items() if key.startswith(f"{layer}.")}
        prefix = f"transformer.layers.{layer}."
        tensors |= {prefix + name: value for name, value in {
            "dec_attn.qkv_net.weight": torch.cat([weights["query"], weights["key"], weights["value"]]),
            "dec_attn.o_net.weight": weights["output"], "dec_attn.r_net.weight": weights["relative"],
            "dec_attn.r_w_bias": weights["u"], "dec_attn.r_r_bias": weights["v"],
            "dec_attn.layer_norm.weight": weights["attention_norm"],
            "dec_attn.layer_norm.bias": weights["attention_norm_bias"],
            "pos_ff.CoreNet.0.weight": weights["inner"], "pos_ff.CoreNet.0.bias": weights["inner_bias"],
            "pos_ff.CoreNet.3.weight": weights["outer"], "pos_ff.CoreNet.3.bias": weights["outer_bias"],
            "pos_ff.layer_norm.weight": weights["feedforward_norm"],
            "pos_ff.layer_norm.bias": weights["feedforward_norm_bias"]}.items()}
    for cluster in range(3):
        tensors |= {f"transformer.word_emb.emb_layers.{cluster}.weight": embedding[f"{cluster}.table"],
                    f"transformer.word_emb.emb_projs.{cluster}": embedding[f"{cluster}.projection"],
                    f"crit.out_layers.{cluster}.bias": embedding[f"{cluster}.bias"]}
    tensors |= {"crit.out_projs.0": embedding["0.output_projection"], "crit.cluster_weight": embedding["tail"],
                "crit.cluster_bias": embedding["tail_bias"]}
    return {name: value.float().contiguous() for name, value in tensors.items()}


def test_the_old_layout_is_loaded_and_saved_tensor_by_tensor(tmp_path):
    """A round trip does not notice two tensors of one shape that are swapped both in loading and in saving; a file that
    our table did not write does."""
    model = small()
    expected = old_layout(model)
    stemma.save(model, tmp_path / "m")
    written = load_file(tmp_path / "m/model.safetensors")
    assert written.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(written[name], tensor), name
    configure(tmp_path / "m")
    save_file(expected, tmp_path / "m/model.safetensors")
    again = stemma.load(tmp_path / "m").network.state_dict()
    for name, tensor in model.network.state_dict().items():
        assert torch.equal(again[name], tensor), name


@CASE
def test_saving_and_loading_keeps_the_outputs_and_the_bytes(tmp_path, changes):
    model = small(changes)
    stemma.save(model, tmp_path / "m")
    clustered, empty = "embedding.shrink" not in changes, changes.get("memory.start") == "empty"
    assert config_of(tmp_path / "m")["model_type"] == ("stemma" if empty else "transfo-xl")
    if not empty:
        names = set(load_file(tmp_path / "m/model.safetensors"))
        expected = BLOCKS | (CLUSTERED if clustered else ONE_WIDTH)
        if "embedding.cutoffs" in changes:
            expected -= {"crit.cluster_weight", "crit.cluster_bias"}
        assert names == expected
        configure(tmp_path / "m")  # without the recipe, as another tool may copy it
    again = stemma.load(tmp_path / "m")
    assert again.load_warnings == []
    assert again.parameter_count() == model.parameter_count()
    ids = torch.randint(VOCABULARY, (2, 9), generator=torch.Generator().manual_seed(3))
    assert_close(again.logits(ids), model.logits(ids))
    stemma.save(again, tmp_path / "again")
    assert (tmp_path / "again/model.safetensors").read_bytes() == (tmp_path / "m/model.safetensors").read_bytes()


def test_config_has_the_keys_of_the_old_release(tmp_path):
    stemma.save(small(), tmp_path / "m")
    config = config_of(tmp_path / "m")
    assert config["architectures"] == ["TransfoXLLMHeadModel"]
    expected = {"d_model": WIDTH, "d_embed": WIDTH, "d_head": 5, "n_head": HEADS, "d_inner": 17, "n_layer": 2,
                "vocab_size": VOCABULARY, "cutoffs": [9, 20], "div_val": 2, "mem_len": 6, "clamp_len": 1000,
                "same_length": True, "tie_projs": [False, True, True], "untie_r": True, "pre_lnorm": False,
                "attn_type": 0, "adaptive": True, "dropout": 0.0, "dropatt": 0.0}
    assert {key: config[key] for key in expected} == expected


def test_a_small_vocabulary_has_fewer_cutoffs(tmp_path):
    model = small({"embedding.cutoffs": [30, 20_000, 40_000]})
    stemma.save(model, tmp_path / "m")
    assert config_of(tmp_path / "m")["cutoffs"] == [30]
    configure(tmp_path / "m")
    ids = torch.tensor([[0, 29, 30, 40]])
    assert_close(stemma.load(tmp_path / "m").logits(ids), model.logits(ids))


def test_stored_tied_tensors_must_be_equal(tmp_path):
    """The released file stores tied tensors twice, and the frequencies of the sinusoids."""
    model = small()
    stemma.save(model, tmp_path / "m")
    weights = load_file(tmp_path / "m/model.safetensors")
    copies = {f"crit.out_layers.{cluster}.weight": weights[f"transformer.word_emb.emb_layers.{cluster}.weight"].clone()
              for cluster in range(3)}
    copies |= {f"crit.out_projs.{cluster}": weights[f"transformer.word_emb.emb_projs.{cluster}"].clone()
               for cluster in (1, 2)}
    copies["transformer.pos_emb.inv_freq"] = torch.ones(WIDTH // 2)
    configure(tmp_path / "m")
    save_file(weights | copies, tmp_path / "m/model.safetensors")
    again = stemma.load(tmp_path / "m")
    assert again.load_warnings == []
    assert_close(again.logits(torch.tensor([[1, 25]])), model.logits(torch.tensor([[1, 25]])))
    copies["crit.out_projs.2"] += 0.1
    save_file(weights | copies, tmp_path / "m/model.safetensors")
    with pytest.raises(UserError, match=r"crit.out_projs.2 untied from transformer.word_emb.emb_projs.2"):
        stemma.load(tmp_path / "m")


def test_a_checkpoint_without_head_loads_and_is_saved_as_one(tmp_path):
    model = small()
    stemma.save(model, tmp_path / "m")
    stored, prefix = load_file(tmp_path / "m/model.safetensors"), "transformer."
    weights = {name.removeprefix(prefix): tensor for name, tensor in stored.items() if name.startswith(prefix)}
    configure(tmp_path / "m", architectures=["TransfoXLModel"])
    save_file(weights, tmp_path / "m/model.safetensors")
    body = stemma.load(tmp_path / "m")
    assert not body.network.heads and body.load_warnings == []
    ids = torch.tensor([[5, 10, 30]])
    assert_close(body.hidden(ids), model.hidden(ids))
    stemma.save(body, tmp_path / "again")
    assert config_of(tmp_path / "again")["architectures"] == ["TransfoXLModel"]
    assert load_file(tmp_path / "again/model.safetensors").keys() == weights.keys()


@pytest.mark.parametrize(("changes", "message"), [
    ({"untie_r": False, "pre_lnorm": True, "attn_type": 2}, "3"), ({"d_embed": 16}, "d_embed = 16 +only 12 is"),
    ({"tie_projs": [True, True, True]}, "tie_projs = .*only .False, True, True. is supported"),
    ({"mem_len": 0}, "network.memory.eval_length = 0"), ({"tie_weight": False}, "tie_weight = False"),
    ({"tie_word_embeddings": False}, "untied")])
def test_unsupported_settings_are_refused(tmp_path, changes, message):
    stemma.save(small(), tmp_path / "m")
    configure(tmp_path / "m", **changes)
    with pytest.raises(UserError) as error:
        stemma.load(tmp_path / "m")
    if message.isdigit():
        assert len(error.value.problems) == int(message)
    else:
        error.match(message)


@pytest.mark.parametrize("changes", [{"activation": "gelu"}, {"norm.place": "pre"}, {"embedding.scale": False},
                                     {"attention.windows": [0, 3]}, {"attention.bias": True},
                                     {"embedding.cutoffs": []}], ids=str)
def test_a_network_that_is_not_transformer_xl_is_saved_as_type_stemma(tmp_path, changes):
    model = small(changes)
    stemma.save(model, tmp_path / "m")
    assert config_of(tmp_path / "m")["model_type"] == "stemma"
    ids = torch.tensor([[5, 10, 30]])
    assert_close(stemma.load(tmp_path / "m").logits(ids), model.logits(ids))
