"""ELECTRA training speed compared with the same two networks made of transformers' classes.

    python benchmarks/electra_vs_transformers.py

A discriminator of 4 layers x 256 and a generator of 4 x 64 over one embedding, vocabulary 30,522, 128 tokens, batch 32,
dropout 0.1 on both sides, AdamW. The peer is `ElectraForMaskedLM` and `ElectraForPreTraining` with one embedding, in
`Trainer`: `DataCollatorForLanguageModeling` selects 15% of the tokens and replaces 85% of these by [MASK]. The
generator's tokens are sampled by adding Gumbel noise to the logits, as in the released code. The loss is that of the
generator plus 50 times that of the discriminator.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from pretrain_vs_transformers import VOCABULARIES, write_data
from trainer import HEADS, LAYERS, WIDTH, Comparison, main

MULTIPLIER, WEIGHT = 0.25, 50.0


def build_peer(folder: Path) -> tuple[Any, Any]:
    import torch
    from transformers import (
        BertTokenizerFast,
        DataCollatorForLanguageModeling,
        ElectraConfig,
        ElectraForMaskedLM,
        ElectraForPreTraining,
    )

    def config(scale: float) -> ElectraConfig:
        width = int(WIDTH * scale)
        return ElectraConfig(vocab_size=VOCABULARIES["bert"], embedding_size=WIDTH, hidden_size=width,
                             intermediate_size=4 * width, num_hidden_layers=LAYERS,
                             num_attention_heads=int(HEADS * scale), attn_implementation="sdpa")

    class Joint(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.generator = ElectraForMaskedLM(config(MULTIPLIER))
            self.discriminator = ElectraForPreTraining(config(1.0))
            self.discriminator.electra.embeddings = self.generator.electra.embeddings

        def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor,
                    labels: torch.Tensor) -> dict[str, torch.Tensor]:
            generated = self.generator(input_ids=input_ids, attention_mask=attention_mask, labels=labels)
            masked = labels != -100
            with torch.no_grad():
                logits = generated.logits[masked].float()
                noise = -torch.log(-torch.log(torch.rand_like(logits).clamp_(1e-9, 1 - 1e-7)))
                sampled_ids = input_ids.masked_scatter(masked, (logits + noise).argmax(-1))
            classified = self.discriminator(input_ids=sampled_ids, attention_mask=attention_mask,
                                            labels=(masked & (sampled_ids != labels)).long())
            return {"loss": generated.loss + WEIGHT * classified.loss}

    tokenizer = BertTokenizerFast(vocab=str(folder / "vocabulary" / "vocab.txt"))
    collator = DataCollatorForLanguageModeling(tokenizer, mlm_probability=0.15, mask_replace_prob=0.85,
                                               random_replace_prob=0.0)
    return Joint(), collator


if __name__ == "__main__":
    changes = ["corpus.packing=doc_sentences", f"network.generator.multiplier={MULTIPLIER}"]
    main({"electra": Comparison(Path(__file__), "electra@mini", changes, batch=32,
                                write_data=partial(write_data, "bert"), build_peer=build_peer,
                                goal="at least 3x the fp32 peer")}, __doc__)
