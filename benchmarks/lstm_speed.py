"""Speed of one training pass through our LSTM layer against torch.nn.LSTM, on one core.

    taskset -c 0 python benchmarks/lstm_speed.py [ROUNDS [SIZE ...]]

Both sides get the same input in one process and take turns; the ratio is that of the medians (below 1: ours is faster).
torch.nn.LSTM may use everything it has (oneDNN's fused kernel). Weight dropout is compared with torch.nn.LSTM without
it: the mask must not cost the kernel. Projections and clipped cells: nn.LSTM with `proj_size`, which has no clipping.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn

from stemma.network.initialization import Initializer
from stemma.network.lstm_layer import LSTMLayer

# input width, cells, projection, rows, positions
SIZES = {"lstm-lm@tiny": (128, 128, None, 32, 64), "lstm-lm@mini": (256, 256, None, 32, 64),
         "lstm-lm@medium": (650, 650, None, 20, 35), "awd-lstm, layer 2": (1150, 1150, None, 40, 70),
         "elmo": (512, 4096, 512, 32, 20)}
Pass = Callable[[Tensor], None]


def training_pass(module: nn.Module) -> Pass:
    def run(x: Tensor) -> None:
        module(x)[0].sum().backward()
        module.zero_grad(set_to_none=True)

    return run


def contenders(input_width: int, cells: int, projection: int | None) -> dict[str, Pass]:
    def ours(**options: float) -> Pass:
        return training_pass(LSTMLayer(input_width, cells, Initializer(0.05), projection=projection, **options).train())

    reference = nn.LSTM(input_width, cells, batch_first=True, proj_size=projection or 0)
    passes = {"torch.nn.LSTM": training_pass(reference), "ours": ours(), "weight dropout": ours(weight_dropout=0.5)}
    return passes | ({"clipped": ours(cell_clip=3.0, projection_clip=3.0)} if projection else {})


def measure(passes: dict[str, Pass], x: Tensor, rounds: int) -> dict[str, float]:
    """The median seconds of each."""
    seconds: dict[str, list[float]] = {name: [] for name in passes}
    for number in range(rounds + 1):
        for name, run in passes.items():
            start = time.perf_counter()
            run(x)
            if number:  # the first round warms up
                seconds[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in seconds.items()}


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 11
    print(f"torch {torch.__version__}, one thread, forward and backward pass, medians of {rounds} rounds")
    for label in sys.argv[2:] or SIZES:
        input_width, cells, projection, rows, positions = SIZES[label]
        x = torch.randn(rows, positions, input_width, requires_grad=True)
        medians = measure(contenders(input_width, cells, projection), x, rounds)
        reference = medians.pop("torch.nn.LSTM")
        ratios = ", ".join(f"{name} {value / reference:.2f}" for name, value in medians.items())
        print(f"{label} ({rows} x {positions} x {input_width}): torch.nn.LSTM {reference * 1e3:,.1f} ms; {ratios}")


if __name__ == "__main__":
    main()
