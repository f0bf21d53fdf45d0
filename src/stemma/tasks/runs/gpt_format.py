"""Tasks as GPT's authors put them to a language model ("Improving Language Understanding by Generative Pre-Training",
2018, sections 3.2 and 3.3): new tokens say where a text starts, where the second begins and where the answer is read.

While it learns the task, the network goes on guessing every next token, at half the weight. Of two texts that are only
compared, both orders are read and what was read is summed. Options are rows that compete, as everywhere here.
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
# the authors' spellings, by role
SPECIAL_TOKENS = {"begin": "_start_", "separator": "_delimiter_", "start": "_classify_"}
SINGLE_TEMPLATE, PAIR_TEMPLATE = "begin A start", "begin A separator B start"
SYMMETRIC_DATASETS = ("mrpc", "qqp", "stsb", "lcqmc", "bq")  # data sets of texts that have no order
LM_WEIGHT = 0.5  # of the language model's loss
LM_TARGET = "language"  # among the places that are scored


def uses_gpt_format(model: Model, kind: str, input_format: str | None) -> bool:
    """Whether a task of this kind is put to this model in GPT's way: if it is said so, or by itself to a GPT."""
    if input_format not in (None, *INPUT_FORMATS):
        raise UserError(f'--style is "{input_format}"; choose {" or ".join(INPUT_FORMATS)}.')
    network = model.recipe.settings.network
    in_the_way = [] if model.visibility.causal else ["reads from both sides"]
    in_the_way += ["remembers the text before"] if network.memory is not None else []
    plain = not (network.embedding.cutoffs or network.embedding.width or network.embedding.quiet)
    in_the_way += [] if plain else ["does not guess tokens by a plain table of them"]
    if input_format is None:
        return model.recipe.settings.finetuning.style == "gpt" and head_task(kind).supports_gpt_format and not in_the_way
    if input_format == "gpt" and not head_task(kind).supports_gpt_format:
        able = [name for name in example_kinds() if head_task(name).supports_gpt_format]
        raise UserError(f"--style gpt is for {', '.join(able)}, not for {kind}; leave it out.")
    if input_format == "gpt" and in_the_way:
        raise UserError(f"--style gpt is for language models like GPT, and this {model.recipe.title} model "
                        f"{in_the_way[0]}; leave it out.")
    return input_format == "gpt"


def with_gpt_tokens(model: Model) -> Model:
    """The model with a tokenizer that has the new tokens; its network grows by as many rows when it is built to
    learn."""
    tokenizer = model.require_tokenizer()
    backend = tokenizers.Tokenizer.from_str(tokenizer.backend.to_str())
    backend.add_special_tokens([tokenizers.AddedToken(token, normalized=False, special=True)
                                for token in SPECIAL_TOKENS.values()])
    known = {key: tokenizer.id_to_token(tokenizer.special_token_ids[role]) for role, key in HF_TOKEN_KEYS.items()
             if role in tokenizer.special_token_ids}
    config: dict[str, Any] = {**known, **{HF_TOKEN_KEYS[role]: token for role, token in SPECIAL_TOKENS.items()}}
    return replace(model, tokenizer=Tokenizer(backend, {**config, "simplify": tokenizer.simplify}))


def gpt_task_options(name: str, train: Sequence[Example]) -> dict[str, Any]:
    """What a learner of this style must know besides."""
    paired = all(isinstance(example, TextExample) and len(example.texts) == 2 for example in train)
    return {"language": LM_WEIGHT, **({"orders": 2} if name in SYMMETRIC_DATASETS and paired else {})}


class AuxiliaryLMObjective(TaskObjective):
    """A learner whose network goes on guessing the next token while it learns the task. What is told of held-out
    examples is the task's loss alone."""

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
        scores, labels = self.task.targets(items, length)
        rows = [row.input_ids for item in items for row in item.sequences]
        places = np.concatenate([number * length + np.arange(len(ids) - 1) for number, ids in enumerate(rows)])
        following = np.concatenate([ids[1:] for ids in rows])
        target = Target(torch.from_numpy(places), torch.from_numpy(following), max(1.0, float(len(places))), length)
        return {**scores, LM_TARGET: target}, labels

    def output_positions(self, lengths: Tensor, length: int) -> Tensor | None:
        return None

    def loss(self, network: Network, output: NetworkOutput, batch: Batch) -> dict[str, Tensor]:
        found = self.task.loss(network, output, batch)
        if batch.held_out:
            return found
        target = batch.token_targets[LM_TARGET]
        places, table = output[ENCODER].flatten(0, 1)[target.index], network.embedding.tokens.weight
        assert isinstance(table, Tensor)
        guessed = linear_cross_entropy(places, table, None, target.labels, target.denominator)
        return {self.name: found[self.name] + self.lm_weight * guessed}

    def outputs(self, network: Network, output: NetworkOutput, batch: Batch) -> list[np.ndarray]:
        return self.task.outputs(network, output, batch)

    def postprocess(self, items: Sequence[EncodedExample], outputs: Sequence[np.ndarray],
                    examples: Sequence[Example]) -> list[Any]:
        return self.task.postprocess(items, outputs, examples)

    def baseline(self, batch: Batch, unigram: np.ndarray) -> dict[str, float]:
        return self.task.baseline(batch, unigram)
