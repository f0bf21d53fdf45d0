"""ELMo (arXiv:1802.05365) as its released code has it, one word and one step at a time, in double precision.

A word is a row of symbols: 258, its bytes, 259, and 260 up to the end; <S> and </S> have the symbol 256 and 257 in
place of bytes. Filters over all windows of a row, the largest value of each, ReLU, two highway layers, a projection.
Then two LSTMs for each direction, cell and projection clipped; the second one's input is added to its output.

Weights are a dictionary with the names and shapes of the released HDF5 files; y = x W.
Dropout is a function that is applied to the embedding, to each direction's input of the second and further layers, and
to its output, and is called as drop(place, x).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

Weights = dict[str, Tensor]
Dropout = Callable[[tuple[object, ...], Tensor], Tensor]


def no_dropout(place: tuple[object, ...], x: Tensor) -> Tensor:
    return x


def symbols(word: str, longest: int) -> list[int]:
    middle = {"<S>": [256], "</S>": [257]}.get(word, list(word.encode()[:longest - 2]))
    row = [258, *middle, 259]
    return row + [260] * (longest - len(row))


def word_vector(row: Sequence[int], weights: Weights) -> Tensor:
    characters = [weights["char_embed"][symbol] for symbol in row]
    values = []
    filters = 0
    while f"CNN/W_cnn_{filters}" in weights:
        kernel, bias = weights[f"CNN/W_cnn_{filters}"][0], weights[f"CNN/b_cnn_{filters}"]
        for number in range(kernel.shape[2]):
            best = torch.tensor(-math.inf, dtype=bias.dtype)
            for start in range(len(row) - len(kernel) + 1):
                score = bias[number]
                for offset in range(len(kernel)):
                    score = score + characters[start + offset] @ kernel[offset, :, number]
                best = torch.maximum(best, score)
            values.append(best.relu())
        filters += 1
    x = torch.stack(values)
    layer = 0
    while f"CNN_high_{layer}/W_carry" in weights:
        gate = torch.sigmoid(x @ weights[f"CNN_high_{layer}/W_carry"] + weights[f"CNN_high_{layer}/b_carry"])
        new = (x @ weights[f"CNN_high_{layer}/W_transform"] + weights[f"CNN_high_{layer}/b_transform"]).relu()
        x = gate * new + (1 - gate) * x
        layer += 1
    return x @ weights["CNN_proj/W_proj"] + weights["CNN_proj/b_proj"]


State = tuple[Tensor, Tensor]


def lstm_step(x: Tensor, state: State, weights: Weights, name: str, clip: float) -> State:
    output, cell = state
    gates = torch.cat([x, output]) @ weights[f"{name}/W_0"] + weights[f"{name}/B"]
    enter, candidate, forget, leave = gates.chunk(4)
    cell = torch.sigmoid(forget + 1) * cell + torch.sigmoid(enter) * torch.tanh(candidate)
    cell = cell.clamp(-clip, clip)
    output = (torch.sigmoid(leave) * torch.tanh(cell)) @ weights[f"{name}/W_P_0"]
    return output.clamp(-clip, clip), cell


def read(vectors: Sequence[Tensor], weights: Weights, direction: int, layers: int, skip: bool, clip: float,
         states: list[State] | None = None, drop: Dropout = no_dropout) -> tuple[list[list[Tensor]], list[State]]:
    """One direction over vectors in its reading order: the outputs of each layer, and its last states."""
    outputs, last = [], []
    for layer in range(layers):
        name = f"RNN_{direction}/RNN/MultiRNNCell/Cell{layer}/LSTMCell"
        width, cells = weights[f"{name}/W_P_0"].shape[1], weights[f"{name}/W_P_0"].shape[0]
        zeros = (torch.zeros(width, dtype=vectors[0].dtype), torch.zeros(cells, dtype=vectors[0].dtype))
        state = zeros if states is None else states[layer]
        above = []
        for step, x in enumerate(vectors):
            x = drop((direction, layer, step), x) if layer else x
            state = lstm_step(x, state, weights, name, clip)
            above.append(state[0] + x if skip and layer else state[0])
        outputs.append(above)
        last.append(state)
        vectors = above
    return outputs, last


def layers_of(words: Sequence[str], weights: Weights, layers: int, longest: int, skip: bool = True,
              clip: float = 3.0) -> list[list[Tensor]]:
    """The hidden states of a sentence: the word vectors twice, then both directions' outputs of every layer."""
    vectors = [word_vector(symbols(word, longest), weights) for word in words]
    forward, _ = read(vectors, weights, 0, layers, skip, clip)
    backward, _ = read(vectors[::-1], weights, 1, layers, skip, clip)
    lowest = [torch.cat([x, x]) for x in vectors]
    return [lowest, *([torch.cat([a, b]) for a, b in zip(ahead, behind[::-1], strict=True)]
                      for ahead, behind in zip(forward, backward, strict=True))]


def cross_entropy(hidden: Tensor, output: Tensor, bias: Tensor, label: int) -> Tensor:
    logits = torch.stack([hidden @ output[token] + bias[token] for token in range(len(output))])
    return logits.logsumexp(0) - logits[label]


def draw_sample(uniform: Sequence[float], count: int, vocabulary: int) -> tuple[list[int], int]:
    """Log-uniform draws until there are `count` distinct ids, and how many draws that took."""
    distinct: list[int] = []
    for draws, value in enumerate(uniform, start=1):
        token = 0
        while math.log(token + 2) / math.log(vocabulary + 1) <= value:  # the distribution function at the token
            token += 1
        if token not in distinct:
            distinct.append(token)
        if len(distinct) == count:
            return distinct, draws
    raise AssertionError("too few draws")


def sampled_cross_entropy(hidden: Tensor, output: Tensor, bias: Tensor, label: int, sample: Sequence[int],
                          draws: int) -> Tensor:
    """The label against the sample; from each logit the logarithm of the probability that its token is drawn."""
    def corrected(token: int) -> Tensor:
        probability = math.log((token + 2) / (token + 1)) / math.log(len(output) + 1)
        return hidden @ output[token] + bias[token] - math.log(1 - (1 - probability) ** draws)

    others = [corrected(token) for token in sample if token != label]
    return torch.stack([corrected(label), *others]).logsumexp(0) - corrected(label)


def mix(layers: Sequence[Sequence[Tensor]], weights: Tensor, scale: float) -> list[Tensor]:
    """Equation 1: the layers of each word, weighted by a softmax, times a factor."""
    shares = [math.exp(weight) / sum(math.exp(other) for other in weights.tolist()) for weight in weights.tolist()]
    return [scale * sum(share * layer[word] for share, layer in zip(shares, layers, strict=True))
            for word in range(len(layers[0]))]
