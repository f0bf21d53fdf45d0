"""Tiny random models of `transformers`, the reference of the parity tests, and comparisons with them.

Sizes are odd numbers without common factors, and noise is added to every weight: with a bias of 0 or a norm of 1, a
tensor that is loaded under the wrong name would go unnoticed.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch
import transformers
from tokenizers import models, pre_tokenizers, trainers
from torch import Tensor

import stemma
from stemma import Model
from stemma.network.inputs_outputs import Stream
from stemma.visibility import Causal

SEEDS = [0, 1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (2, 3))]  # of sizes and weights
MODERN = {"vocab_size": "vocabulary", "hidden_size": "even_width", "num_hidden_layers": "layers",
          "num_attention_heads": "heads", "intermediate_size": "inner", "max_position_embeddings": "positions"}
# config.json keys -> names of `random_sizes`; a new family adds a line.
SIZES = {
    "bert": {"vocab_size": "vocabulary", "hidden_size": "width", "num_hidden_layers": "layers",
             "num_attention_heads": "heads", "intermediate_size": "inner", "max_position_embeddings": "positions",
             "type_vocab_size": "segments"},
    "ernie": {"vocab_size": "vocabulary", "hidden_size": "width", "num_hidden_layers": "layers",
              "num_attention_heads": "heads", "intermediate_size": "inner", "max_position_embeddings": "positions",
              "type_vocab_size": "segments"},
    "roberta": {"vocab_size": "vocabulary", "hidden_size": "width", "num_hidden_layers": "layers",
                "num_attention_heads": "heads", "intermediate_size": "inner", "max_position_embeddings": "positions",
                "type_vocab_size": "segments"},
    "albert": {"vocab_size": "vocabulary", "embedding_size": "head_width", "hidden_size": "width",
               "num_hidden_layers": "layers", "num_attention_heads": "heads", "intermediate_size": "inner",
               "max_position_embeddings": "positions", "type_vocab_size": "segments"},
    "distilbert": {"vocab_size": "vocabulary", "dim": "width", "n_layers": "layers", "n_heads": "heads",
                   "hidden_dim": "inner", "max_position_embeddings": "positions"},
    "electra": {"vocab_size": "vocabulary", "embedding_size": "head_width", "hidden_size": "width",
                "num_hidden_layers": "layers", "num_attention_heads": "heads", "intermediate_size": "inner",
                "max_position_embeddings": "positions", "type_vocab_size": "segments"},
    "openai-gpt": {"vocab_size": "vocabulary", "n_embd": "width", "n_layer": "layers", "n_head": "heads",
                   "n_positions": "positions"},
    "gpt2": {"vocab_size": "vocabulary", "n_embd": "width", "n_layer": "layers", "n_head": "heads", "n_inner": "inner",
             "n_positions": "positions"},
    "xlnet": {"vocab_size": "vocabulary", "d_model": "even_width", "n_layer": "layers", "n_head": "heads",
              "d_inner": "inner"},
    "t5": {"vocab_size": "vocabulary", "d_model": "width", "num_layers": "layers", "num_decoder_layers": "more_layers",
           "num_heads": "heads", "d_kv": "head_width", "d_ff": "inner"},
    "bart": {"vocab_size": "vocabulary", "d_model": "width", "encoder_layers": "layers",
             "decoder_layers": "more_layers", "encoder_attention_heads": "heads", "decoder_attention_heads": "heads",
             "encoder_ffn_dim": "inner", "decoder_ffn_dim": "inner", "max_position_embeddings": "positions"},
    "modernbert": MODERN,
    "modernbert-decoder": MODERN,
    "nanochat": MODERN,
}
# A window that is smaller than the inputs here, and special token ids inside a small vocabulary.
SMALL = {"local_attention": 6, **dict.fromkeys(("pad_token_id", "cls_token_id", "sep_token_id", "bos_token_id",
                                                "eos_token_id"), 0)}
DEFAULT_SETTINGS: dict[str, dict[str, Any]] = {
    "modernbert": SMALL, "modernbert-decoder": SMALL,
    "nanochat": dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id"), 0)}


def random_sizes(seed: int) -> dict[str, int]:
    rng = random.Random(seed)
    heads, head_width = rng.choice([(1, 13), (3, 5), (5, 7), (7, 3)])
    return {"vocabulary": rng.choice([61, 83, 97]), "heads": heads, "width": heads * head_width,
            "layers": rng.randint(1, 3), "inner": rng.choice([17, 29, 51]), "positions": rng.choice([19, 23, 31]),
            "segments": rng.choice([2, 3]), "even_width": 2 * heads * head_width, "head_width": rng.choice([3, 5, 8]),
            "more_layers": rng.randint(1, 3)}


def perturb(module: torch.nn.Module, seed: int) -> None:
    """Add noise to every weight, biases and norms included."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.3)


