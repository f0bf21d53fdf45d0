"""The input format and auxiliary loss of GPT ("Improving Language Understanding by Generative Pre-Training", 2018,
sections 3.2 and 3.3): new tokens mark the start, the delimiter of two texts, and the position that is classified.

The language modelling loss is added with weight 0.5. Symmetric text pairs are encoded in both orders, and their logits
are summed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import tokenizers
import torch
from torch import Tensor

from stemma.corpus.seq2seq_rows import ENCODER
from stemma.errors import UserError
from stemma.model import Model
from stemma.network.heads import HeadSpec
from stemma.network.inputs_outputs import NetworkOutput
from stemma.network.linear_cross_entropy import linear_cross_entropy
from stemma.network.network import Network
from stemma.objectives.batch import Batch, Target
from stemma.tasks.data.examples import Example, TextExample
from stemma.tasks.kinds import example_kinds, head_task
from stemma.tasks.objectives.base import EncodedExample, TaskObjective
from stemma.text.special_tokens import HF_TOKEN_KEYS
from stemma.text.tokenizer import Tokenizer

INPUT_FORMATS = ("gpt", "plain")
# the paper's tokens, by special token name
SPECIAL_TOKENS = {"begin": "_start_", "separator": "_delimiter_", "start": "_classify_"}
SINGLE_TEMPLATE, PAIR_TEMPLATE = "begin A start", "begin A separator B start"
SYMMETRIC_DATASETS = ("mrpc", "qqp", "stsb", "lcqmc", "bq")  # data sets of symmetric text pairs
LM_WEIGHT = 0.5  # weight of the language modelling loss
LM_TARGET = "language"  # name of the token target


def uses_gpt_format(model: Model, kind: str, input_format: str | None) -> bool:
    """Whether a task kind uses the GPT input format: if requested, or by default for GPT recipes."""
    if input_format not in (None, *INPUT_FORMATS):
        raise UserError(f'--style is "{input_format}"; choose {" or ".join(INPUT_FORMATS)}.')
    network = model.recipe.settings.network
    embedding = network.embedding
    obstacles = [] if model.visibility.causal else ["has bidirectional attention"]
    obstacles += ["has a recurrent memory"] if network.memory is not None else []
    plain = embedding.tied and embedding.logit_softcap is None \
        and not (embedding.cutoffs or embedding.width or embedding.scale_logits)
    obstacles += [] if plain else ["does not predict tokens with a plain embedding matrix"]
    supported = head_task(kind).supports_gpt_format
    if input_format is None:
        return model.recipe.settings.finetuning.style == "gpt" and supported and not obstacles
    if input_format == "gpt" and not supported:
        kinds = [name for name in example_kinds() if head_task(name).supports_gpt_format]
        raise UserError(f"--style gpt is for {', '.join(kinds)}, not for {kind}; leave it out.")
    if input_format == "gpt" and obstacles:
        raise UserError(f"--style gpt is for language models like GPT, and this {model.recipe.title} model "
                        f"{obstacles[0]}; leave it out.")
    return input_format == "gpt"


def with_gpt_tokens(model: Model) -> Model:
    """The model with the new tokens in its tokenizer; the embedding matrix grows when training starts."""
    tokenizer = model.require_tokenizer()
    backend = tokenizers.Tokenizer.from_str(tokenizer.backend.to_str())
    backend.add_special_tokens([tokenizers.AddedToken(token, normalized=False, special=True)
                                for token in SPECIAL_TOKENS.values()])
    existing = {key: tokenizer.id_to_token(tokenizer.special_token_ids[role]) for role, key in HF_TOKEN_KEYS.items()
                if role in tokenizer.special_token_ids}
    config: dict[str, Any] = {**existing, **{HF_TOKEN_KEYS[role]: token for role, token in SPECIAL_TOKENS.items()}}
    return replace(model, tokenizer=Tokenizer(backend, {**config, "simplify": tokenizer.simplify}))


def gpt_task_options(name: str, train: Sequence[Example]) -> dict[str, Any]:
    """Task options of the GPT format."""
    paired = all(isinstance(example, TextExample) and len(example.texts) == 2 for example in train)
    return {"language": LM_WEIGHT, **({"orders": 2} if name in SYMMETRIC_DATASETS and paired else {})}


class AuxiliaryLMObjective(TaskObjective):
    """Adds the language modelling loss to a task objective. The validation loss is that of the task alone."""

    def __init__(self, task: TaskObjective, lm_weight: float):
        super().__init__(task.name, task.input_encoder, task.weight)
        self.task, self.lm_weight = task, lm_weight

    def heads(self) -> dict[str, HeadSpec]:
        return self.task.heads()

    def encode(self, examples: Sequence[Example]) -> list[EncodedExample]:
        return self.task.encode(examples)

    def encode_training(self, examples: Sequence[Example]) -> list[EncodedExample]:
        return self.task.encode_training(examples)

    def targets(self, items: Sequence[EncodedExample], length: int) -> tuple[dict[str, Target], dict[str, Target]]:
        token_targets, row_targets = self.task.targets(items, length)
        rows = [sequence.input_ids for item in items for sequence in item.sequences]
        positions = np.concatenate([row * length + np.arange(len(ids) - 1) for row, ids in enumerate(rows)])
        next_ids = np.concatenate([ids[1:] for ids in rows])
        total = max(1.0, float(len(positions)))
        target = Target(torch.from_numpy(positions), torch.from_numpy(next_ids), total, length)
        return {**token_targets, LM_TARGET: target}, row_targets

    def output_positions(self, lengths: Tensor, length: int) -> Tensor | None:
        return None

    def loss(self, network: Network, output: NetworkOutput, batch: Batch) -> dict[str, Tensor]:
        task_loss = self.task.loss(network, output, batch)
        if batch.held_out:
            return task_loss
        target = batch.token_targets[LM_TARGET]
        hidden, embedding = output[ENCODER].flatten(0, 1)[target.index], network.embedding.tokens.weight
        assert isinstance(embedding, Tensor)
        lm_loss = linear_cross_entropy(hidden, embedding, None, target.labels, target.denominator)
        return {self.name: task_loss[self.name] + self.lm_weight * lm_loss}

    def outputs(self, network: Network, output: NetworkOutput, batch: Batch) -> list[np.ndarray]:
        return self.task.outputs(network, output, batch)

    def postprocess(self, items: Sequence[EncodedExample], outputs: Sequence[np.ndarray],
                    examples: Sequence[Example]) -> list[Any]:
        return self.task.postprocess(items, outputs, examples)

    def baseline(self, batch: Batch, unigram: np.ndarray) -> dict[str, float]:
        return self.task.baseline(batch, unigram)
