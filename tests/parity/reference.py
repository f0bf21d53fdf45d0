"""The other implementation: tiny random models of `transformers`, and how ours is compared with them.

Sizes are odd numbers that share no factor by accident, and every weight is moved away from its start (a bias of 0 or a
norm of 1 would hide a key that went to the wrong place).
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
from stemma.api import InferenceModel
from stemma.network.inputs_outputs import Stream
from stemma.visibility import Causal

SEEDS = [0, 1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (2, 3))]  # of sizes and weights
MODERN = {"vocab_size": "vocabulary", "hidden_size": "even_width", "num_hidden_layers": "layers",
          "num_attention_heads": "heads", "intermediate_size": "inner", "max_position_embeddings": "places"}
# What each family calls its sizes; a new family adds a line.
SIZES = {
    "bert": {"vocab_size": "vocabulary", "hidden_size": "width", "num_hidden_layers": "layers",
             "num_attention_heads": "heads", "intermediate_size": "inner", "max_position_embeddings": "places",
             "type_vocab_size": "segments"},
    "ernie": {"vocab_size": "vocabulary", "hidden_size": "width", "num_hidden_layers": "layers",
              "num_attention_heads": "heads", "intermediate_size": "inner", "max_position_embeddings": "places",
              "type_vocab_size": "segments"},
    "roberta": {"vocab_size": "vocabulary", "hidden_size": "width", "num_hidden_layers": "layers",
                "num_attention_heads": "heads", "intermediate_size": "inner", "max_position_embeddings": "places",
                "type_vocab_size": "segments"},
    "albert": {"vocab_size": "vocabulary", "embedding_size": "head_width", "hidden_size": "width",
               "num_hidden_layers": "layers", "num_attention_heads": "heads", "intermediate_size": "inner",
               "max_position_embeddings": "places", "type_vocab_size": "segments"},
    "distilbert": {"vocab_size": "vocabulary", "dim": "width", "n_layers": "layers", "n_heads": "heads",
                   "hidden_dim": "inner", "max_position_embeddings": "places"},
    "electra": {"vocab_size": "vocabulary", "embedding_size": "head_width", "hidden_size": "width",
                "num_hidden_layers": "layers", "num_attention_heads": "heads", "intermediate_size": "inner",
                "max_position_embeddings": "places", "type_vocab_size": "segments"},
    "openai-gpt": {"vocab_size": "vocabulary", "n_embd": "width", "n_layer": "layers", "n_head": "heads",
                   "n_positions": "places"},
    "gpt2": {"vocab_size": "vocabulary", "n_embd": "width", "n_layer": "layers", "n_head": "heads", "n_inner": "inner",
             "n_positions": "places"},
    "xlnet": {"vocab_size": "vocabulary", "d_model": "even_width", "n_layer": "layers", "n_head": "heads",
              "d_inner": "inner"},
    "t5": {"vocab_size": "vocabulary", "d_model": "width", "num_layers": "layers", "num_decoder_layers": "more_layers",
           "num_heads": "heads", "d_kv": "head_width", "d_ff": "inner"},
    "bart": {"vocab_size": "vocabulary", "d_model": "width", "encoder_layers": "layers",
             "decoder_layers": "more_layers", "encoder_attention_heads": "heads", "decoder_attention_heads": "heads",
             "encoder_ffn_dim": "inner", "decoder_ffn_dim": "inner", "max_position_embeddings": "places"},
    "modernbert": MODERN,
    "modernbert-decoder": MODERN,
}
# A window that is smaller than the texts here, and special tokens of a small vocabulary.
SMALL = {"local_attention": 6, **dict.fromkeys(("pad_token_id", "cls_token_id", "sep_token_id", "bos_token_id",
                                                "eos_token_id"), 0)}
USUAL: dict[str, dict[str, Any]] = {"modernbert": SMALL, "modernbert-decoder": SMALL}


def random_sizes(seed: int) -> dict[str, int]:
    rng = random.Random(seed)
    heads, head_width = rng.choice([(1, 13), (3, 5), (5, 7), (7, 3)])
    return {"vocabulary": rng.choice([61, 83, 97]), "heads": heads, "width": heads * head_width,
            "layers": rng.randint(1, 3), "inner": rng.choice([17, 29, 51]), "places": rng.choice([19, 23, 31]),
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
    chosen = {theirs: sizes[ours] for theirs, ours in SIZES[model_type].items()}
    torch.manual_seed(seed)
    config = transformers.AutoConfig.for_model(model_type, **{**chosen, **USUAL.get(model_type, {}), **settings})
    made = getattr(transformers, kind)(config, **(arguments or {})).eval()
    perturb(made, seed)
    return made


def random_inputs(vocabulary: int, places: int, segments: int, seed: int) -> list[dict[str, Tensor]]:
    """Plain; two segments; filled up on the right; on the left; both sides at once; and the longest that fits."""
    generator = torch.Generator().manual_seed(seed)
    rows, length = 4, places - 6
    ids = torch.randint(vocabulary, (rows, length), generator=generator)
    types = {"token_type_ids": torch.randint(segments, (rows, length), generator=generator)} if segments else {}
    place, real = torch.arange(length)[None], torch.randint(2, length, (rows, 1), generator=generator)
    right, left = (place < real).long(), (place >= length - real).long()
    return [{"input_ids": ids},
            {"input_ids": ids, **types},
            {"input_ids": ids, **types, "attention_mask": right},
            {"input_ids": ids, **types, "attention_mask": left},
            {"input_ids": ids, "attention_mask": torch.cat([right[:2], left[2:]])},
            {"input_ids": torch.randint(vocabulary, (rows, places), generator=generator)}]


def inputs_for(config: Any, seed: int) -> list[dict[str, Tensor]]:
    """As much of it as the family knows: GPT has no segments, XLNet any number of them and of places."""
    places = getattr(config, "max_position_embeddings", 0)
    segments = 3 if config.model_type == "xlnet" else getattr(config, "type_vocab_size", 0)
    if config.model_type == "roberta":
        places -= config.pad_token_id + 1
    inputs = random_inputs(config.vocab_size, places if places > 0 else 21, segments, seed)
    if config.model_type == "roberta":
        inputs = [_filled(each, config.pad_token_id) for each in inputs]
    if not config.is_encoder_decoder:
        return inputs
    generator = torch.Generator().manual_seed(seed + 1)
    return [{**each, "decoder_input_ids": torch.randint(config.vocab_size, (4, length), generator=generator)}
            for each, length in zip(inputs, (7, 1, 12, 5, 9, places if places > 0 else 40), strict=True)]


def _filled(inputs: dict[str, Tensor], padding: int) -> dict[str, Tensor]:
    """The padding token where there is filling, and nowhere else: RoBERTa's places are counted by it."""
    ids = torch.where(inputs["input_ids"] == padding, padding + 1, inputs["input_ids"])
    return {**inputs, "input_ids": ids.masked_fill(inputs.get("attention_mask", torch.ones_like(ids)) == 0, padding)}


