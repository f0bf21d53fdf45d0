"""Start an encoder-decoder from two language models (arXiv:1611.02683): the encoder from one of the source language,
the decoder from one of the target language."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from stemma.corpus.corpus import Corpus
from stemma.corpus.seq2seq_rows import DECODER, ENCODER
from stemma.errors import UserError
from stemma.exchange.load import open_model, resolve_model_folder
from stemma.model import Model
from stemma.network.heads import LMHead
from stemma.network.network import Network
from stemma.objectives import build_network
from stemma.objectives.base import LM_HEAD
from stemma.objectives.monolingual_lm import SOURCE_HEAD
from stemma.recipe_loading import Recipe
from stemma.schema.overrides import flatten

logger = logging.getLogger(__name__)

BODY = "lstm"  # the kind of body of both language models
DECODER_BODY = "attentional_lstm"


def init_from_language_models(paths: Mapping[str, str], recipe: Recipe, corpus: Corpus) -> tuple[Recipe, Network]:
    """A network with the weights of language models in its parts; `paths`: by part. Their sizes replace those of the
    recipe."""
    models = {part: _open(path, part, recipe, corpus) for part, path in paths.items()}
    recipe = adopt_sizes(recipe, models, paths)
    network = build_network(recipe, tokenizer=corpus.tokenizer)
    weights: dict[str, Tensor] = {}
    for part, model in models.items():
        weights |= source_weights(model) if part == ENCODER else target_weights(model)
    expected = network.state_dict()
    weights = {name: tensor for name, tensor in weights.items() if name in expected}
    problems = [(name, f"the language model has {tuple(tensor.shape)} and {recipe.label} {tuple(expected[name].shape)}")
                for name, tensor in weights.items() if tensor.shape != expected[name].shape]
    if problems:
        raise UserError(f"the weights of {' and '.join(paths.values())} do not fit into {recipe.label}", problems)
    network.load_state_dict(weights, strict=False)
    new = sorted({name.rpartition(".")[0] for name, _ in network.named_parameters() if name not in weights})
    logger.info(f"started at random: {', '.join(new)}")
    return recipe, network


def source_weights(model: Model) -> dict[str, Tensor]:
    """The weights of a language model under their names in an encoder."""
    state = model.network.state_dict()
    body = {name: tensor for name, tensor in state.items() if name.startswith(("embedding.", "encoder."))}
    return body | _output_weights(model, SOURCE_HEAD)


def target_weights(model: Model) -> dict[str, Tensor]:
    """The weights of a language model under their names in a decoder."""
    weights = {}
    for name, tensor in model.network.state_dict().items():
        if name.startswith("embedding."):
            weights[f"{DECODER}_{name}"] = tensor
        elif name.startswith("encoder.layers."):
            weights[name.replace("encoder.", "decoder.", 1).replace(".directions.0.", ".", 1)] = tensor
    return weights | _output_weights(model, LM_HEAD)


def _output_weights(model: Model, head: str) -> dict[str, Tensor]:
    """The output layer of a language model, with the embedding as its matrix if they are tied."""
    lm_head = model.lm_head()
    assert isinstance(lm_head, LMHead)
    bias = {} if lm_head.bias is None else {f"heads.{head}.bias": lm_head.bias.detach()}
    return {f"heads.{head}.output.weight": lm_head.weight.detach(), **bias}


def adopt_sizes(recipe: Recipe, models: Mapping[str, Model], paths: Mapping[str, str]) -> Recipe:
    """The recipe with the sizes of the language models, which must agree with each other and with what the user
    stated."""
    sizes = {part: _sizes(model) for part, model in models.items()}
    parts = list(sizes)
    if len(parts) == 2 and sizes[parts[0]] != sizes[parts[1]]:
        pairs = zip(sizes[parts[0]].items(), sizes[parts[1]].values(), strict=True)
        raise UserError("the two language models have different sizes; train both with the same",
                        [(key, f"{first} in {paths[parts[0]]}, {second} in {paths[parts[1]]}")
                         for (key, first), second in pairs if first != second])
    wanted = sizes[parts[0]]
    layers, width = wanted["network.layers"], wanted["network.width"]
    changes = {**wanted, "network.decoder.layers": layers, "network.decoder.depth.hidden": width,
               "network.decoder.depth.readout": width, "network.decoder.depth.residual": layers,
               "tokenizer.vocab_size": models[parts[0]].network.vocab_size}
    stated = [(key, f"{paths[parts[0]]} has {value}") for key, value in changes.items()
              if recipe.origin.get(key) == "command line" and flatten(recipe.values).get(key) != value]
    if stated:
        raise UserError("the network to start from is not the one you ask for", stated)
    return recipe.with_changes(changes, Path(paths[parts[0]]).name)


def _sizes(model: Model) -> dict[str, object]:
    network = model.recipe.settings.network
    return {"network.layers": network.layers, "network.width": network.width,
            "network.embedding.width": network.embedding.width,
            "network.depth.residual": getattr(network.depth, "residual", False)}


def _open(path: str, part: str, recipe: Recipe, corpus: Corpus) -> Model:
    """The language model, checked."""
    model = open_model(path)
    kinds = {name: body.body.kind for name, body in recipe.settings.network.parts().items()}
    if kinds != {ENCODER: BODY, DECODER: DECODER_BODY}:
        raise UserError(f"--{part}-from starts a part of an LSTM translator, which {recipe.label} is not; choose "
                        "lm-init-seq2seq.")
    if model.recipe.settings.network.depth.kind != BODY or not any(
            task.kind == "causal_lm" for task in model.recipe.settings.objective.values()):
        raise UserError(f"{path} is a {model.recipe.title} and --{part}-from needs an LSTM language model, such as a "
                        "run of lstm-lm.")
    tokenizer = model.require_tokenizer()
    if tokenizer.fingerprint != corpus.tokenizer.fingerprint:
        raise UserError(f"{path} and the pairs have different vocabularies ({tokenizer.vocab_size:,} and "
                        f"{corpus.tokenizer.vocab_size:,} tokens); train both language models on corpora with one "
                        f"vocabulary, such as `stemma corpus build ... --tokenizer {resolve_model_folder(path)}`.")
    return model
