"""Fine-tuning against transformers.Trainer, paired: both sides learn from the same start by the same steps.

    python benchmarks/finetune_vs_transformers.py --model CHECKPOINT --data FOLDER
    python benchmarks/finetune_vs_transformers.py --model CHECKPOINT --data FOLDER --rounds 0 --log scores.jsonl
    python benchmarks/finetune_vs_transformers.py --model CHECKPOINT --data FOLDER --rounds 0 --dropout 0 --seeds 1

CHECKPOINT is a Hugging Face folder of BERT's family. FOLDER holds glue/{SST-2,MRPC,CoLA,STS-B}, ner/bc5cdr and squad2
in their official files, which are not part of this project.

Scores (`--rounds 0` measures nothing else): the two sides of a seed have the same token ids, initial weights (the new
head's too), batches in the same order, learning rate at every step, AdamW with the same epsilon, clipping, fp32 and
number of threads. What differs is the dropout masks they draw; with `--dropout 0` nothing does. The same code reads
both sides' answers from their logits and scores them. The table has the paired differences with their mean, standard
deviation, t and 95% interval. With `--log` each pair is appended to a file when it is known, and pairs that are there
are not made again; all tasks of a seed come before the next seed.

Speed: sides take turns of 10 steps, as `side.py` has it. The peer is `Trainer` as its documentation shows, with padding
up to the longest row of a batch, once in fp32 and once with bf16=True; it may use all cores.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import shutil
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

from side import Side, compare, report, serve_loop, tell_peak, trainer_slices

TASKS = {"sst2": "glue/SST-2/{}.tsv", "mrpc": "glue/MRPC/{}.tsv", "cola": "glue/CoLA/{}.tsv",
         "stsb": "glue/STS-B/{}.tsv", "bc5cdr": "ner/bc5cdr/{}.txt", "squad2": "squad2/{}.json"}
KINDS = {"bc5cdr": "tag"}  # others go by their own names
WARMUP, DECAY, CLIP, EPSILON = 0.1, 0.01, 1.0, 1e-8
CLASSES = {"classify": "SequenceClassification", "pair": "SequenceClassification", "regress": "SequenceClassification",
           "tag": "TokenClassification", "qa": "QuestionAnswering"}
SIDES = {"ours": "stemma", "fp32": "transformers Trainer fp32", "bf16": "transformers Trainer bf16"}


class Contest:
    """A task in rows: the same for both sides."""

    def __init__(self, options: argparse.Namespace):
        from stemma.exchange.load import load
        from stemma.tasks.datasets import read_examples
        from stemma.tasks.runs.build_objective import build_task_objective
        from stemma.tasks.runs.finetune import TaskArguments, build_task_config, finetune_recipe
        from stemma.tasks.runs.finetune_run import input_encoder_for, task_dataset

        self.options, self.folder, self.task = options, options.model, options.task
        name = KINDS.get(options.task, options.task)
        files = {part: options.data / TASKS[options.task].format(part) for part in ("train", "dev")}
        read = {part: read_examples(name, file) for part, file in files.items()}
        draw = random.Random(0)
        self.examples = {part: draw.sample(read[part], min(limit, len(read[part])))
                         for part, limit in (("train", options.examples), ("dev", options.dev))} | {"test": []}
        self.model = load(options.model)
        # everything that a default could say is said here, so that both sides have it
        self.changes = [f"training.batch_size={options.batch}", f"training.learning_rate={options.rate}",
                        "training.schedule.kind=linear", f"training.clip_norm={CLIP}", "training.optimizer.kind=adamw",
                        "training.optimizer.beta1=0.9", "training.optimizer.beta2=0.999",
                        f"training.optimizer.epsilon={EPSILON}", f"training.optimizer.weight_decay={DECAY}",
                        f"corpus.sequence_length={options.length}", f"training.threads={options.threads}"]
        if options.side is None:  # the scores, where both sides compute alike
            self.changes.append("training.precision=fp32")
        if options.dropout is not None:
            self.changes += [f"network.dropout={options.dropout}", f"network.attention.dropout={options.dropout}"]
        self.recipe = finetune_recipe(self.model).with_overrides(self.changes)
        self.card = build_task_config(TaskArguments(name, files), self.examples, self.model, self.recipe, "task")
        if options.dropout is not None:
            heads = {name: replace(head, dropout=options.dropout) if hasattr(head, "dropout") else head
                     for name, head in self.card.heads.items()}
            self.card = replace(self.card, heads=heads)
        self.learner = build_task_objective(self.card, input_encoder_for(self.card, self.model.require_tokenizer()))
        self.lesson = task_dataset(self.learner, self.examples, options.batch)

    def setting(self) -> dict[str, Any]:
        """What a pair of scores can be compared by."""
        options = self.options
        return {"task": self.task, "metric": self.card.metrics[0], "examples": len(self.examples["train"]),
                "dev": len(self.examples["dev"]), "steps": self.steps(), "batch": options.batch,
                "length": options.length, "rate": options.rate, "dropout": options.dropout}

    def batches(self, seed: int) -> list[list[int]]:
        """The numbers of the rows of every step, as our loop draws them."""
        from stemma.tasks.runs.finetune_loader import FinetuneLoader

        order = FinetuneLoader(self.model, [self.lesson], seed, self.card.longest)
        return [chosen.tolist() for epoch in range(self.options.epochs) for _, chosen in order._shuffled_batches(epoch)]

    def steps(self) -> int:
        return len(self.batches(0))

    def warmup(self) -> int:
        return int(WARMUP * self.steps())

    def factor(self, updates: int) -> float:
        """The share of the learning rate after so many updates. Ours begins at 1 / warm-up, where transformers' linear
        schedule spends its first update on a learning rate of 0; here both sides have ours."""
        from stemma.training.schedules import LinearSettings, lr_factor

        steps, warmup = self.steps(), self.warmup()
        return lr_factor(LinearSettings(kind="linear"), updates + 1, warmup, updates / steps,
                         max(warmup - 1, 0) / steps)

    def score(self, model: Any) -> float:
        """On the dev set, by the metric that decides; the threshold of no answer is tuned on it for both sides."""
        from stemma.tasks.kinds import head_task
        from stemma.tasks.runs.compute_metrics import compute_metrics
        from stemma.tasks.runs.finetune_run import predict_examples

        dev = self.examples["dev"]
        said = predict_examples(model, self.learner, dev)
        kind = head_task(self.card.kind)
        said = kind.apply_options(kind.tune(self.card, dev, said), said)
        return float(compute_metrics(self.card, dev, said)[self.card.metrics[0]])


# --- ours -------------------------------------------------------------------------------------------------------------


def our_loop(contest: Contest, run: Path, steps: int, seed: int) -> tuple[Any, Any]:
    """(loop, model) as `stemma finetune` builds them."""
    import torch

    from stemma.model import Model
    from stemma.network.network import Network
    from stemma.tasks.runs.common import TrainingLength
    from stemma.tasks.runs.finetune_loader import FinetuneLoader
    from stemma.tasks.runs.finetune_run import load_start_weights, task_head_specs
    from stemma.training.trainer import Trainer

    cards = {"task": contest.card}
    wanted, budget = TrainingLength(steps=steps).apply_to(contest.recipe, steps, ())
    wanted = wanted.with_changes({"training.warmup_steps": contest.warmup(), "training.log_every": 1,
                                  "training.validate_every": steps, "training.checkpoint_every": steps}, "benchmark")
    torch.manual_seed(seed)
    network = Network(wanted.settings.network, contest.model.network.vocab_size, task_head_specs(cards))
    load_start_weights(str(contest.folder), network, cards)
    model = Model(wanted, contest.model.tokenizer, network, task_configs=cards)
    run.mkdir(parents=True)
    supply = FinetuneLoader(model, [contest.lesson], seed, contest.card.longest)
    return Trainer(run, wanted, supply, network, budget, seed), model


def learn_ours(contest: Contest, folder: Path, seed: int) -> dict[str, Any]:
    """The score, and the loss of every step; what it starts from lies in `folder`/start."""
    from stemma.exchange.save import write_model

    loop, model = our_loop(contest, folder / "run", contest.steps(), seed)
    (folder / "start").mkdir()
    write_model(model, folder / "start")
    loop.train()
    model.network.eval()
    told = [json.loads(line) for line in (folder / "run" / "log.jsonl").read_text().splitlines()]
    steps = [line for line in told if "learning_rate" in line]
    expected = [contest.options.rate * contest.factor(step) for step in range(contest.steps())]
    assert all(math.isclose(line["learning_rate"], rate, rel_tol=1e-9)
               for line, rate in zip(steps, expected, strict=True)), "the sides' learning rates differ"
    return {"score": contest.score(model), "losses": [line["loss"] for line in steps]}


def serve_ours(contest: Contest, folder: Path, steps: int) -> None:
    loop, _ = our_loop(contest, folder, 100_000, 0)
    serve_loop(loop, steps)
    os._exit(0)


# --- theirs -----------------------------------------------------------------------------------------------------------


def their_rows(contest: Contest) -> list[dict[str, Any]]:
    """Our rows as their collators take them."""
    made = []
    for item in contest.lesson.train:
        row = item.sequences[0]
        told: dict[str, Any] = {"input_ids": row.input_ids.tolist(), "token_type_ids": row.segment_ids.tolist(),
                                "attention_mask": [1] * len(row.input_ids)}
        if contest.card.kind == "tag":
            labels = [-100] * len(row.input_ids)
            for place, tag in zip(item.decode_info[0], item.target, strict=True):
                labels[place] = int(tag)
            told["labels"] = labels
        elif contest.card.kind == "qa":
            told["start_positions"], told["end_positions"] = map(int, item.target)
        else:
            told["labels"] = item.target
        made.append(told)
    return made


def trainer(contest: Contest, folder: Path, steps: int, seed: int, bf16: bool = False, callbacks: Sequence[Any] = (),
            start: Path | None = None) -> Any:
    """Trainer as documented; with `start`, it begins with the new head that is there, and takes our batches in our
    order and our learning rates."""
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
    if contest.options.dropout is not None:
        named |= dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob", "classifier_dropout"),
                               contest.options.dropout)
    family = getattr(transformers, f"AutoModelFor{CLASSES[kind]}")
    network = family.from_pretrained(contest.folder, **named)
    if start is not None:
        begin_alike(network, family.from_pretrained(start))
    tokenizer = transformers.AutoTokenizer.from_pretrained(contest.folder)
    collator = transformers.DataCollatorForTokenClassification(tokenizer) if kind == "tag" \
        else transformers.DataCollatorWithPadding(tokenizer)
    arguments = transformers.TrainingArguments(
        output_dir=str(folder), per_device_train_batch_size=contest.options.batch, max_steps=steps,
        learning_rate=contest.options.rate,
        warmup_steps=contest.warmup(), lr_scheduler_type="linear", weight_decay=DECAY, adam_beta1=0.9, adam_beta2=0.999,
        adam_epsilon=EPSILON, max_grad_norm=CLIP, seed=seed, logging_steps=1 if start else 10**9,
        save_strategy="no", report_to=[], use_cpu=True, bf16=bf16, disable_tqdm=True)
    rows = their_rows(contest)

    class Paired(transformers.Trainer):
        def get_train_dataloader(self):
            return torch.utils.data.DataLoader(rows, batch_sampler=contest.batches(seed), collate_fn=collator)

        def create_scheduler(self, num_training_steps, optimizer=None):
            self.lr_scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer or self.optimizer, contest.factor)
            return self.lr_scheduler

    made = (transformers.Trainer if start is None else Paired)(
        model=network, args=arguments, train_dataset=rows, data_collator=collator, processing_class=tokenizer,
        callbacks=list(callbacks))
    made.remove_callback(transformers.PrinterCallback)
    return made


def begin_alike(network: Any, ours: Any) -> None:
    """The new head gets our weights; all others are the checkpoint's on both sides already."""
    import torch

    theirs, start = network.state_dict(), ours.state_dict()
    new = [name for name in theirs if name.startswith(("classifier.", "qa_outputs."))]
    assert new and theirs.keys() == start.keys()
    assert all(torch.equal(theirs[name], start[name]) for name in theirs if name not in new), "the bodies differ"
    network.load_state_dict({name: start[name] for name in new}, strict=False)


