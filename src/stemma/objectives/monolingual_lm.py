"""Language models on the source and on the target alone, with the weights of a translator.

A translator that starts from two language models forgets them while it learns to translate. Their losses, beside that
of translation, are a regularizer (arXiv:1611.02683, section 2.2). The encoder predicts the next source token with an
output layer of its own. The decoder predicts the next target token without the source: its layers up to
`network.decoder.depth.residual` and the output layer of the translator are the language model. The paper computes these
losses on monolingual text; here it is that of the pairs.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np

from stemma.corpus.seq2seq_rows import DECODER, ENCODER
from stemma.objectives.base import LM_HEAD, Objective, Requirements
from stemma.registry import register
from stemma.schema.base import Conflict, ConflictKey
from stemma.schema.objective import AttentionMaskKind, ObjectiveSettings

if TYPE_CHECKING:
    from torch import Tensor

    from stemma.corpus.draft import Draft
    from stemma.corpus.rng import RNG
    from stemma.network.inputs_outputs import NetworkOutput, Stream
    from stemma.network.network import Network
    from stemma.objectives.batch import Batch
    from stemma.schema.recipe import RecipeSettings

SOURCE_HEAD = "source_vocabulary"


class MonolingualLMSettings(ObjectiveSettings):
    kind: Literal["monolingual_lm"]
    bias: bool | None = None  # of the output layers, as that of translation

    attention_mask: ClassVar[AttentionMaskKind] = "full"
    needs_decoder = True

    @property
    def allowed_packings(self) -> tuple[str, ...]:
        return ("parallel",)

    def recipe_conflicts(self, name: str, recipe: RecipeSettings) -> Iterator[Conflict]:
        key, network = f"objective.{name}", recipe.network
        kinds = [task.kind for task in recipe.objective.values()]
        if "translation" not in kinds:
            yield (ConflictKey(key, "is about the pairs that a translation reads: add [objective.translation]"),)
        elif kinds.index("translation") > kinds.index(self.kind):
            yield (ConflictKey(key, "comes after [objective.translation], whose rows it reads"),)
        body = None if network.decoder is None else network.decoder.depth
        if not network.depth.causal_only:
            yield (ConflictKey(key, "predicts the next source token, so the encoder must read from left to right: set "
                                    "network.depth.kind=lstm"),
                   ConflictKey("network.depth.kind", f"with {key} must be lstm"))
        if not getattr(body, "residual", 0) or getattr(body, "feeding", "none") != "none":
            yield (ConflictKey(key, "needs a decoder with a language model in it: set network.decoder.depth.residual "
                                    "to its layers, and network.decoder.depth.feeding=none"),
                   ConflictKey("network.decoder.depth.residual", f"with {key} must be 1 or more"),
                   ConflictKey("network.decoder.depth.feeding", f"with {key} must be none"))


@register("objective", "monolingual_lm", MonolingualLMSettings)
class MonolingualLM(Objective):
    settings: MonolingualLMSettings

    def requirements(self) -> Requirements:
        from stemma.network.heads import LMHeadSpec

        spec = LMHeadSpec(transform=False, bias=bool(self.settings.bias))
        return Requirements(heads={LM_HEAD: spec, SOURCE_HEAD: spec})

    def make_targets(self, draft: Draft, rng: RNG) -> None:
        """The rows of the translation are enough: every token of the source is the target of the one before."""

    def loss(self, network: Network, output: NetworkOutput, batch: Batch) -> dict[str, Tensor]:
        """Both sums of losses, divided by the number of tokens of the step."""
        from stemma.network.attentional_lstm import AttentionalLSTM

        index, labels = _next_tokens(batch.streams[ENCODER])
        hidden = output[ENCODER].flatten(0, 1).index_select(0, index)
        source = network.head(SOURCE_HEAD).loss(hidden, labels, float(batch.num_tokens))
        decoder, target = network.body_of(DECODER), batch.token_targets[LM_HEAD]
        assert isinstance(decoder, AttentionalLSTM)
        states = decoder.language_model(network.embedding_of(DECODER)(batch.streams[DECODER]))
        hidden = states.flatten(0, 1).index_select(0, target.index)
        return {self.name: source + network.head(LM_HEAD).loss(hidden, target.labels, float(batch.num_tokens))}

    def baseline(self, batch: Batch, unigram: np.ndarray) -> dict[str, float]:
        labels = [_next_tokens(batch.streams[ENCODER])[1], batch.token_targets[LM_HEAD].labels]
        return {self.name: float(sum(-unigram[part.cpu().numpy()].sum() for part in labels) / batch.num_tokens)}


def _next_tokens(stream: Stream) -> tuple[Tensor, Tensor]:
    """(N,) flat positions that have a next token, and (N,) these tokens."""
    import torch

    ids, mask = stream.input_ids, stream.token_mask()
    assert ids is not None
    has_next = torch.ones_like(ids[:, 1:], dtype=torch.bool) if mask is None else mask[:, 1:]
    rows, positions = has_next.nonzero(as_tuple=True)
    return rows * ids.shape[1] + positions, ids[rows, positions + 1]
