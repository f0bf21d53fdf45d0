"""Masked-LM training steps against transformers.Trainer, from the same token ids.

    python benchmarks/pretrain_vs_transformers.py
    python benchmarks/pretrain_vs_transformers.py --recipe albert

4 layers x 256, the family's own number of tokens, rows of 128, batch 32, AdamW; dropout 0.1 on both sides, for ALBERT
none (and one block for all layers, a table 128 wide). The peer is `Trainer` with the family's ...ForMaskedLM and
`DataCollatorForLanguageModeling`.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from trainer import HEADS, LAYERS, LENGTH, WIDTH, Contest, main, zipf_text

VOCABULARIES = {"bert": 30_522, "roberta": 50_265, "albert": 30_000}
# what else the peer's configuration says, so that both networks are the same
SETTINGS: dict[str, dict[str, Any]] = {
    "bert": {}, "roberta": {"type_vocab_size": 1, "max_position_embeddings": 514, "layer_norm_eps": 1e-5},
    "albert": {"embedding_size": 128}}
# one task on both sides: single tokens are hidden, anew each time, in rows of one document
ALIKE = ["corpus.packing=doc_sentences", "objective.masked_lm.dynamic=true"]
CHANGES = {"bert": ["remove=objective.next_sentence", *ALIKE], "roberta": ALIKE[:1],
           "albert": ["remove=objective.sentence_order", "objective.masked_lm.unit=token", *ALIKE,
                      "training.optimizer.kind=adamw"]}


def text(recipe: str, folder: Path) -> None:
    import numpy as np

    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    blocks = zipf_text(folder, VOCABULARIES[recipe], special, LENGTH - 2)
    np.save(folder / "blocks.npy", np.pad(blocks, ((0, 0), (1, 1)), constant_values=((0, 0), (2, 3))))


def peer(recipe: str, folder: Path) -> tuple[Any, Any]:
    from transformers import AutoConfig, AutoModelForMaskedLM, BertTokenizerFast, DataCollatorForLanguageModeling

    tokenizer = BertTokenizerFast(vocab=str(folder / "vocabulary" / "vocab.txt"))
    config = AutoConfig.for_model(recipe, vocab_size=VOCABULARIES[recipe], hidden_size=WIDTH, num_hidden_layers=LAYERS,
                                  num_attention_heads=HEADS, intermediate_size=4 * WIDTH, **SETTINGS[recipe])
    network = AutoModelForMaskedLM.from_config(config, attn_implementation="sdpa")
    return network, DataCollatorForLanguageModeling(tokenizer, mlm_probability=0.15)


if __name__ == "__main__":
    wanted = "wanted: at least 4x the fp32 peer and 2.5x the bf16 one, at no more than 0.6x the memory"
    main({recipe: Contest(Path(__file__), f"{recipe}@mini", CHANGES[recipe], batch=32, text=partial(text, recipe),
                          peer=partial(peer, recipe), wanted=wanted) for recipe in VOCABULARIES}, __doc__)