def learn_theirs(contest: Contest, folder: Path, seed: int) -> dict[str, Any]:
    from stemma.exchange.load import load

    made = trainer(contest, folder / "trainer", contest.steps(), seed, start=folder / "start")
    made.train()
    made.save_model(str(folder / "model"))
    losses = [line["loss"] for line in made.state.log_history if "loss" in line]
    return {"score": contest.score(load(folder / "model")), "losses": losses}


def serve_theirs(contest: Contest, folder: Path, steps: int, bf16: bool) -> None:
    trainer(contest, folder, 100_000, 0, bf16, callbacks=[trainer_slices(steps)]).train()
    tell_peak()
    os._exit(0)


# --- both -------------------------------------------------------------------------------------------------------------


def quality(contests: Sequence[Contest], folder: Path, seeds: int, log: Path | None) -> dict[str, dict[str, Any]]:
    """Both sides learn every task once a seed; what the log has is not made again."""
    lines = log.read_text().splitlines() if log is not None and log.exists() else []
    known = [json.loads(line) for line in lines]
    pairs = {contest: {one["seed"]: one for one in known if contest.setting().items() <= one.items()}
             for contest in contests}
    for seed, contest in product(range(seeds), contests):
        if seed in pairs[contest]:
            continue
        place = folder / contest.task / str(seed)
        ours, theirs = learn_ours(contest, place, seed), learn_theirs(contest, place, seed)
        shutil.rmtree(place)
        one = {**contest.setting(), "seed": seed, "stemma": ours["score"], "Trainer": theirs["score"],
               "stemma_losses": ours["losses"], "Trainer_losses": theirs["losses"]}
        pairs[contest][seed] = one
        if log is not None:
            with log.open("a") as file:
                file.write(json.dumps(one) + "\n")
        print(f"{contest.task}, seed {seed}: stemma {ours['score']:.4f}, Trainer {theirs['score']:.4f}", flush=True)
    told = {}
    for contest in contests:
        scores = [(one["stemma"], one["Trainer"]) for _, one in sorted(pairs[contest].items())]
        told[contest.task] = contest.setting() | paired(scores)
        print(in_words(told[contest.task]), flush=True)
    return told


