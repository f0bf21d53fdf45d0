"""Every structure on every kind of task, at `tiny`: does it learn, and does it answer?

    python benchmarks/structures_table.py                      # all of it, on one thread
    python benchmarks/structures_table.py --only bart,t5 --steps 60

A model with random weights is fine-tuned on a few generated examples whose answers can be told from single words. A
cell shows the loss on held-out examples after the fine-tune and, behind the slash, its baseline: what one would lose
who knows only how often each answer occurs. `learns` says that the loss is below it, `predicts` that the saved folder
was loaded and answered. What a structure cannot do stands there as the sentence that refuses it.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

import toy_pairs  # noqa: E402
import toy_tasks  # noqa: E402

import stemma  # noqa: E402
from stemma.errors import UserError  # noqa: E402
from stemma.tasks.runs import seq2seq  # noqa: E402
from stemma.tasks.runs.finetune import TaskArguments, finetune  # noqa: E402
from stemma.tasks.runs.seq2seq_data import Seq2SeqData, data_from_cli  # noqa: E402

STRUCTURES = ("bert", "gpt2", "xlnet", "t5", "bart", "unilm", "prefix-lm", "universal-transformer", "transformer-xl",
              "electra")
WRITTEN = "seq2seq"
KINDS = (*toy_tasks.MAKERS, WRITTEN)
ASKED = {"classify": "the old clerk reads a letter", "regress": "the old clerk reads a letter",
         "tag": "the old clerk reads a letter", "pair": {"text_a": "the clerk", "text_b": "reads"},
         "rank": {"text_a": "clerk", "text_b": "reads"}, "choice": {"context": "so", "options": ["reads", "forgets"]},
         "qa": {"question": "what?", "context": "the clerk reads one missing leaf."}}
RELATIVE = ("xlnet", "transformer-xl")  # whose heads' width is a setting of its own
BY_SIZE = ("t5",)  # learns at shares of each tensor's size (Adafactor)


def sizes(name: str) -> list[str]:
    decoder = stemma.recipe(f"{name}@tiny").settings.network.decoder is not None
    return [*(["network.decoder.layers=2"] if decoder else []),
            *(["network.attention.head_width=16"] if name in RELATIVE else [])]


def task(folder: Path, name: str, kind: str, steps: int) -> tuple[float, float, bool]:
    """(loss, baseline, whether it predicts)"""
    start = folder / name
    if not start.exists():
        toy_tasks.save_model(start, f"{name}@tiny", *sizes(name), "network.dropout=0.0")
    files = toy_tasks.write_sets(folder / "data", kind, train=192, dev=48)
    rate = 1e-2 if name in BY_SIZE else 2e-3
    result = finetune(TaskArguments(kind, files), start, folder / f"{name}-{kind}", steps=steps,
                      changes=[f"training.learning_rate={rate}", "training.batch_size=16"])
    said = stemma.predict(stemma.load(folder / f"{name}-{kind}"), ASKED[kind])
    return result["validation_loss"], result["baselines"]["task"], len(said) == 1


def pairs(folder: Path, name: str, data: Seq2SeqData, steps: int) -> tuple[float, float, bool]:
    start = toy_pairs.save_model(folder / f"{name}-writer", name, *sizes(name), "network.layers=2")
    result = seq2seq.finetune_seq2seq(start, data, folder / f"{name}-{WRITTEN}", steps=steps, beams=1,
                              changes=[toy_pairs.rate(name), "training.batch_size=8",
                                       "training.schedule={kind='linear'}"])
    (written,) = stemma.translate(folder / f"{name}-{WRITTEN}", ["ink lamp"])
    return result["validation_loss"], result["unigram_loss"], bool(written.tokens)


def told(work: Callable[[], tuple[float, float, bool]]) -> str:
    try:
        loss, baseline, predicts = work()
    except UserError as error:
        return f"refused: {error.message}" + "".join(f" {place} {why}." for place, why in error.problems)
    return f"{loss:.3f} / {baseline:.3f} {'learns' if loss < baseline else 'DOES NOT LEARN'}, " \
           f"{'predicts' if predicts else 'DOES NOT PREDICT'}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(STRUCTURES), help="structures, with commas between them")
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--steps", type=int, default=240)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    kinds = chosen.kinds.split(",")
    print(f"| structure | {' | '.join(kinds)} |\n|{'---|' * (len(kinds) + 1)}", flush=True)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        every = sorted(dict.fromkeys(toy_pairs.pairs(2000, longest=3)), key=lambda pair: " " not in pair[0])
        data = data_from_cli({"train": [toy_pairs.write_pairs(folder / "train.tsv", every[20:])],
                         "dev": [toy_pairs.write_pairs(folder / "dev.tsv", every[:20])]})
        for name in chosen.only.split(","):
            cells = [told(lambda name=name, kind=kind: pairs(folder, name, data, chosen.steps) if kind == WRITTEN
                          else task(folder, name, kind, chosen.steps)) for kind in kinds]
            print(f"| {name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
