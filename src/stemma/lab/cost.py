"""Time and memory of a recipe's network as the text grows: forward, and forward with backward.

The pass ends at the last hidden state: the heads cost the same at every position, and a model with a large vocabulary
would measure little else. For the same reason the backward pass computes no gradient of the token embedding, which is
as large as the vocabulary. Weights are random, tokens too; neither changes the time of a dense network. An
encoder-decoder reads and writes texts of the same length. fp32.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import torch

from stemma.device import choose_device
from stemma.errors import UserError
from stemma.lab.timing import TimedPass, choose_clock, measure, num_threads, power_law
from stemma.model import Model
from stemma.objectives import build_network
from stemma.recipe_loading import Recipe, recipe

logger = logging.getLogger(__name__)

FORWARD, TRAINING = "forward", "training"


def cost(recipes: Sequence[str | Recipe], lengths: Sequence[int], *, changes: Sequence[str] = (), batch: int = 1,
         backward: bool = False, rounds: int = 5, minutes: float = 5.0, threads: int | None = None) -> dict[str, Any]:
    """Seconds and peak bytes of a pass, for each recipe and length, and the exponents of their growth.

        stemma.cost(["bert@tiny", "transformer-xl@tiny"], [128, 256, 512])["exponents"]
    """
    resolved = [name if isinstance(name, Recipe) else recipe(name, changes) for name in recipes]
    lengths = sorted(set(lengths))
    _check(resolved, lengths, batch)
    device = choose_device()
    modes = (FORWARD, TRAINING) if backward else (FORWARD,)
    with num_threads(threads) as used_threads, torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        models = {item.label: Model(item, None, build_network(item).to(device)) for item in resolved}
        passes = [TimedPass((label, mode), length, _pass(model, length, batch, mode))
                  for label, model in models.items() for length in lengths for mode in modes]
        clock = choose_clock(device)
        measured_rounds = measure(passes, rounds, minutes, clock)
    by_key = {(*timed.group, timed.length): timed for timed in passes}
    rows, left_out = [], []
    for label in models:
        for length in lengths:
            row: dict[str, Any] = {"recipe": label, "length": length}
            for mode in modes:
                timed = by_key[label, mode, length]
                if timed.left_out is not None:
                    left_out.append({"recipe": label, "length": length, "mode": mode, "why": timed.left_out})
                    continue
                prefix = "" if mode == FORWARD else f"{mode}_"
                row |= {f"{prefix}seconds": timed.median_seconds, f"{prefix}bytes": timed.bytes,
                        f"{prefix}range": [min(timed.seconds), max(timed.seconds)]}
            if "seconds" in row:
                rows.append(row)
    if not rows:
        raise UserError("nothing was measured in this time; give more --minutes or shorter --lengths.")
    measures = [name for mode in modes for name in (("seconds", "bytes") if mode == FORWARD else
                                                    (f"{mode}_seconds", f"{mode}_bytes"))]
    return {"rows": rows, "exponents": {label: _exponents(rows, label, measures) for label in models},
            "last_exponents": {label: _exponents(rows, label, measures, last=2) for label in models},
            "left_out": left_out, "parameters": {label: model.parameter_count() for label, model in models.items()},
            "batch": batch, "rounds": measured_rounds, "threads": used_threads, "device": str(device),
            "clock": clock.name}


def _check(recipes: Sequence[Recipe], lengths: Sequence[int], batch: int) -> None:
    """Refuse what cannot be run, all problems at once."""
    if not recipes:
        raise UserError("no recipe is given; `stemma tree` lists all of them.")
    if not lengths or lengths[0] < 1 or batch < 1:
        raise UserError("lengths and batch must be 1 or more, such as --lengths 128,256,512.")
    problems = []
    for item in recipes:
        network = item.settings.network
        too_long = [length for length in lengths if network.max_length is not None and length > network.max_length]
        needed = [name for name, inputs in network.inputs.items() if not inputs.from_ids]
        if network.depth.counts:
            problems.append((item.label, "is a table of counts and has no forward pass; leave it out"))
        elif too_long:
            problems.append((item.label, f"has {network.max_length:,} positions, fewer than --lengths "
                             f"{', '.join(f'{length:,}' for length in too_long)}; take shorter lengths, or set "
                             f"network.position.maximum={max(too_long)}"))
        elif needed:
            problems.append((item.label, f"reads {', '.join(needed)} besides tokens, which random text does not have; "
                             "leave it out"))
    if problems:
        raise UserError("these recipes cannot be measured at these lengths", problems)


def _pass(model: Model, length: int, batch: int, mode: str) -> Callable[[], None]:
    """A function that runs the network on a random text."""
    ids = torch.randint(model.network.vocab_size, (batch, length))
    streams = model.streams(ids, decoder_input_ids=ids if model.is_encoder_decoder else None)
    network, last = model.network, model.network.last_part
    network.embedding.tokens.requires_grad_(False)

    def forward() -> None:
        network.eval()
        with torch.inference_mode():
            network(streams)

    def training() -> None:  # gradients add up in place, so they are no part of a pass's memory
        network.train()
        network(streams)[last].float().square().mean().backward()

    return forward if mode == FORWARD else training


def _exponents(rows: Sequence[dict[str, Any]], label: str, measures: Sequence[str],
               last: int | None = None) -> dict[str, float | None]:
    """The exponent of the length for each measure: over all lengths, or over the last ones."""
    result: dict[str, float | None] = {}
    for measure_name in measures:
        points = [(row["length"], row[measure_name]) for row in rows
                  if row["recipe"] == label and row.get(measure_name) is not None]
        points = points if last is None else points[-last:]
        fitted = power_law([[length] for length, _ in points], [value for _, value in points])
        result[measure_name] = None if fitted is None else fitted[0]
    return result
