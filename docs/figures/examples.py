"""The content of the figures: training examples as `stemma inspect` prints them, and attention masks of networks of the
recipes, taken from their attention scores.

The text is text.txt in this folder, and every word is one token, so that the figures are readable.
"""

from __future__ import annotations

import io
import json
import os
import tempfile
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

HERE = Path(__file__).parent
WORDS = ("tokenizer.kind=word", "tokenizer.vocab_size=300")


@contextmanager
def own_cache() -> Iterator[None]:
    """A temporary cache: the corpora of the figures are always built anew."""
    before = os.environ.get("STEMMA_CACHE")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["STEMMA_CACHE"] = folder
        try:
            yield
        finally:
            os.environ.pop("STEMMA_CACHE")
            if before is not None:
                os.environ["STEMMA_CACHE"] = before


def inspect(recipe: str, *changes: str, step: int = 0, examples: int = 1, seed: int = 0,
            corpus: Sequence[str | Path] = (HERE / "text.txt",), words: bool = True) -> dict[str, Any]:
    """What `stemma inspect RECIPE --json` prints."""
    from stemma.cli import main

    arguments = ["inspect", recipe, *(WORDS if words else ()), *changes, "--step", str(step), "--examples",
                 str(examples), "--seed", str(seed), "--json"]
    for option, path in zip(("--corpus", "--target"), corpus, strict=False):
        arguments += [option, str(path)]
    printed, notes = io.StringIO(), io.StringIO()
    with redirect_stdout(printed), redirect_stderr(notes):
        code = main(arguments)
    if code:
        raise SystemExit(f"stemma {' '.join(arguments)}\n{notes.getvalue()}")
    found: dict[str, Any] = json.loads(printed.getvalue())
    return found


def attention(recipe: str, *changes: str, length: int, decoder_length: int | None = None) -> dict[str, list[Any]]:
    """By part and layer, which positions attend to which: 1 where a network with random weights gives any
    probability."""
    import torch

    import stemma

    model = stemma.build(recipe, vocab_size=300, changes=list(changes))
    options = {} if decoder_length is None else {"decoder_input_ids": torch.arange(decoder_length)[None]}
    found = model.attentions(torch.arange(length)[None], **options)
    return {part: [(layer[0, 0] > 0).int().tolist() for layer in layers] for part, layers in found.items()}


def visible(segments: int, length: int) -> list[list[list[int]]]:
    """By segment, what Transformer-XL attends to in training: (queries, memory and own positions)."""
    import torch

    import stemma
    from stemma.network.inputs_outputs import Stream
    from stemma.visibility import Causal

    changes = [f"network.memory.length={length}", f"corpus.sequence_length={length}"]
    network = stemma.build("transformer-xl@tiny", vocab_size=300, changes=changes).network.train()
    state, found = None, []
    for _ in range(segments):
        stream = Stream(torch.arange(length)[None], Causal())
        hidden = network({"encoder": stream}, state=state, keep_attention_scores=True)
        scores = hidden.attention_scores["encoder"][0][0, 0]
        found.append((scores > torch.finfo(scores.dtype).min / 2).int().tolist())
        state = hidden.state
    return found


def depth_of(length: int) -> list[int]:
    """How many steps a Universal Transformer with random weights takes at each position, of six at most."""
    import torch

    import stemma
    from stemma.network.inputs_outputs import Stream
    from stemma.visibility import Causal

    torch.manual_seed(0)
    changes = ["network.layers=6", "network.depth.halting.bias=-2.0"]
    network = stemma.build("universal-transformer@tiny", vocab_size=300, changes=changes).network
    with torch.no_grad():
        network.encoder.halting.unit.weight.normal_(0, 0.2)  # or all positions would halt alike before any training
        hidden = network({"encoder": Stream(torch.arange(length)[None], Causal())})
    return [round(taken) for taken in hidden.metrics["steps"][0].tolist()]
