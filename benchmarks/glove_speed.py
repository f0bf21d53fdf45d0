"""Speed of GloVe's steps: pairs per second of ours, of the plain loops of `tests/literal/glove.py`, and of the least
work that memory allows.

    python benchmarks/glove_speed.py [--words 12000] [--width 100] [--pairs 1000000]

The limit copies the rows that a step must read and write, two of vectors and two of sums of squares for each pair, in
updates of the same size, and computes nothing. Alternating rounds on one thread, medians.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from stemma.training.glove import train_pairs
from stemma.training.vector_method_kinds import GloveSettings

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--words", type=int, default=12_000)
    parser.add_argument("--width", type=int, default=100)
    parser.add_argument("--pairs", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    rng = np.random.default_rng(0)
    words, columns = arguments.words, arguments.width + 2
    size = min(words, max(1, 6_000_000 // words))  # pairs on a diagonal: 6 million in all, as in ten megabytes of text
    cuts = np.append(np.arange(0, arguments.pairs, size), arguments.pairs)
    parts = [(rng.permutation(words)[:stop - start], rng.permutation(words)[:stop - start])
             for start, stop in zip(cuts.tolist(), cuts[1:].tolist(), strict=False)]
    rows, others = (np.concatenate([part[side] for part in parts]) for side in (0, 1))
    counts = rng.pareto(1.0, arguments.pairs) + 0.1
    arrays = [rng.normal(0, 0.01, (words, columns)).astype(np.float32) for _ in range(2)]
    squares = [np.ones((words, columns), np.float32) for _ in range(2)]
    arrays[0][:, -1] = arrays[1][:, -2] = 1.0
    squares[0][:, -1] = squares[1][:, -2] = np.inf
    model: Any = SimpleNamespace(left=arrays[0], right=arrays[1], left_squares=squares[0], right_squares=squares[1],
                                 learning_rate=0.05, settings=GloveSettings(kind="glove", epochs=1, unit="document"))

    def ours() -> float:
        train_pairs(model, rows, others, counts, cuts)
        return arguments.pairs

    def limit() -> float:
        for start, stop in zip(cuts.tolist(), cuts[1:].tolist(), strict=False):
            for array, index in ((arrays[0], rows), (squares[0], rows), (arrays[1], others), (squares[1], others)):
                array[index[start:stop]] = array.take(index[start:stop], 0)
        return arguments.pairs

    def literal() -> float:
        from literal.glove import LiteralGlove

        number = max(1, arguments.pairs // 1000)
        used = {int(word) for word in (*rows[:number], *others[:number])}
        plain = LiteralGlove({word: arrays[0][word, :-2].tolist() for word in used},
                             {word: arrays[1][word, :-2].tolist() for word in used}, 100.0, 0.75, 0.05)
        start = time.process_time()
        for row, other, count in zip(rows[:number].tolist(), others[:number].tolist(), counts.tolist(), strict=False):
            plain.train(row, other, count)
        return number / (time.process_time() - start)

    speeds: dict[str, list[float]] = {"ours": [], "limit": [], "literal": []}
    for _ in range(arguments.rounds):
        for name, side in (("ours", ours), ("limit", limit)):
            start = time.process_time()  # of this thread's work: other programs may run
            speeds[name].append(side() / (time.process_time() - start))
        speeds["literal"].append(literal())
    medians = {name: statistics.median(values) for name, values in speeds.items()}
    print(json.dumps({"pairs_per_second": medians, "of_the_limit": medians["ours"] / medians["limit"],
                      "times_the_loops": medians["ours"] / medians["literal"], "pairs_in_an_update": size}))


if __name__ == "__main__":
    main()
