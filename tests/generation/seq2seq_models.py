"""Small seq2seq models of every kind, with a tokenizer that has all special tokens they need."""

from __future__ import annotations

from functools import cache

import torch
from parity.reference import perturb

import stemma
from stemma.text.tokenizer import Tokenizer
from stemma.text.train_tokenizer import train_tokenizer

WORDS = [f"{first}{second}" for first in "bdfgklmn" for second in "aeiou"]
SMALL = ["network.layers=2", "network.width=32", "network.heads=2", "network.feedforward=48",
         "corpus.sequence_length=40"]
DECODER = [*SMALL, "network.decoder.layers=1"]
LEFT_TO_RIGHT = ["remove=objective.sequence_to_sequence"]
KINDS = {"transformer": DECODER, "t5": DECODER, "bart": DECODER, "mass": DECODER, "unilm": SMALL,
         "unilm, from the left": [*SMALL, *LEFT_TO_RIGHT], "prefix-lm": SMALL}
DECODERS = ("transformer", "t5", "bart", "mass")


@cache
def word_tokenizer() -> Tokenizer:
    return train_tokenizer(iter([" ".join(WORDS) + "\n"]), "word", 60, lowercase=False,
                           roles={"mask", "start", "separator", "begin", "end"})


def build_seq2seq_model(kind: str, seed: int = 0, *changes: str) -> stemma.Model:
    torch.manual_seed(seed)
    tokenizer = word_tokenizer()
    model = stemma.build(f"{kind.split(',')[0]}@tiny", tokenizer.vocab_size, [*KINDS[kind], *changes])
    perturb(model.network, seed)
    model.tokenizer = tokenizer
    return model


def sentences(*lengths: int, seed: int = 0) -> list[str]:
    generator = torch.Generator().manual_seed(seed)
    return [" ".join(WORDS[index] for index in torch.randint(len(WORDS), (length,), generator=generator))
            for length in lengths]
