"""Fine-tuning of every architecture on every kind of task, at size tiny.

    python benchmarks/structures_table.py                      # all of it, on one thread
    python benchmarks/structures_table.py --only bart,t5 --steps 60

A model with random weights is fine-tuned on generated examples whose answers depend on single words. A cell has the
loss on held-out examples after fine-tuning and, after the slash, the baseline (the loss of predicting the label
frequencies). `learns` means that the loss is below the baseline, `predicts` that the saved folder was loaded and made a
prediction. If an architecture does not support a task, the cell has the error message.
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

ARCHITECTURES = ("bert", "gpt2", "xlnet", "t5", "bart", "unilm", "prefix-lm", "universal-transformer", "transformer-xl",
              "electra")
SEQ2SEQ = "seq2seq"
KINDS = (*toy_tasks.MAKERS, SEQ2SEQ)
INPUTS = {"classify": "the old clerk reads a letter", "regress": "the old clerk reads a letter",
         "tag": "the old clerk reads a letter", "pair": {"text_a": "the clerk", "text_b": "reads"},
         "rank": {"text_a": "clerk", "text_b": "reads"}, "choice": {"context": "so", "options": ["reads", "forgets"]},
         "qa": {"question": "what?", "context": "the clerk reads one missing leaf."}}
RELATIVE = ("xlnet", "transformer-xl")  # the head size is a separate setting
ADAFACTOR = ("t5",)  # the learning rate is relative to the size of each tensor


def size_changes(name: str) -> list[str]:
    """Recipe changes that make the model as small as the toy models of the tests."""
    decoder = stemma.recipe(f"{name}@tiny").settings.network.decoder is not None
    return [*(["network.decoder.layers=2"] if decoder else []),
            *(["network.attention.head_width=16"] if name in RELATIVE else [])]


def finetune_task(folder: Path, name: str, kind: str, steps: int) -> tuple[float, float, bool]:
    """(loss, baseline, whether the saved model predicts)"""
    start = folder / name
    if not start.exists():
        toy_tasks.save_model(start, f"{name}@tiny", *size_changes(name), "network.dropout=0.0")
    files = toy_tasks.write_sets(folder / "data", kind, train=192, dev=48)
    rate = 1e-2 if name in ADAFACTOR else 2e-3
    result = finetune(TaskArguments(kind, files), start, folder / f"{name}-{kind}", steps=steps,
                      changes=[f"training.learning_rate={rate}", "training.batch_size=16"])
    predictions = stemma.predict(stemma.load(folder / f"{name}-{kind}"), INPUTS[kind])
    return result["validation_loss"], result["baselines"]["task"], len(predictions) == 1


def finetune_pairs(folder: Path, name: str, data: Seq2SeqData, steps: int) -> tuple[float, float, bool]:
    """(loss, baseline, whether the saved model generates)"""
    start = toy_pairs.save_model(folder / f"{name}-start", name, *size_changes(name), "network.layers=2")
    result = seq2seq.finetune_seq2seq(start, data, folder / f"{name}-{SEQ2SEQ}", steps=steps, beams=1,
                                      changes=[toy_pairs.rate(name), "training.batch_size=8",
                                               "training.schedule={kind='linear'}"])
    (translation,) = stemma.translate(folder / f"{name}-{SEQ2SEQ}", ["ink lamp"])
    return result["validation_loss"], result["unigram_loss"], bool(translation.tokens)


def cell(run_finetune: Callable[[], tuple[float, float, bool]]) -> str:
    """The text of a cell of the table."""
    try:
        loss, baseline, predicts = run_finetune()
    except UserError as error:
        return f"refused: {error.message}" + "".join(f" {key} {problem}." for key, problem in error.problems)
    return f"{loss:.3f} / {baseline:.3f} {'learns' if loss < baseline else 'DOES NOT LEARN'}, " \
           f"{'predicts' if predicts else 'DOES NOT PREDICT'}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(ARCHITECTURES), help="architectures, separated by commas")
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--steps", type=int, default=240)
    options = parser.parse_args()
    torch.set_num_threads(1)
    kinds = options.kinds.split(",")
    print(f"| architecture | {' | '.join(kinds)} |\n|{'---|' * (len(kinds) + 1)}", flush=True)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        pairs = sorted(dict.fromkeys(toy_pairs.pairs(2000, longest=3)), key=lambda pair: " " not in pair[0])
        data = data_from_cli({"train": [toy_pairs.write_pairs(folder / "train.tsv", pairs[20:])],
                              "dev": [toy_pairs.write_pairs(folder / "dev.tsv", pairs[:20])]})
        for name in options.only.split(","):
            cells = [cell(lambda name=name, kind=kind: finetune_pairs(folder, name, data, options.steps)
                          if kind == SEQ2SEQ else finetune_task(folder, name, kind, options.steps)) for kind in kinds]
            print(f"| {name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
