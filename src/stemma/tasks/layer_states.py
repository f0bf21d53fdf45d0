"""Hidden states of a layer of a model: the input of embeddings of texts and tokens.

A network has layers 0 to L. Layer 0 is the output of its embedding, with positions; layer L is the last hidden state,
after a final norm. `static` is the vector of a token before positions and norm: the same one wherever the token is.
`mean` is the mean of layers 0 to L, as a layer mix of equal weights (ELMo, arXiv:1802.05365, section 3.2).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from stemma.corpus.seq2seq_rows import ENCODER
from stemma.errors import UserError
from stemma.model import Model
from stemma.network.inputs_outputs import Stream
from stemma.progress import progress_stage

Layer = int | str | None  # a number (negative: from the top), "static", "mean" or "all"; None: the last one

STATIC, MEAN, ALL = "static", "mean", "all"
BATCH_TOKENS = 8192


def parse_layer(text: str | int | None) -> Layer:
    """The layer that an option names."""
    if text is None or isinstance(text, int) or text in (STATIC, MEAN, ALL):
        return text
    try:
        return int(text)
    except ValueError:
        raise UserError(f'--layer is "{text}"; give a number (0 is the embedding, -1 the last layer), {STATIC}, {MEAN} '
                        f"or {ALL}.") from None


@torch.inference_mode()
def layer_states(model: Model, stream: Stream, layer: Layer = None) -> Tensor:
    """(layers, B, L, width) of the encoder, in fp32; there is one layer unless `layer` is "all"."""
    if layer is None:
        return model.network({ENCODER: stream})[ENCODER][None].float()
    if layer == STATIC:
        return model.network.embedding.static(stream)[None].float()
    output = model.network({ENCODER: stream}, keep_hidden_states=True)
    if ENCODER not in output.hidden_states:
        raise UserError(f"a body of kind {model.recipe.settings.network.depth.kind} does not return the outputs of its "
                        f"layers; leave out --layer, or set it to {STATIC}.")
    states = output.all_hidden_states(ENCODER)
    # adaptive computation time may stop a batch early: the output is that of all further steps, too
    states += [states[-1]] * (model.network.parts[ENCODER].layers + 1 - len(states))
    if isinstance(layer, int):
        if not -len(states) <= layer < len(states):
            raise UserError(f"--layer is {layer}, and {model.recipe.label} has the layers 0 (the embedding) to "
                            f"{len(states) - 1}; -1 is the last one.")
        return states[layer][None].float()
    widths = [state.shape[-1] for state in states]
    if len(set(widths)) > 1:
        raise UserError(f"--layer is {layer}, and the layers of {model.recipe.label} have different widths "
                        f"({', '.join(map(str, widths))}); choose one, from 0 to {len(states) - 1}.")
    stacked = torch.stack(states).float()
    return stacked.mean(0, keepdim=True) if layer == MEAN else stacked


def batches_of_layer_states(model: Model, rows: Sequence[Sequence[int]], extra_inputs: dict[str, list[Tensor]],
                            layer: Layer = None) -> Iterator[tuple[list[int], Tensor, Tensor]]:
    """(indices of rows, (layers, B, L, width) hidden states, (B, L) attention mask) of each batch. A batch contains
    rows of similar length, so there is little padding."""
    order = sorted(range(len(rows)), key=lambda i: len(rows[i]))
    start = 0
    with progress_stage("embedding", len(order), "texts") as work:
        while start < len(order):
            stop = start + 1
            while stop < len(order) and (stop + 1 - start) * len(rows[order[stop]]) <= BATCH_TOKENS:
                stop += 1
            indices = order[start:stop]
            inputs = {name: pad_sequence([arrays[i] for i in indices], batch_first=True)
                      for name, arrays in extra_inputs.items()}
            max_length = max(len(rows[i]) for i in indices)
            padding = [max_length - len(rows[i]) for i in indices]
            mask = torch.tensor([[1] * (max_length - missing) + [0] * missing for missing in padding])
            ids = torch.tensor([[*rows[i], *[0] * missing] for i, missing in zip(indices, padding, strict=True)])
            yield indices, layer_states(model, model.encoder_stream(ids, mask, inputs=inputs), layer), mask
            start = stop
            work.set_count(start)