def random_reference(model_type: str, seed: int, kind: str, arguments: dict[str, Any] | None = None,
                     **settings: Any) -> Any:
    """A random model of the class named `kind`; `settings` go to its configuration, `arguments` to its constructor."""
    sizes = random_sizes(seed)
    hf_sizes = {hf_key: sizes[size_name] for hf_key, size_name in SIZES[model_type].items()}
    torch.manual_seed(seed)
    config = transformers.AutoConfig.for_model(
        model_type, **{**hf_sizes, **DEFAULT_SETTINGS.get(model_type, {}), **settings})
    model = getattr(transformers, kind)(config, **(arguments or {})).eval()
    perturb(model, seed)
    return model


def random_inputs(vocabulary: int, max_length: int, segments: int, seed: int) -> list[dict[str, Tensor]]:
    """Batches: plain; with segments; padded on the right; on the left; on either side; of the maximum length."""
    generator = torch.Generator().manual_seed(seed)
    rows, length = 4, max_length - 6
    ids = torch.randint(vocabulary, (rows, length), generator=generator)
    types = {"token_type_ids": torch.randint(segments, (rows, length), generator=generator)} if segments else {}
    positions, lengths = torch.arange(length)[None], torch.randint(2, length, (rows, 1), generator=generator)
    right, left = (positions < lengths).long(), (positions >= length - lengths).long()
    return [{"input_ids": ids},
            {"input_ids": ids, **types},
            {"input_ids": ids, **types, "attention_mask": right},
            {"input_ids": ids, **types, "attention_mask": left},
            {"input_ids": ids, "attention_mask": torch.cat([right[:2], left[2:]])},
            {"input_ids": torch.randint(vocabulary, (rows, max_length), generator=generator)}]


def inputs_for(config: Any, seed: int) -> list[dict[str, Tensor]]:
    """`random_inputs` for this family: GPT has no segments; XLNet has any number of segments and positions."""
    max_length = getattr(config, "max_position_embeddings", 0)
    segments = 3 if config.model_type == "xlnet" else getattr(config, "type_vocab_size", 0)
    if config.model_type == "roberta":
        max_length -= config.pad_token_id + 1
    inputs = random_inputs(config.vocab_size, max_length if max_length > 0 else 21, segments, seed)
    if config.model_type == "roberta":
        inputs = [_with_padding_ids(batch, config.pad_token_id) for batch in inputs]
    if not config.is_encoder_decoder:
        return inputs
    generator = torch.Generator().manual_seed(seed + 1)
    return [{**batch, "decoder_input_ids": torch.randint(config.vocab_size, (4, length), generator=generator)}
            for batch, length in zip(inputs, (7, 1, 12, 5, 9, max_length if max_length > 0 else 40), strict=True)]


def _with_padding_ids(inputs: dict[str, Tensor], padding: int) -> dict[str, Tensor]:
    """Inputs with the padding token at masked positions and nowhere else: RoBERTa counts positions by it."""
    ids = torch.where(inputs["input_ids"] == padding, padding + 1, inputs["input_ids"])
    return {**inputs, "input_ids": ids.masked_fill(inputs.get("attention_mask", torch.ones_like(ids)) == 0, padding)}


