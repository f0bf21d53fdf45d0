"""Causal-LM training speed compared with transformers.Trainer, from the same token ids.

    python benchmarks/causal_vs_transformers.py

GPT-2 of 4 layers x 256, vocabulary 50,257, 128 tokens, batch 16, dropout 0.1 on both sides, AdamW. The peer is
`Trainer` with `DataCollatorForLanguageModeling(mlm=False)`. The loss is computed at every position over the
whole vocabulary, so most of the work is the product with the vocabulary matrix.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from trainer import HEADS, LAYERS, LENGTH, WIDTH, Comparison, main, zipf_corpus

VOCABULARY = 50_257


def write_data(folder: Path) -> None:
    import numpy as np

    np.save(folder / "blocks.npy", zipf_corpus(folder, VOCABULARY, ["[PAD]", "[UNK]"], LENGTH))


def build_peer(folder: Path) -> tuple[Any, Any]:
    from transformers import BertTokenizerFast, DataCollatorForLanguageModeling, GPT2Config, GPT2LMHeadModel

    tokenizer = BertTokenizerFast(vocab=str(folder / "vocabulary" / "vocab.txt"))  # only its padding is used
    config = GPT2Config(vocab_size=VOCABULARY, n_positions=LENGTH, n_embd=WIDTH, n_layer=LAYERS, n_head=HEADS,
                        attn_implementation="sdpa")
    return GPT2LMHeadModel(config), DataCollatorForLanguageModeling(tokenizer, mlm=False)


if __name__ == "__main__":
    main({"gpt2": Comparison(Path(__file__), "gpt2@mini", ["corpus.packing=doc_sentences"], batch=16,
                             write_data=write_data, build_peer=build_peer,
                             goal="at least 3x the fp32 peer and 2x the bf16 one, at most 0.5x the memory")}, __doc__)
