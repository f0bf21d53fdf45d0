"""Fine-tuning against transformers.Trainer: the same checkpoint, examples, token ids, batch, rate, epochs and seeds.

    python benchmarks/finetune_vs_transformers.py --model CHECKPOINT --data FOLDER
    python benchmarks/finetune_vs_transformers.py --model CHECKPOINT --data FOLDER --tasks sst2,mrpc --seeds 1

CHECKPOINT is a Hugging Face folder (of BERT's family, without the pooled head's weights or with them). FOLDER holds
glue/{SST-2,MRPC,CoLA,STS-B}, ner/bc5cdr and squad2 in their official files, which are not part of this project. 2,000
training examples (500 questions at 256 tokens), 2 epochs, batch 32; of the dev set 1,000 examples at most, or 400
questions.

Quality: each side learns once a seed, and the same code reads both sides' answers from their logits and scores them.
Speed: sides take turns of 10 steps, as `side.py` has it. The peer is `Trainer` as its documentation shows, with filling
up to the longest row of a batch, once in fp32 and once with bf16=True; it may use all cores.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import tempfile
from itertools import product
from pathlib import Path
from typing import Any

from side import Side, compare, report, serve_loop, tell_peak, trainer_slices

TASKS = {"sst2": "glue/SST-2/{}.tsv", "mrpc": "glue/MRPC/{}.tsv", "cola": "glue/CoLA/{}.tsv",
         "stsb": "glue/STS-B/{}.tsv", "bc5cdr": "ner/bc5cdr/{}.txt", "squad2": "squad2/{}.json"}
KINDS = {"bc5cdr": "tag"}  # others go by their own names
EXAMPLES, QUESTIONS, DEV, DEV_QUESTIONS = 2000, 500, 1000, 400
BATCH, EPOCHS, WARMUP, DECAY = 32, 2, 0.1, 0.01
CLASSES = {"classify": "SequenceClassification", "pair": "SequenceClassification", "regress": "SequenceClassification",
           "tag": "TokenClassification", "qa": "QuestionAnswering"}
VERDICTS = {True: "yes", False: "NO", None: "not known from one seed"}
SIDES = {"ours": "stemma", "fp32": "transformers Trainer fp32", "bf16": "transformers Trainer bf16"}


class Contest:
    """A task in rows: the same for both sides."""

    def __init__(self, options: argparse.Namespace):
        from stemma.exchange.load import load
        from stemma.tasks.data.datasets import read_examples
        from stemma.tasks.learners import build_learner
        from stemma.tasks.learning import layout_of, lesson_of
        from stemma.tasks.prepare import Task, adapted, draw_card

        self.options, self.folder = options, options.model
        name = KINDS.get(options.task, options.task)
        files = {part: options.data / TASKS[options.task].format(part) for part in ("train", "dev")}
        read = {part: read_examples(name, file) for part, file in files.items()}
        limit = QUESTIONS if options.task == "squad2" else EXAMPLES
        chosen = random.Random(0).sample(read["train"], min(limit, len(read["train"])))
        held = DEV_QUESTIONS if options.task == "squad2" else DEV
        self.examples = {"train": chosen, "dev": read["dev"][:held], "test": []}
        self.model = load(options.model)
        length = 256 if options.task == "squad2" else 128
        self.changes = [f"training.batch_size={BATCH}", f"training.learning_rate={options.rate}",
                        f"corpus.sequence_length={length}", f"training.threads={options.threads}"]
        self.recipe = adapted(self.model).typed(self.changes)
        self.card = draw_card(Task(name, files), self.examples, self.model, self.recipe, "task")
        self.learner = build_learner(self.card, layout_of(self.card, self.model.needs_tokenizer()))
        self.lesson = lesson_of(self.learner, self.examples, BATCH)

    def steps(self) -> int:
        return EPOCHS * -(-len(self.lesson.train) // BATCH)

    def score(self, model: Any) -> float:
        """On the dev set, by the metric that decides; the threshold of no answer is tuned on it for both sides."""
        from stemma.tasks.learning import predict
        from stemma.tasks.scoring import best_silence, measure, settle

        dev = self.examples["dev"]
        said = predict(model, self.learner, dev)
        if self.card.values.get("silence"):
            said = settle(said, best_silence(self.card, dev, said))
        return float(measure(self.card, dev, said)[self.card.metrics[0]])


# --- ours -------------------------------------------------------------------------------------------------------------


def our_loop(contest: Contest, run: Path, steps: int, seed: int) -> tuple[Any, Any]:
    """(loop, model) as `stemma finetune` builds them."""
    import torch

    from stemma.exchange.model import Model
    from stemma.network.network import Network
    from stemma.tasks.batches import Lessons
    from stemma.tasks.finetune import Length
    from stemma.tasks.learning import heads_of, start_from
    from stemma.training.loop import Loop

    cards = {"task": contest.card}
    wanted, budget = Length(steps=steps).fit(contest.recipe, steps // EPOCHS, ())
    wanted = wanted.with_changes({"training.validate_every": steps, "training.checkpoint_every": steps}, "benchmark")
    torch.manual_seed(seed)
    network = Network(wanted.settings.network, contest.model.network.vocabulary, heads_of(cards))
    start_from(str(contest.folder), network, cards)
    model = Model(wanted, contest.model.tokenizer, network, cards=cards)
    run.mkdir(parents=True)
    supply = Lessons(model, [contest.lesson], seed, contest.card.longest)
    return Loop(run, wanted, supply, network, budget, seed, lambda text: None), model


def learn_ours(contest: Contest, folder: Path, seed: int) -> float:
    loop, model = our_loop(contest, folder, contest.steps(), seed)
    loop.train()
    model.network.eval()
    return contest.score(model)


def serve_ours(contest: Contest, folder: Path, steps: int) -> None:
    loop, _ = our_loop(contest, folder, 100_000, 0)
    serve_loop(loop, steps)
    os._exit(0)


# --- theirs -----------------------------------------------------------------------------------------------------------


def their_rows(contest: Contest) -> list[dict[str, Any]]:
    """Our rows as their collators take them."""
    made = []
    for item in contest.lesson.train:
        row = item.rows[0]
        told: dict[str, Any] = {"input_ids": row.ids.tolist(), "token_type_ids": row.segments.tolist(),
                                "attention_mask": [1] * len(row.ids)}
        if contest.card.kind == "tag":
            labels = [-100] * len(row.ids)
            for place, tag in zip(item.extra[0], item.answer, strict=True):
                labels[place] = int(tag)
            told["labels"] = labels
        elif contest.card.kind == "qa":
            told["start_positions"], told["end_positions"] = map(int, item.answer)
        else:
            told["labels"] = item.answer
        made.append(told)
    return made


def trainer(contest: Contest, folder: Path, steps: int, seed: int, bf16: bool, callbacks: list[Any]) -> Any:
    import logging
    import warnings

    import torch
    import transformers

    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(contest.options.threads)
    transformers.set_seed(seed)
    kind, labels = contest.card.kind, list(contest.card.labels)
    named = {} if kind == "qa" else {"num_labels": len(labels) or 1}
    named |= {"id2label": dict(enumerate(labels)), "label2id": {label: n for n, label in enumerate(labels)}} \
        if labels else {"problem_type": "regression"} if kind == "regress" else {}
    network = getattr(transformers, f"AutoModelFor{CLASSES[kind]}").from_pretrained(contest.folder, **named)
    tokenizer = transformers.AutoTokenizer.from_pretrained(contest.folder)
    collator = transformers.DataCollatorForTokenClassification(tokenizer) if kind == "tag" \
        else transformers.DataCollatorWithPadding(tokenizer)
    arguments = transformers.TrainingArguments(
        output_dir=str(folder), per_device_train_batch_size=BATCH, max_steps=steps, learning_rate=contest.options.rate,
        warmup_steps=int(WARMUP * min(steps, contest.steps())), weight_decay=DECAY, seed=seed, logging_steps=10**9,
        save_strategy="no", report_to=[], use_cpu=True, bf16=bf16, disable_tqdm=True)
    return transformers.Trainer(model=network, args=arguments, train_dataset=their_rows(contest),
                                data_collator=collator, processing_class=tokenizer, callbacks=callbacks)


def learn_theirs(contest: Contest, folder: Path, seed: int) -> float:
    from stemma.exchange.load import load

    made = trainer(contest, folder, contest.steps(), seed, bf16=False, callbacks=[])
    made.train()
    made.save_model(str(folder / "model"))
    return contest.score(load(folder / "model"))


def serve_theirs(contest: Contest, folder: Path, steps: int, bf16: bool) -> None:
    trainer(contest, folder, 100_000, 0, bf16, [trainer_slices(steps)]).train()
    tell_peak()
    os._exit(0)


# --- both -------------------------------------------------------------------------------------------------------------


def quality(contest: Contest, folder: Path, seeds: int, only: str | None) -> dict[str, Any]:
    learn = {"stemma": learn_ours, "Trainer": learn_theirs}
    scores: dict[str, list[float]] = {name: [] for name in learn if only in (None, name)}
    for seed in range(seeds):
        for name, found in scores.items():
            found.append(learn[name](contest, folder / f"{name}-{seed}", seed))
        print(f"seed {seed}: " + ", ".join(f"{name} {found[-1]:.4f}" for name, found in scores.items()), flush=True)
    told: dict[str, Any] = {
        name: {"mean": statistics.mean(found), "spread": statistics.stdev(found) if seeds > 1 else 0.0,
               "scores": found} for name, found in scores.items()}
    line = f"{contest.options.task}, {contest.card.metrics[0]} on {len(contest.examples['dev']):,} dev examples: " \
        + ", ".join(f"{name} {one['mean']:.4f} ± {one['spread']:.4f}" for name, one in told.items())
    if only is None:
        enough = told["stemma"]["mean"] >= told["Trainer"]["mean"] - told["Trainer"]["spread"] if seeds > 1 else None
        told["enough"] = enough  # one seed has no spread
        line += f"; not lower than Trainer's mean less one deviation: {VERDICTS[enough]}"
    print(line, flush=True)
    return {"metric": contest.card.metrics[0], **told}


def speed(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """A slice is the same number of steps, so of examples, on every side."""
    common = ["--model", str(options.model), "--data", str(options.data), "--task", options.task, "--rate",
              str(options.rate), "--threads", str(options.threads), "--steps", str(options.steps)]
    wanted = {side: name for side, name in SIDES.items() if side != "bf16" or not options.no_bf16}
    sides = [Side(name, Path(__file__), ["--side", side, "--folder", str(folder / side), *common])
             for side, name in wanted.items()]
    compare(sides, options.rounds)
    return report(sides, "examples", options.steps * BATCH)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="a Hugging Face folder to start from")
    parser.add_argument("--data", type=Path, required=True, help="the folder of the data sets")
    parser.add_argument("--tasks", default=",".join(TASKS))
    parser.add_argument("--seeds", type=int, default=3, help="0 leaves the scores out")
    parser.add_argument("--rate", type=float, default=1e-4)
    parser.add_argument("--rounds", type=int, default=20, help="slices of each side; 0 leaves the speed out")
    parser.add_argument("--steps", type=int, default=10, help="optimizer steps a slice")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--only", choices=["stemma", "Trainer"], help="the scores of one side alone")
    parser.add_argument("--no-bf16", action="store_true", help="leave the slow bf16 peer out")
    parser.add_argument("--out", type=Path, help="write the numbers here, as JSON")
    parser.add_argument("--task", help=argparse.SUPPRESS)
    parser.add_argument("--side", choices=list(SIDES), help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side == "ours":
        serve_ours(Contest(options), options.folder, options.steps)
    elif options.side:
        serve_theirs(Contest(options), options.folder, options.steps, options.side == "bf16")
    if unknown := [name for name in options.tasks.split(",") if name not in TASKS]:
        parser.error(f"no task {', '.join(unknown)}; there are {', '.join(TASKS)}")
    names = options.tasks.split(",")
    found: dict[str, Any] = {name: {} for name in names}
    # speed first: a child's peak memory counts what its parent held when it was started
    wanted = [what for what, asked in (("speed", options.rounds), ("quality", options.seeds)) if asked]
    with tempfile.TemporaryDirectory() as temporary:
        for what, name in product(wanted, names):
            options.task, folder = name, Path(temporary) / name
            print(f"\n{name}, {what}", flush=True)
            found[name][what] = speed(options, folder) if what == "speed" else \
                quality(Contest(options), folder, options.seeds, options.only)
            if options.out is not None:
                options.out.write_text(json.dumps(found, indent=1))
    print("wanted: scores not lower than Trainer's mean less one deviation, and 2x its examples a second")


if __name__ == "__main__":
    main()
