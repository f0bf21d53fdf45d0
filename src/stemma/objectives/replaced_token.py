"""Replaced-token detection: of every token, say whether it is the original or what a small generator wrote there
(ELECTRA, arXiv:2003.10555).

A masked LM learns from the 15% of the places that it hides. Here those places are filled in by a generator, itself a
masked LM, with tokens drawn from its guesses; the network that is kept reads the result and judges all places, so that
each of them teaches it something. A token that the generator happens to get right counts as original. The draw passes
no gradient on: generator and discriminator meet in their shared embedding only.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np

from stemma.objectives.base import VOCABULARY, Needs, Objective, Scored
from stemma.registry import register
from stemma.schema.task import ObjectiveSettings, Sees

if TYPE_CHECKING:
    from torch import Tensor

    from stemma.corpus.draft import Draft
    from stemma.corpus.randomness import Randomness
    from stemma.network.network import Network
    from stemma.network.streams import Hidden
    from stemma.objectives.batch import Batch

HEAD = "replaced_token"


class ReplacedTokenSettings(ObjectiveSettings):
    """ELECTRA: of every token, say whether it is the original or what a small generator put there."""

    kind: Literal["replaced_token"]
    judged: Literal["all", "hidden"] = "all"  # hidden: only where the generator wrote, the paper's "ELECTRA 15%"

    sees: ClassVar[Sees] = "full"
    needs_generator = True
    needs_masks = True


@register("objective", "replaced_token", ReplacedTokenSettings)
class ReplacedToken(Objective):
    settings: ReplacedTokenSettings

    def needs(self) -> Needs:
        from stemma.network.heads import JudgeHead

        return Needs(heads={HEAD: JudgeHead()})

    def corrupt(self, draft: Draft, rng: Randomness) -> None:
        """Nothing: what is hidden is the masked LM's choice, and what stands there instead the generator's."""

    def loss(self, network: Network, hidden: Hidden, batch: Batch) -> Scored:
        """Every real place is judged, special tokens too, as in the released code; or those alone that were hidden, as
        the paper does to see what judging all of them is worth (its section 3.4)."""
        import torch
        from torch.nn import functional

        stream, hid = batch.streams["encoder"], batch.scores[VOCABULARY]
        assert hidden.sampled is not None, "the masked LM comes first, and its generator writes"
        assert stream.ids is not None
        ids = stream.ids.flatten().index_copy(0, hid.index, hidden.sampled).view_as(stream.ids)
        labels = torch.zeros_like(ids, dtype=torch.bool).flatten()
        labels[hid.index] = hidden.sampled != hid.labels
        filled = replace(stream.with_ids(ids), wanted=None)
        judged = network({"encoder": filled})["encoder"].flatten(0, 1)  # (B x L, width)
        real, total = stream.real(), float(batch.tokens)
        if self.settings.judged == "hidden":
            judged, labels, total = judged[hid.index], labels[hid.index], hid.total
        elif real is not None:
            judged, labels = judged[real.flatten()], labels[real.flatten()]
        scores = network.heads[HEAD](judged).float()
        lost = functional.binary_cross_entropy_with_logits(scores, labels.float(), reduction="sum")
        return Scored({self.name: lost / max(1.0, total)}, _counted(scores > 0, labels))

    def baseline(self, batch: Batch, unigram: np.ndarray) -> dict[str, float]:
        """One who knows only how many tokens are replaced, by a generator that knows only how often each occurs. With a
        better generator fewer of them are, and knowing their number is worth more: see `replaced` in the log."""
        hid = batch.scores[VOCABULARY]
        by_chance = float(np.exp(unigram[hid.labels.cpu().numpy()]).mean()) if len(hid.labels) else 0.0
        judged = len(hid.labels) if self.settings.judged == "hidden" else batch.tokens
        share = min(max((1 - by_chance) * len(hid.labels) / max(judged, 1), 1e-6), 1 - 1e-6)
        return {self.name: float(-(share * np.log(share) + (1 - share) * np.log1p(-share)))}


def _counted(found: Tensor, labels: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
    """How many tokens were replaced; of those called so, how many were; of those that were, how many were found."""
    caught, replaced = (found & labels).sum(), labels.sum()
    return {"replaced": (replaced, replaced.new_tensor(len(labels))), "precision": (caught, found.sum()),
            "recall": (caught, replaced)}
