"""What all encoder-decoder tasks share: a source is read, a target is written token by token, and every token of the
target is guessed from the source and the tokens before it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from stemma.corpus.layout import DECODER_START
from stemma.corpus.sides import DECODER, ENCODER, Side
from stemma.objectives.base import VOCABULARY as HEAD
from stemma.objectives.base import Needs, Objective
from stemma.schema.base import BelowOne
from stemma.schema.corpus import running_text
from stemma.schema.task import ObjectiveSettings, Sees, Writing

if TYPE_CHECKING:
    from torch import Tensor

    from stemma.corpus.draft import Draft
    from stemma.network.network import Network
    from stemma.network.streams import Hidden
    from stemma.objectives.batch import Batch


class DecoderTaskSettings(ObjectiveSettings):
    """The encoder reads a source, and the decoder writes a target token by token."""

    smoothing: BelowOne = 0.0  # share of certainty that is spread over all tokens alike

    sees: ClassVar[Sees] = "full"  # of the encoder
    needs_decoder = True

    @property
    def writing(self) -> Writing | None:
        return Writing("decoder")

    @property
    def for_pairs(self) -> dict[str, Any] | None:
        """Whatever it was pre-trained to write, a decoder learns pairs by translation."""
        return {"kind": "translation"}

    @property
    def needs_packing(self) -> tuple[str, ...]:
        return running_text()


class DecoderTask(Objective):
    guesses_tokens = True
    guesses_next = True

    def needs(self) -> Needs:
        from stemma.network.heads import TokenHead

        return Needs(roles=self.settings.roles, heads={HEAD: TokenHead(transform=False, bias=False)})

    def loss(self, network: Network, hidden: Hidden, batch: Batch) -> dict[str, Tensor]:
        """Smoothed while learning; held-out text is judged without, so that its loss means what it always means."""
        target = batch.scores[HEAD]
        places = hidden[DECODER].flatten(0, 1).index_select(0, target.index)  # (N, width): filling goes no further
        smoothing = 0.0 if batch.held_out else self.settings.smoothing
        return {self.name: network.head(HEAD).loss(places, target.labels, target.total, smoothing)}

    def baseline(self, batch: Batch, unigram: np.ndarray) -> dict[str, float]:
        return {self.name: float(-unigram[batch.scores[HEAD].labels.cpu().numpy()].mean())}


def source_and_target(draft: Draft, source: Side, target: Side) -> None:
    """Hand in what is read and what is to be written."""
    roles = draft.layout.roles
    draft.sides = {ENCODER: source, DECODER: target.written(roles[DECODER_START], roles["padding"])}


def whole_text(draft: Draft) -> Side:
    """A draft's rows as they are."""
    longest = int(draft.lengths.max())
    return Side(draft.ids[:, :longest].astype(np.int32), draft.lengths, source=draft.source[:, :longest])
