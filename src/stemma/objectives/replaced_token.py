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

from stemma.objectives.base import LM_HEAD, LossOutput, Objective, Requirements
from stemma.registry import register
from stemma.schema.objective import AttentionMaskKind, ObjectiveSettings

if TYPE_CHECKING:
    from torch import Tensor

    from stemma.corpus.draft import Draft
    from stemma.corpus.rng import RNG
    from stemma.network.inputs_outputs import NetworkOutput
    from stemma.network.network import Network
    from stemma.objectives.batch import Batch

HEAD_NAME = "replaced_token"


class ReplacedTokenSettings(ObjectiveSettings):
    """ELECTRA: of every token, say whether it is the original or what a small generator put there."""

    kind: Literal["replaced_token"]
    judged: Literal["all", "hidden"] = "all"  # hidden: only where the generator wrote, the paper's "ELECTRA 15%"

    sees: ClassVar[AttentionMaskKind] = "full"
    needs_generator = True
    needs_masked_tokens = True


@register("objective", "replaced_token", ReplacedTokenSettings)
class ReplacedToken(Objective):
    settings: ReplacedTokenSettings

    def requirements(self) -> Requirements:
        from stemma.network.heads import DiscriminatorHeadSpec

        return Requirements(heads={HEAD_NAME: DiscriminatorHeadSpec()})

    def make_targets(self, draft: Draft, rng: RNG) -> None:
        """Nothing: what is hidden is the masked LM's choice, and what stands there instead the generator's."""

    def loss(self, network: Network, output: NetworkOutput, batch: Batch) -> LossOutput:
        """Every real place is judged, special tokens too, as in the released code; or those alone that were hidden, as
        the paper does to see what judging all of them is worth (its section 3.4)."""
        import torch
        from torch.nn import functional

        stream, hid = batch.streams["encoder"], batch.token_targets[LM_HEAD]
        assert output.generator_samples is not None, "the masked LM comes first, and its generator writes"
        assert stream.input_ids is not None
        ids = stream.input_ids.flatten().index_copy(0, hid.index, output.generator_samples).view_as(stream.input_ids)
        labels = torch.zeros_like(ids, dtype=torch.bool).flatten()
        labels[hid.index] = output.generator_samples != hid.labels
        filled = replace(stream.with_input_ids(ids), output_positions=None)
        judged = network({"encoder": filled})["encoder"].flatten(0, 1)  # (B x L, width)
        real, total = stream.attention_token_mask(), float(batch.num_tokens)
        if self.settings.judged == "hidden":
            judged, labels, total = judged[hid.index], labels[hid.index], hid.denominator
        elif real is not None:
            judged, labels = judged[real.flatten()], labels[real.flatten()]
        scores = network.heads[HEAD_NAME](judged).float()
        lost = functional.binary_cross_entropy_with_logits(scores, labels.float(), reduction="sum")
        return LossOutput({self.name: lost / max(1.0, total)}, _detection_counts(scores > 0, labels))

    def baseline(self, batch: Batch, unigram: np.ndarray) -> dict[str, float]:
        """One who knows only how many tokens are replaced, by a generator that knows only how often each occurs. With a
        better generator fewer of them are, and knowing their number is worth more: see `replaced` in the log."""
        hid = batch.token_targets[LM_HEAD]
        by_chance = float(np.exp(unigram[hid.labels.cpu().numpy()]).mean()) if len(hid.labels) else 0.0
        judged = len(hid.labels) if self.settings.judged == "hidden" else batch.num_tokens
        share = min(max((1 - by_chance) * len(hid.labels) / max(judged, 1), 1e-6), 1 - 1e-6)
        return {self.name: float(-(share * np.log(share) + (1 - share) * np.log1p(-share)))}


def _detection_counts(logits: Tensor, labels: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
    """How many tokens were replaced; of those called so, how many were; of those that were, how many were found."""
    caught, replaced = (logits & labels).sum(), labels.sum()
    return {"replaced": (replaced, replaced.new_tensor(len(labels))), "precision": (caught, logits.sum()),
            "recall": (caught, replaced)}
