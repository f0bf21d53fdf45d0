"""Masked-LM training steps against transformers.Trainer, from the same token ids.

    python benchmarks/pretrain_vs_transformers.py

4 layers x 256, vocabulary 30,522, 128 tokens, batch 32, dropout 0.1 on both sides, AdamW. The peer is `Trainer` with
`DataCollatorForLanguageModeling`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from trainer import HEADS, LAYERS, LENGTH, WIDTH, Contest, main, zipf_text

VOCABULARY = 30_522


def text(folder: Path) -> None:
    import numpy as np

    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    blocks = zipf_text(folder, VOCABULARY, special, LENGTH - 2)
    np.save(folder / "blocks.npy", np.pad(blocks, ((0, 0), (1, 1)), constant_values=((0, 0), (2, 3))))


def peer(folder: Path) -> tuple[Any, Any]:
    from transformers import BertConfig, BertForMaskedLM, BertTokenizerFast, DataCollatorForLanguageModeling

    tokenizer = BertTokenizerFast(vocab=str(folder / "vocabulary" / "vocab.txt"))
    config = BertConfig(vocab_size=VOCABULARY, hidden_size=WIDTH, num_hidden_layers=LAYERS, num_attention_heads=HEADS,
                        intermediate_size=4 * WIDTH, attn_implementation="sdpa")
    return BertForMaskedLM(config), DataCollatorForLanguageModeling(tokenizer, mlm_probability=0.15)


if __name__ == "__main__":
    changes = ["remove=objective.next_sentence", "corpus.packing=doc_sentences", "objective.masked_lm.dynamic=true"]
    main(Contest(Path(__file__), "bert@mini", changes, batch=32, text=text, peer=peer,
                 wanted="wanted: at least 4x the fp32 peer and 2.5x the bf16 one, at no more than 0.6x the memory"),
         __doc__)
