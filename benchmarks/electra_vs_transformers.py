"""ELECTRA's joint training steps against the same two networks composed from transformers' classes.

    python benchmarks/electra_vs_transformers.py

A discriminator of 4 layers x 256 and a generator of 4 x 64 over one embedding, vocabulary 30,522, 128 tokens, batch 32,
dropout 0.1 on both sides, AdamW. The peer is `ElectraForMaskedLM` and `ElectraForPreTraining` with one embedding, in
`Trainer`: masks by `DataCollatorForLanguageModeling` (85% of the chosen 15% show [MASK]), tokens drawn at the hidden
places by adding Gumbel noise to their logits, as the released code draws them, and the discriminator's loss, 50 times,
beside the generator's.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from pretrain_vs_transformers import VOCABULARIES, text
from trainer import HEADS, LAYERS, WIDTH, Contest, main

MULTIPLIER, WEIGHT = 0.25, 50.0


def peer(folder: Path) -> tuple[Any, Any]:
    import torch
    from transformers import (
        BertTokenizerFast,
        DataCollatorForLanguageModeling,
        ElectraConfig,
        ElectraForMaskedLM,
        ElectraForPreTraining,
    )

    def config(share: float) -> ElectraConfig:
        width = int(WIDTH * share)
        return ElectraConfig(vocab_size=VOCABULARIES["bert"], embedding_size=WIDTH, hidden_size=width,
                             intermediate_size=4 * width, num_hidden_layers=LAYERS,
                             num_attention_heads=int(HEADS * share), attn_implementation="sdpa")

    class Joint(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.generator = ElectraForMaskedLM(config(MULTIPLIER))
            self.discriminator = ElectraForPreTraining(config(1.0))
            self.discriminator.electra.embeddings = self.generator.electra.embeddings

        def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor,
                    labels: torch.Tensor) -> dict[str, torch.Tensor]:
            written = self.generator(input_ids=input_ids, attention_mask=attention_mask, labels=labels)
            hidden = labels != -100
            with torch.no_grad():
                logits = written.logits[hidden].float()
                noise = -torch.log(-torch.log(torch.rand_like(logits).clamp_(1e-9, 1 - 1e-7)))
                shown = input_ids.masked_scatter(hidden, (logits + noise).argmax(-1))
            judged = self.discriminator(input_ids=shown, attention_mask=attention_mask,
                                        labels=(hidden & (shown != labels)).long())
            return {"loss": written.loss + WEIGHT * judged.loss}

    tokenizer = BertTokenizerFast(vocab=str(folder / "vocabulary" / "vocab.txt"))
    collator = DataCollatorForLanguageModeling(tokenizer, mlm_probability=0.15, mask_replace_prob=0.85,
                                               random_replace_prob=0.0)
    return Joint(), collator


if __name__ == "__main__":
    changes = ["corpus.packing=doc_sentences", f"network.generator.multiplier={MULTIPLIER}"]
    main(Contest(Path(__file__), "electra@mini", changes, batch=32, text=partial(text, "bert"), peer=peer,
                 wanted="wanted: at least 3x the fp32 peer"), __doc__)