@torch.no_grad()
def their_outputs(reference: Any, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    """Everything a model of theirs answers, under our names."""
    body = reference.base_model(**inputs)
    answers = reference(**inputs, output_hidden_states=True)
    # T5's class with a head has no body of its own
    last = answers.decoder_hidden_states[-1] if reference.config.is_encoder_decoder else body.last_hidden_state
    named = {"hidden": last, "pooler": body.get("pooler_output"), "encoder": body.get("encoder_last_hidden_state"),
             "vocabulary": answers.get("prediction_logits"), "next_sentence": answers.get("seq_relationship_logits"),
             "sentence_order": answers.get("sop_logits")}
    if (logits := answers.get("logits")) is not None:
        judges = type(reference).__name__ == "ElectraForPreTraining"
        named["vocabulary" if logits.dim() == 3 else "replaced_token" if judges else "next_sentence"] = logits
    return {name: value for name, value in named.items() if value is not None}


@torch.no_grad()
def our_outputs(model: InferenceModel, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    hidden = model.hidden(**inputs)
    made = {"hidden": hidden}
    if model.is_encoder_decoder:
        source = model.encoder_stream(inputs["input_ids"], inputs.get("attention_mask"))
        made["encoder"] = model.network({"encoder": source})["encoder"]
    if "pooler" in model.network.heads:
        made["pooler"] = model.network.pool(hidden)
    for name in {"vocabulary", "replaced_token"} & model.network.heads.keys():
        made[name] = model.logits(**inputs)
    for name in ("next_sentence", "sentence_order"):
        if name in model.network.heads:
            made[name] = model.network.head(name)(made["pooler"])
    return made


def assert_same_outputs(model: InferenceModel, reference: Any, atol: float = 1e-4, seed: int = 0) -> None:
    """Equal in everything either of them answers, wherever a token stands."""
    for number, inputs in enumerate(inputs_for(reference.config, seed)):
        ours, theirs = our_outputs(model, inputs), their_outputs(reference, inputs)
        assert ours.keys() == theirs.keys()
        for name, expected in theirs.items():
            assert expected.std() > 1e-3, "the answers are all alike, so they prove nothing"
            apart = (ours[name] - expected).abs() / expected.abs().clamp(min=1)
            each_place = expected.dim() == 3 or name == "replaced_token"
            if each_place and "attention_mask" in inputs and not model.is_encoder_decoder:
                apart = apart[inputs["attention_mask"].bool()]
            difference = float(apart.max())
            assert difference <= atol, f"{name} of input {number} differs by {difference:.2e}"


@torch.no_grad()
def assert_same_steps(model: InferenceModel, reference: Any, seed: int = 0, atol: float = 1e-4) -> None:
    """Our decoder, given its text bit by bit and once with rows chosen anew, against theirs that reads it at once."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(reference.config.vocab_size, (3, 9), generator=generator)
    real = (torch.arange(9) < torch.tensor([[9], [4], [7]])).long()
    target = torch.randint(reference.config.vocab_size, (3, 12), generator=generator)
    cache, chosen, start = model.network.new_cache(), torch.arange(3), 0
    streams = {"encoder": model.encoder_stream(ids, real)}
    for stop in (1, 2, 5, 6, 7, 12):
        if start == 5:  # a beam that lives on twice, another that ends, and all in another order
            rows = torch.tensor([2, 0, 2, 2])
            cache.reorder(rows)
            chosen = chosen[rows]
        streams["decoder"] = Stream(target[chosen, start:stop], Causal())
        ours = model.lm_head()(model.network(streams, cache)["decoder"])
        theirs = reference(input_ids=ids[chosen], attention_mask=real[chosen], decoder_input_ids=target[chosen, :stop])
        torch.testing.assert_close(ours, theirs.logits[:, start:], atol=atol, rtol=0)
        streams, start = {}, stop
    assert start == 12 and len(chosen) == 4


def config_of(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "config.json").read_text())


def configure(folder: Path, **changes: Any) -> None:
    """Change a folder's config.json; `...` takes a key away."""
    config = {**config_of(folder), **changes}
    (folder / "config.json").write_text(json.dumps({key: value for key, value in config.items() if value is not ...}))


def assert_loads_into(kind: str, folder: Path, **arguments: Any) -> Any:
    """from_pretrained takes every tensor of ours and lacks none."""
    loaded, told = getattr(transformers, kind).from_pretrained(folder, output_loading_info=True, **arguments)
    for problem in ("missing_keys", "unexpected_keys", "mismatched_keys", "error_msgs"):
        assert not told[problem], f"{problem}: {told[problem]}"
    return loaded.eval()


def load_both_ways(reference: Any, folder: Path) -> tuple[InferenceModel, Any]:
    """theirs -> ours, and ours -> theirs again."""
    reference.save_pretrained(folder / "theirs")
    model = stemma.load(folder / "theirs")
    stemma.save(model, folder / "ours")
    poolerless = getattr(reference, "pooler", reference) is None
    arguments = {"add_pooling_layer": False} if poolerless else {}
    return model, assert_loads_into(type(reference).__name__, folder / "ours", **arguments)


def assert_agrees_both_ways(reference: Any, folder: Path, seed: int = 0) -> InferenceModel:
    """Nothing is left over, the answers and the counts are equal, and what we write is what they wrote."""
    model, back = load_both_ways(reference, folder)
    assert model.load_warnings == []
    assert_same_outputs(model, reference, seed=seed)
    assert model.parameter_count() == reference.num_parameters()
    assert type(back).__name__ == json.loads((folder / "ours/config.json").read_text())["architectures"][0]
    assert (folder / "ours/model.safetensors").read_bytes() == (folder / "theirs/model.safetensors").read_bytes()
    before, after = reference.state_dict(), back.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    return model


def write_byte_pairs(folder: Path, text: Path) -> None:
    """A byte-level vocabulary with the mask at its end, and its merges, as RoBERTa and BART were published."""
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.train([str(text)], trainers.BpeTrainer(
        vocab_size=320, special_tokens=["<s>", "<pad>", "</s>", "<unk>"], show_progress=False,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet())))
    learnt = json.loads(backend.to_str())["model"]
    (folder / "vocab.json").write_text(json.dumps({**learnt["vocab"], "<mask>": len(learnt["vocab"])}))
    (folder / "merges.txt").write_text("#version: 0.2\n" + "".join(f"{' '.join(pair)}\n" for pair in learnt["merges"]))