@torch.no_grad()
def hf_outputs(reference: Any, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    """All outputs of a transformers model, under Stemma's names."""
    body = reference.base_model(**inputs)
    outputs = reference(**inputs, output_hidden_states=True)
    # T5's class with a head has no separate body
    hidden = outputs.decoder_hidden_states[-1] if reference.config.is_encoder_decoder else body.last_hidden_state
    by_name = {"hidden": hidden, "pooler": body.get("pooler_output"), "encoder": body.get("encoder_last_hidden_state"),
               "vocabulary": outputs.get("prediction_logits"), "next_sentence": outputs.get("seq_relationship_logits"),
               "sentence_order": outputs.get("sop_logits")}
    if (logits := outputs.get("logits")) is not None:
        is_discriminator = type(reference).__name__ == "ElectraForPreTraining"
        head = "vocabulary" if logits.dim() == 3 else "replaced_token" if is_discriminator else "next_sentence"
        by_name[head] = logits
    return {name: value for name, value in by_name.items() if value is not None}


@torch.no_grad()
def model_outputs(model: Model, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    hidden = model.hidden(**inputs)
    outputs = {"hidden": hidden}
    if model.is_encoder_decoder:
        source = model.encoder_stream(inputs["input_ids"], inputs.get("attention_mask"))
        outputs["encoder"] = model.network({"encoder": source})["encoder"]
    if "pooler" in model.network.heads:
        outputs["pooler"] = model.network.pool(hidden)
    for name in {"vocabulary", "replaced_token"} & model.network.heads.keys():
        outputs[name] = model.logits(**inputs)
    for name in ("next_sentence", "sentence_order"):
        if name in model.network.heads:
            outputs[name] = model.network.head(name)(outputs["pooler"])
    return outputs


def assert_same_outputs(model: Model, reference: Any, atol: float = 1e-4, seed: int = 0) -> None:
    """All outputs are equal at all positions that are not padding."""
    for index, inputs in enumerate(inputs_for(reference.config, seed)):
        outputs, expected_outputs = model_outputs(model, inputs), hf_outputs(reference, inputs)
        assert outputs.keys() == expected_outputs.keys()
        for name, expected in expected_outputs.items():
            assert expected.std() > 1e-3, "the outputs are constant, so the comparison shows nothing"
            errors = (outputs[name] - expected).abs() / expected.abs().clamp(min=1)
            per_position = expected.dim() == 3 or name == "replaced_token"
            if per_position and "attention_mask" in inputs and not model.is_encoder_decoder:
                errors = errors[inputs["attention_mask"].bool()]
            difference = float(errors.max())
            assert difference <= atol, f"{name} of input {index} differs by {difference:.2e}"


@torch.no_grad()
def assert_same_steps(model: Model, reference: Any, seed: int = 0, atol: float = 1e-4) -> None:
    """Decoding with a cache, in steps and with reordered beams, gives the logits of one pass of transformers."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(reference.config.vocab_size, (3, 9), generator=generator)
    attention_mask = (torch.arange(9) < torch.tensor([[9], [4], [7]])).long()
    target = torch.randint(reference.config.vocab_size, (3, 12), generator=generator)
    cache, batch_rows, start = model.network.new_cache(), torch.arange(3), 0
    streams = {"encoder": model.encoder_stream(ids, attention_mask)}
    for stop in (1, 2, 5, 6, 7, 12):
        if start == 5:  # one beam is continued three times, one ends, and the order changes
            beams = torch.tensor([2, 0, 2, 2])
            cache.reorder(beams)
            batch_rows = batch_rows[beams]
        streams["decoder"] = Stream(target[batch_rows, start:stop], Causal())
        logits = model.lm_head()(model.network(streams, cache)["decoder"])
        expected = reference(input_ids=ids[batch_rows], attention_mask=attention_mask[batch_rows],
                             decoder_input_ids=target[batch_rows, :stop])
        torch.testing.assert_close(logits, expected.logits[:, start:], atol=atol, rtol=0)
        streams, start = {}, stop
    assert start == 12 and len(batch_rows) == 4


def config_of(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "config.json").read_text())


def configure(folder: Path, **changes: Any) -> None:
    """Change a folder's config.json; `...` removes a key."""
    config = {**config_of(folder), **changes}
    (folder / "config.json").write_text(json.dumps({key: value for key, value in config.items() if value is not ...}))


def assert_loads_into(kind: str, folder: Path, **arguments: Any) -> Any:
    """from_pretrained uses every stored tensor and misses none."""
    loaded, loading_info = getattr(transformers, kind).from_pretrained(folder, output_loading_info=True, **arguments)
    for problem in ("missing_keys", "unexpected_keys", "mismatched_keys", "error_msgs"):
        assert not loading_info[problem], f"{problem}: {loading_info[problem]}"
    return loaded.eval()


def load_both_ways(reference: Any, folder: Path) -> tuple[Model, Any]:
    """transformers -> Stemma -> transformers."""
    reference.save_pretrained(folder / "hf")
    model = stemma.load(folder / "hf")
    stemma.save(model, folder / "stemma")
    poolerless = getattr(reference, "pooler", reference) is None
    arguments = {"add_pooling_layer": False} if poolerless else {}
    return model, assert_loads_into(type(reference).__name__, folder / "stemma", **arguments)


def assert_agrees_both_ways(reference: Any, folder: Path, seed: int = 0) -> Model:
    """No warnings, equal outputs and parameter counts, and the saved weights are the bytes that transformers wrote."""
    model, back = load_both_ways(reference, folder)
    assert model.load_warnings == []
    assert_same_outputs(model, reference, seed=seed)
    assert model.parameter_count() == reference.num_parameters()
    assert type(back).__name__ == json.loads((folder / "stemma/config.json").read_text())["architectures"][0]
    assert (folder / "stemma/model.safetensors").read_bytes() == (folder / "hf/model.safetensors").read_bytes()
    before, after = reference.state_dict(), back.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    return model


def write_bpe_files(folder: Path, text: Path) -> None:
    """vocab.json with the mask token last, and merges.txt, as published for RoBERTa and BART."""
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.train([str(text)], trainers.BpeTrainer(
        vocab_size=320, special_tokens=["<s>", "<pad>", "</s>", "<unk>"], show_progress=False,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet())))
    trained = json.loads(backend.to_str())["model"]
    (folder / "vocab.json").write_text(json.dumps({**trained["vocab"], "<mask>": len(trained["vocab"])}))
    (folder / "merges.txt").write_text("#version: 0.2\n" + "".join(f"{' '.join(pair)}\n" for pair in trained["merges"]))
