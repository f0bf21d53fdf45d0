"""Causal-LM training steps against transformers.Trainer, from the same token ids.

    python benchmarks/causal_vs_transformers.py

GPT-2 of 4 layers x 256, vocabulary 50,257, 128 tokens, batch 16, dropout 0.1 on both sides, AdamW. The peer is
`Trainer` with `DataCollatorForLanguageModeling(mlm=False)`. Every place is scored against the whole vocabulary, so
that the vocabulary's matrix is nearly all of the work.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from trainer import HEADS, LAYERS, LENGTH, WIDTH, Contest, main, zipf_text

VOCABULARY = 50_257


def text(folder: Path) -> None:
    import numpy as np

    np.save(folder / "blocks.npy", zipf_text(folder, VOCABULARY, ["[PAD]", "[UNK]"], LENGTH))


def peer(folder: Path) -> tuple[Any, Any]:
    from transformers import BertTokenizerFast, DataCollatorForLanguageModeling, GPT2Config, GPT2LMHeadModel

    tokenizer = BertTokenizerFast(vocab=str(folder / "vocabulary" / "vocab.txt"))  # only its padding is used
    config = GPT2Config(vocab_size=VOCABULARY, n_positions=LENGTH, n_embd=WIDTH, n_layer=LAYERS, n_head=HEADS,
                        attn_implementation="sdpa")
    return GPT2LMHeadModel(config), DataCollatorForLanguageModeling(tokenizer, mlm=False)


if __name__ == "__main__":
    main(Contest(Path(__file__), "gpt2@mini", ["corpus.packing=doc_sentences"], batch=16, text=text, peer=peer,
                 wanted="wanted: at least 3x the fp32 peer and 2x the bf16 one, at no more than 0.5x the memory"),
         __doc__)
