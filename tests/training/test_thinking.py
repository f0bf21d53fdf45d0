"""A Universal Transformer with halting learns to turn digits round, and thinks longer where there is more to do.

The first digit of the answer is the one read last, right before; every other one has to be found at its mirrored place.
"""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
import torch

import stemma
from stemma.corpus.build import build_corpus
from stemma.network.streams import Stream
from stemma.text.train import train_tokenizer
from stemma.visibility import Causal

CHANGES = ["corpus.packing=sentence_pair", "objective.causal_lm.scored=second", "corpus.single=A end",
           "corpus.pair=A separator B end", "corpus.sequence_length=16", "network.layers=6", "network.width=64",
           "network.heads=4", "network.feedforward=256", "network.dropout=0.0", "network.depth.halting.cost=0.001",
           "training.batch_size=64", "training.schedule.kind=linear", "training.clip_norm=1.0", "training.threads=1",
           "training.spike_factor=100.0", "training.checkpoint_every=100000", "training.validate_every=100000"]


def digits(rng: random.Random) -> list[str]:
    return [rng.choice("0123456789") for _ in range(rng.randint(2, 6))]


def corpus_of_reversals(folder: Path) -> Path:
    rng = random.Random(0)
    rows = [digits(rng) for _ in range(20_000)]
    text = folder / "text.txt"
    text.write_text("\n\n".join(f"{' '.join(row)}\n{' '.join(row[::-1])}" for row in rows))
    tokenizer = train_tokenizer(iter([text.read_text()]), "word", 20, lowercase=False, roles={"end", "separator"})
    tokenizer.save(folder / "tokenizer")
    build_corpus([text], folder / "tokenizer", folder / "corpus", workers=1, sentences="line")
    return folder / "corpus"


@pytest.mark.slow
def test_digits_are_turned_round_with_more_steps_where_they_are_needed(tmp_path):
    recipe = stemma.recipe("universal-transformer@tiny", CHANGES)
    result = stemma.pretrain(recipe, corpus=corpus_of_reversals(tmp_path), out=tmp_path / "run", steps=1500)
    model = stemma.load(tmp_path / "run")
    encode = model.tokenizer.encode
    separator = model.tokenizer.role("separator")
    rng = random.Random(1)
    right, first, later = [], [], []
    for _ in range(300):
        row = digits(rng)
        given, wanted = (encode(" ".join(part), special=False).ids for part in (row, row[::-1]))
        with torch.inference_mode():
            hidden = model.network({"encoder": Stream(torch.tensor([[*given, separator, *wanted]]), Causal())})
            guessed = model.token_head()(hidden["encoder"])[0].argmax(-1).tolist()
        right.append(guessed[len(given):-1] == wanted)
        steps = hidden.measures["steps"][0].tolist()
        first.append(steps[len(given)])
        later += steps[len(given) + 1:-1]
    print(f"exact {np.mean(right):.3f}, steps {np.mean(first):.2f} and {np.mean(later):.2f}, "
          f"validation loss {result['validation_loss']:.4f} (unigram {result['unigram_loss']:.2f})")
    assert np.mean(right) > 0.95
    assert np.mean(later) > np.mean(first) + 0.5