def paired(scores: Sequence[tuple[float, float]]) -> dict[str, Any]:
    """Of pairs (ours, theirs): the mean of each side, and of the differences mean, deviation, t and 95% interval."""
    from stemma.tasks.metrics.student_t import student_t

    differences = [ours - theirs for ours, theirs in scores]
    told: dict[str, Any] = {"pairs": len(scores), "stemma": statistics.mean(ours for ours, _ in scores),
                            "Trainer": statistics.mean(theirs for _, theirs in scores),
                            "difference": statistics.mean(differences)}
    if len(scores) > 1:
        deviation = statistics.stdev(differences)
        error = deviation / math.sqrt(len(scores))
        half = student_t(len(scores) - 1) * error
        told |= {"deviation": deviation, "t": told["difference"] / error if error else 0.0,
                 "interval": [told["difference"] - half, told["difference"] + half]}
    return told


def in_words(told: dict[str, Any]) -> str:
    line = (f"{told['task']}, {told['metric']} on {told['dev']:,} dev examples, {told['pairs']} pairs: stemma "
            f"{told['stemma']:.4f}, Trainer {told['Trainer']:.4f}, difference {told['difference']:+.4f}")
    if told["pairs"] == 1:
        return line
    low, high = told["interval"]
    verdict = "not significant" if low <= 0 <= high else "significant"
    return f"{line} ± {told['deviation']:.4f}, t = {told['t']:.2f}, 95% [{low:+.4f}, {high:+.4f}]: {verdict}"


