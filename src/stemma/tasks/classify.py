"""Fine-tuning for one label a text: a linear layer on top of the network, and every weight trained (BERT's way).

The vector of a text is the mean over its tokens or the first place's. Texts of similar length share a batch, so hardly
anything is padding; batches come in a new order each epoch. All randomness follows from the seed.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from stemma.errors import UserError
from stemma.exchange.model import Model
from stemma.network.network import Network
from stemma.tasks.embed import POOLINGS
from stemma.training.optimizers import AdamW, build_optimizer, set_learning_rate
from stemma.training.schedules import Linear, factor

Example = tuple[str, int]
WARMUP = 0.1  # of all steps
CLIP_NORM = 1.0
READING_BATCH = 64  # texts at once where nothing is learnt


@dataclass(frozen=True)
class Settings:
    """How to fine-tune. The defaults suit a few hundred examples and a small network."""

    epochs: int = 10
    learning_rate: float = 5e-4
    batch_size: int = 16
    pooling: str = "mean"
    weight_decay: float = 0.01
    frozen_embedding: bool = False  # with few labels: words in none of the examples keep their relation to the rest


class Classifier(nn.Module):
    """A network's body, pooling, and a linear layer over the classes."""

    def __init__(self, model: Model, classes: int, pooling: str = "mean"):
        super().__init__()
        if pooling not in POOLINGS:
            raise UserError(f'pooling is "{pooling}"; choose {" or ".join(POOLINGS)}.')
        self.model = model
        self.pooling = pooling
        self.network: Network = copy.deepcopy(model.network)  # the model that is given stays as it is
        self.network.heads.clear()  # what the objectives of pre-training stood on
        width = self.network.settings.width
        self.output = nn.Linear(width, classes)
        nn.init.trunc_normal_(self.output.weight, std=self.network.settings.initialization.scale(width))
        nn.init.zeros_(self.output.bias)

    def forward(self, rows: Sequence[Sequence[int]]) -> Tensor:
        """(B, classes) logits of B rows of ids."""
        longest = max(map(len, rows))
        ids = torch.tensor([[*row, *[0] * (longest - len(row))] for row in rows])
        mask = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in rows])
        hidden = self.network({"encoder": self.model.inputs_of(ids, mask)})["encoder"]  # (B, L, width)
        if self.pooling == "start":
            return self.output(hidden[:, 0])
        weight = mask.to(hidden)[..., None]
        return self.output((hidden * weight).sum(1) / weight.sum(1))

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids with the special tokens of the recipe's template, cut where the network can read no further."""
        corpus = self.model.recipe.settings.corpus
        limit = self.model.recipe.settings.network.longest or corpus.sequence_length
        tokenizer = self.model.needs_tokenizer().template(corpus.single, corpus.pair)
        return [encoding.ids[:limit] for encoding in tokenizer.encode_batch(list(texts))]

    @torch.inference_mode()
    def predict(self, texts: Sequence[str]) -> np.ndarray:
        """(texts,) the likeliest class of each."""
        rows = self.encode(texts)
        order = sorted(range(len(rows)), key=lambda i: len(rows[i]))
        found = np.zeros(len(rows), dtype=np.int64)
        for start in range(0, len(order), READING_BATCH):
            chosen = order[start:start + READING_BATCH]
            found[chosen] = self([rows[i] for i in chosen]).argmax(-1).cpu().numpy()
        return found

    def accuracy(self, examples: Sequence[Example]) -> float:
        texts, labels = zip(*examples, strict=True)
        return float(np.mean(self.predict(texts) == np.array(labels)))


def finetune(model: Model, train: Sequence[Example], settings: Settings = Settings(), seed: int = 0,
             watch: Callable[[int, float], None] = lambda epoch, loss: None) -> Classifier:
    """A classifier that starts from the model's weights; `watch` hears of every epoch and its mean loss."""
    if not train:
        raise UserError("there is nothing to fine-tune on; give at least one example of each class.")
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    classifier = Classifier(model, 1 + max(label for _, label in train), settings.pooling).to(model.device).train()
    rows = classifier.encode([text for text, _ in train])
    labels = torch.tensor([label for _, label in train], device=model.device)
    classifier.network.embedding.tokens.requires_grad_(not settings.frozen_embedding)
    optimizer = build_optimizer(classifier, AdamW(kind="adamw", weight_decay=settings.weight_decay),
                                settings.learning_rate)
    steps = settings.epochs * math.ceil(len(rows) / settings.batch_size)
    warmup, step = int(WARMUP * steps), 0
    for epoch in range(settings.epochs):
        total = 0.0
        for chosen in _batches([len(row) for row in rows], settings.batch_size, rng):
            step += 1
            used = (step - 1) / steps
            set_learning_rate(optimizer, settings.learning_rate
                              * factor(Linear(kind="linear"), step, warmup, used, warmup / steps))
            loss = functional.cross_entropy(classifier([rows[i] for i in chosen]), labels[chosen])
            loss.backward()
            nn.utils.clip_grad_norm_(classifier.parameters(), CLIP_NORM)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            total += float(loss.detach()) * len(chosen)
        watch(epoch, total / len(rows))
    return classifier.eval()


def _batches(lengths: Sequence[int], size: int, rng: np.random.Generator) -> list[list[int]]:
    """Examples of similar length together; noise decides between near lengths, so that no two epochs are alike."""
    order = np.argsort(np.array(lengths) * rng.uniform(0.8, 1.2, len(lengths)))
    batches = [order[start:start + size].tolist() for start in range(0, len(order), size)]
    return [batches[i] for i in rng.permutation(len(batches))]
