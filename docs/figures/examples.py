"""Content of the figures: training examples as `stemma inspect` prints them, and attention masks computed from the
attention scores of networks with random weights.

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
def temporary_cache() -> Iterator[None]:
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
            corpus: Sequence[str | Path] = (HERE / "text.txt",), word_tokens: bool = True) -> dict[str, Any]:
    """The output of `stemma inspect RECIPE --json`. `word_tokens`: every word is one token."""
    from stemma.cli import main

    arguments = ["inspect", recipe, *(WORDS if word_tokens else ()), *changes, "--step", str(step), "--examples",
                 str(examples), "--seed", str(seed), "--json"]
    for option, path in zip(("--corpus", "--target"), corpus, strict=False):
        arguments += [option, str(path)]
    stdout, stderr = io.StringIO(), io.StringIO()
    with redirect_stdout(stdout), redirect_stderr(stderr):
        code = main(arguments)
    if code:
        raise SystemExit(f"stemma {' '.join(arguments)}\n{stderr.getvalue()}")
    output: dict[str, Any] = json.loads(stdout.getvalue())
    return output


def attention_masks_of(recipe: str, *changes: str, length: int,
                       decoder_length: int | None = None) -> dict[str, list[Any]]:
    """Attention masks by part and layer: 1 if a network with random weights gives the key any probability."""
    import torch

    import stemma

    model = stemma.build(recipe, vocab_size=300, changes=list(changes))
    options = {} if decoder_length is None else {"decoder_input_ids": torch.arange(decoder_length)[None]}
    attentions = model.attentions(torch.arange(length)[None], **options)
    return {part: [(layer[0, 0] > 0).int().tolist() for layer in layers] for part, layers in attentions.items()}


def memory_attention_masks(num_segments: int, length: int) -> list[list[list[int]]]:
    """Attention masks of Transformer-XL in training, by segment: (queries, memory and text positions)."""
    import torch

    import stemma
    from stemma.network.inputs_outputs import Stream
    from stemma.visibility import Causal

    changes = [f"network.memory.length={length}", f"corpus.sequence_length={length}"]
    network = stemma.build("transformer-xl@tiny", vocab_size=300, changes=changes).network.train()
    state, masks = None, []
    for _ in range(num_segments):
        stream = Stream(torch.arange(length)[None], Causal())
        output = network({"encoder": stream}, state=state, keep_attention_scores=True)
        scores = output.attention_scores["encoder"][0][0, 0]
        masks.append((scores > torch.finfo(scores.dtype).min / 2).int().tolist())
        state = output.state
    return masks


def act_steps(length: int) -> list[int]:
    """Number of steps, at most six, that a Universal Transformer with random weights takes at each position."""
    import torch

    import stemma
    from stemma.network.inputs_outputs import Stream
    from stemma.visibility import Causal

    torch.manual_seed(0)
    changes = ["network.layers=6", "network.depth.halting.bias=-2.0"]
    network = stemma.build("universal-transformer@tiny", vocab_size=300, changes=changes).network
    with torch.no_grad():
        network.encoder.halting.unit.weight.normal_(0, 0.2)  # otherwise all positions halt at the same step
        output = network({"encoder": Stream(torch.arange(length)[None], Causal())})
    return [round(steps) for steps in output.metrics["steps"][0].tolist()]