def speed(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """A slice is the same number of steps, so of examples, on every side."""
    common = ["--model", str(options.model), "--data", str(options.data), "--task", options.task, "--rate",
              str(options.rate), "--threads", str(options.threads), "--steps", str(options.steps), "--examples",
              str(options.examples), "--epochs", str(options.epochs), "--length", str(options.length), "--batch",
              str(options.batch), "--dev", "1"]
    wanted = {side: name for side, name in SIDES.items() if side != "bf16" or not options.no_bf16}
    sides = [Side(name, Path(__file__), ["--side", side, "--folder", str(folder / side), *common])
             for side, name in wanted.items()]
    compare(sides, options.rounds)
    return report(sides, "examples", options.steps * options.batch)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="a Hugging Face folder to start from")
    parser.add_argument("--data", type=Path, required=True, help="the folder of the data sets")
    parser.add_argument("--tasks", default=",".join(TASKS))
    parser.add_argument("--seeds", type=int, default=8, help="pairs of each task; 0 leaves the scores out")
    parser.add_argument("--rate", type=float, default=1e-4, help="the highest learning rate")
    parser.add_argument("--examples", type=int, default=2000, help="to train on, drawn once for all seeds")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--length", type=int, default=128, help="tokens of a row at most")
    parser.add_argument("--dev", type=int, default=1000, help="dev examples at most, drawn once for all seeds")
    parser.add_argument("--dropout", type=float, help="of all kinds, on both sides; otherwise the checkpoint's")
    parser.add_argument("--rounds", type=int, default=20, help="slices of each side; 0 leaves the speed out")
    parser.add_argument("--steps", type=int, default=10, help="optimizer steps a slice")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--no-bf16", action="store_true", help="leave the slow bf16 peer out")
    parser.add_argument("--log", type=Path, help="append each pair of scores here as a line of JSON, and go on from it")
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
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as temporary:
        for name in names if options.rounds else ():  # first: a child's peak memory counts what its parent held
            options.task = name
            print(f"\n{name}, speed", flush=True)
            found.setdefault("speed", {})[name] = speed(options, Path(temporary) / name)
        if options.seeds:
            contests = [Contest(argparse.Namespace(**vars(options) | {"task": name})) for name in names]
            found["quality"] = quality(contests, Path(temporary) / "quality", options.seeds, options.log)
    if options.out is not None:
        options.out.write_text(json.dumps(found, indent=1))
    if options.rounds:
        print("wanted: 2x the examples a second of Trainer")


if __name__ == "__main__":
    main()
