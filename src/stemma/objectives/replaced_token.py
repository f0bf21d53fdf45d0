"""Replaced-token detection: classify every token as original or as replaced by a small generator (ELECTRA,
arXiv:2003.10555).

A masked LM has a loss at the masked 15% of the positions only. Here a generator, itself a masked LM, fills them with
sampled tokens, and the discriminator classifies all positions. A sampled token that equals the original counts as
original. Sampling passes no gradient: generator and discriminator share only the embedding.
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
    """ELECTRA: classify every token as original or as replaced by a small generator."""

    kind: Literal["replaced_token"]
    judged: Literal["all", "hidden"] = "all"  # hidden: only masked positions, the paper's "ELECTRA 15%"

    attention_mask: ClassVar[AttentionMaskKind] = "full"
    needs_generator = True
    needs_masked_tokens = True


@register("objective", "replaced_token", ReplacedTokenSettings)
class ReplacedToken(Objective):
    settings: ReplacedTokenSettings

    def requirements(self) -> Requirements:
        from stemma.network.heads import DiscriminatorHeadSpec

        return Requirements(heads={HEAD_NAME: DiscriminatorHeadSpec()})

    def make_targets(self, draft: Draft, rng: RNG) -> None:
        """No targets of its own: the masked LM selects the positions and the generator samples the tokens."""

    def loss(self, network: Network, output: NetworkOutput, batch: Batch) -> LossOutput:
        """Binary loss at all positions but padding, special tokens included as in the released code; or at masked
        positions only (the ablation of section 3.4)."""
        import torch
        from torch.nn import functional

        stream, masked = batch.streams["encoder"], batch.token_targets[LM_HEAD]
        assert output.generator_samples is not None, "the masked LM comes first and samples the tokens"
        assert stream.input_ids is not None
        ids = stream.input_ids.flatten().index_copy(0, masked.index, output.generator_samples)
        ids = ids.view_as(stream.input_ids)
        labels = torch.zeros_like(ids, dtype=torch.bool).flatten()
        labels[masked.index] = output.generator_samples != masked.labels
        filled = replace(stream.with_input_ids(ids), output_positions=None)
        hidden = network({"encoder": filled})["encoder"].flatten(0, 1)  # (B x L, width)
        token_mask, denominator = stream.attention_token_mask(), float(batch.num_tokens)
        if self.settings.judged == "hidden":
            hidden, labels, denominator = hidden[masked.index], labels[masked.index], masked.denominator
        elif token_mask is not None:
            hidden, labels = hidden[token_mask.flatten()], labels[token_mask.flatten()]
        logits = network.heads[HEAD_NAME](hidden).float()
        loss = functional.binary_cross_entropy_with_logits(logits, labels.float(), reduction="sum")
        return LossOutput({self.name: loss / max(1.0, denominator)}, _detection_counts(logits > 0, labels))

    def baseline(self, batch: Batch, unigram: np.ndarray) -> dict[str, float]:
        """Entropy of the fraction of replaced tokens under a unigram generator. A better generator replaces fewer
        tokens, and the true baseline is lower: see `replaced` in the log."""
        masked = batch.token_targets[LM_HEAD]
        accuracy = float(np.exp(unigram[masked.labels.cpu().numpy()]).mean()) if len(masked.labels) else 0.0
        num_scored = len(masked.labels) if self.settings.judged == "hidden" else batch.num_tokens
        replaced = min(max((1 - accuracy) * len(masked.labels) / max(num_scored, 1), 1e-6), 1 - 1e-6)
        return {self.name: float(-(replaced * np.log(replaced) + (1 - replaced) * np.log1p(-replaced)))}


def _detection_counts(predicted: Tensor, labels: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
    """Numerators and denominators of the fraction of replaced tokens, and of precision and recall of detection."""
    true_positives, replaced = (predicted & labels).sum(), labels.sum()
    return {"replaced": (replaced, replaced.new_tensor(len(labels))), "precision": (true_positives, predicted.sum()),
            "recall": (true_positives, replaced)}
