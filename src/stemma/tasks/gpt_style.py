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

from stemma.corpus.sides import ENCODER
from stemma.errors import UserError
from stemma.exchange.model import Model
from stemma.network.heads import HeadSpec
from stemma.network.network import Network
from stemma.network.streams import Hidden
from stemma.network.vocabulary_loss import vocabulary_loss
from stemma.objectives.batch import Batch, Target
from stemma.tasks.data.examples import Example, TextExample
from stemma.tasks.kinds import example_kinds, head_task
from stemma.tasks.learner import Item, Learner
from stemma.text.roles import HUGGING_FACE
from stemma.text.tokenizer import Tokenizer

STYLES = ("gpt", "plain")
TOKENS = {"begin": "_start_", "separator": "_delimiter_", "start": "_classify_"}  # the authors' spellings, by role
SINGLE, PAIR = "begin A start", "begin A separator B start"
COMPARED = ("mrpc", "qqp", "stsb", "lcqmc", "bq")  # data sets of texts that have no order
WEIGHT = 0.5  # of the language model's loss
LANGUAGE = "language"  # among the places that are scored


def is_asked(model: Model, kind: str, style: str | None) -> bool:
    """Whether a task of this kind is put to this model in GPT's way: if it is said so, or by itself to a GPT."""
    if style not in (None, *STYLES):
        raise UserError(f'--style is "{style}"; choose {" or ".join(STYLES)}.')
    network = model.recipe.settings.network
    in_the_way = [] if model.sees.causal else ["reads from both sides"]
    in_the_way += ["remembers the text before"] if network.memory is not None else []
    plain = not (network.embedding.cutoffs or network.embedding.width or network.embedding.quiet)
    in_the_way += [] if plain else ["does not guess tokens by a plain table of them"]
    if style is None:
        return model.recipe.settings.finetuning.style == "gpt" and head_task(kind).in_gpt_style and not in_the_way
    if style == "gpt" and not head_task(kind).in_gpt_style:
        able = [name for name in example_kinds() if head_task(name).in_gpt_style]
        raise UserError(f"--style gpt is for {', '.join(able)}, not for {kind}; leave it out.")
    if style == "gpt" and in_the_way:
        raise UserError(f"--style gpt is for language models like GPT, and this {model.recipe.title} model "
                        f"{in_the_way[0]}; leave it out.")
    return style == "gpt"


def prepared(model: Model) -> Model:
    """The model with a tokenizer that has the new tokens; its network grows by as many rows when it is built to
    learn."""
    tokenizer = model.needs_tokenizer()
    backend = tokenizers.Tokenizer.from_str(tokenizer.backend.to_str())
    backend.add_special_tokens([tokenizers.AddedToken(token, normalized=False, special=True)
                                for token in TOKENS.values()])
    known = {key: tokenizer.token(tokenizer.roles[role]) for role, key in HUGGING_FACE.items()
             if role in tokenizer.roles}
    config: dict[str, Any] = {**known, **{HUGGING_FACE[role]: token for role, token in TOKENS.items()}}
    return replace(model, tokenizer=Tokenizer(backend, {**config, "simplify": tokenizer.simplify}))


def card_values(name: str, train: Sequence[Example]) -> dict[str, Any]:
    """What a learner of this style must know besides."""
    paired = all(isinstance(example, TextExample) and len(example.texts) == 2 for example in train)
    return {"language": WEIGHT, **({"orders": 2} if name in COMPARED and paired else {})}


class LanguageLearner(Learner):
    """A learner whose network goes on guessing the next token while it learns the task. What is told of held-out
    examples is the task's loss alone."""

    def __init__(self, task: Learner, share: float):
        super().__init__(task.name, task.layout, task.weight)
        self.task, self.share = task, share

    def heads(self) -> dict[str, HeadSpec]:
        return self.task.heads()

    def items(self, examples: Sequence[Example]) -> list[Item]:
        return self.task.items(examples)

    def lessons(self, examples: Sequence[Example]) -> list[Item]:
        return self.task.lessons(examples)

    def targets(self, items: Sequence[Item], length: int) -> tuple[dict[str, Target], dict[str, Target]]:
        scores, labels = self.task.targets(items, length)
        rows = [row.ids for item in items for row in item.rows]
        places = np.concatenate([number * length + np.arange(len(ids) - 1) for number, ids in enumerate(rows)])
        following = np.concatenate([ids[1:] for ids in rows])
        target = Target(torch.from_numpy(places), torch.from_numpy(following), max(1.0, float(len(places))), length)
        return {**scores, LANGUAGE: target}, labels

    def wanted(self, lengths: Tensor, length: int) -> Tensor | None:
        return None

    def loss(self, network: Network, hidden: Hidden, batch: Batch) -> dict[str, Tensor]:
        found = self.task.loss(network, hidden, batch)
        if batch.held_out:
            return found
        target = batch.scores[LANGUAGE]
        places, table = hidden[ENCODER].flatten(0, 1)[target.index], network.embedding.tokens.weight
        assert isinstance(table, Tensor)
        guessed = vocabulary_loss(places, table, None, target.labels, target.total)
        return {self.name: found[self.name] + self.share * guessed}

    def answers(self, network: Network, hidden: Hidden, batch: Batch) -> list[np.ndarray]:
        return self.task.answers(network, hidden, batch)

    def decide(self, items: Sequence[Item], answers: Sequence[np.ndarray], examples: Sequence[Example]) -> list[Any]:
        return self.task.decide(items, answers, examples)

    def baseline(self, batch: Batch, unigram: np.ndarray) -> dict[str, float]:
        return self.task.baseline(batch, unigram)
