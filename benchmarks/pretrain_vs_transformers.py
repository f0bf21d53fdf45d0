"""Masked-LM training speed compared with transformers.Trainer, from the same token ids.

    python benchmarks/pretrain_vs_transformers.py
    python benchmarks/pretrain_vs_transformers.py --recipe albert

4 layers x 256, the vocabulary size of the family, 128 tokens, batch 32, AdamW, dropout 0.1 on both sides. ALBERT has no
dropout, cross-layer parameter sharing and an embedding size of 128. The peer is `Trainer` with the family's
...ForMaskedLM and `DataCollatorForLanguageModeling`.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from trainer import HEADS, LAYERS, LENGTH, WIDTH, Comparison, main, zipf_corpus

VOCABULARIES = {"bert": 30_522, "roberta": 50_265, "albert": 30_000}
# further keys of the peer's configuration, so that both networks are the same
SETTINGS: dict[str, dict[str, Any]] = {
    "bert": {}, "roberta": {"type_vocab_size": 1, "max_position_embeddings": 514, "layer_norm_eps": 1e-5},
    "albert": {"embedding_size": 128}}
# the same objective on both sides: dynamic masking of single tokens, in rows of one document
SAME_OBJECTIVE = ["corpus.packing=doc_sentences", "objective.masked_lm.dynamic=true"]
CHANGES = {"bert": ["remove=objective.next_sentence", *SAME_OBJECTIVE], "roberta": SAME_OBJECTIVE[:1],
           "albert": ["remove=objective.sentence_order", "objective.masked_lm.unit=token", *SAME_OBJECTIVE,
                      "training.optimizer.kind=adamw"]}


def write_data(recipe: str, folder: Path) -> None:
    import numpy as np

    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    blocks = zipf_corpus(folder, VOCABULARIES[recipe], special, LENGTH - 2)
    np.save(folder / "blocks.npy", np.pad(blocks, ((0, 0), (1, 1)), constant_values=((0, 0), (2, 3))))


def build_peer(recipe: str, folder: Path) -> tuple[Any, Any]:
    from transformers import AutoConfig, AutoModelForMaskedLM, BertTokenizerFast, DataCollatorForLanguageModeling

    tokenizer = BertTokenizerFast(vocab=str(folder / "vocabulary" / "vocab.txt"))
    config = AutoConfig.for_model(recipe, vocab_size=VOCABULARIES[recipe], hidden_size=WIDTH, num_hidden_layers=LAYERS,
                                  num_attention_heads=HEADS, intermediate_size=4 * WIDTH, **SETTINGS[recipe])
    network = AutoModelForMaskedLM.from_config(config, attn_implementation="sdpa")
    return network, DataCollatorForLanguageModeling(tokenizer, mlm_probability=0.15)


if __name__ == "__main__":
    goal = "at least 4x the fp32 peer and 2.5x the bf16 one, at most 0.6x the memory"
    main({recipe: Comparison(Path(__file__), f"{recipe}@mini", CHANGES[recipe], batch=32,
                             write_data=partial(write_data, recipe), build_peer=partial(build_peer, recipe), goal=goal)
          for recipe in VOCABULARIES}, __doc__)
