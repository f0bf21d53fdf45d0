"""Fine-tuning compared with transformers.Trainer: paired scores, and speed.

    python benchmarks/finetune_vs_transformers.py --model CHECKPOINT --data FOLDER
    python benchmarks/finetune_vs_transformers.py --model CHECKPOINT --data FOLDER --rounds 0 --log scores.jsonl
    python benchmarks/finetune_vs_transformers.py --model CHECKPOINT --data FOLDER --rounds 0 --dropout 0 --seeds 1

CHECKPOINT is a Hugging Face folder of BERT's family. FOLDER holds glue/{SST-2,MRPC,CoLA,STS-B}, ner/bc5cdr and squad2
in their official files, which are not part of this project.

Scores (`--rounds 0` measures nothing else): the two runs of a seed have the same token ids, initial weights (including
the new head), batches in the same order, learning rate at every step, AdamW with the same epsilon, clipping, fp32 and
number of threads. Only their dropout masks differ; with `--dropout 0` nothing does. The same code turns the logits of
both sides into predictions and scores them. The table has the paired differences with their mean, standard deviation, t
and 95% interval. With `--log` each pair is appended to a file, and pairs that are in the file are not computed again;
all tasks of a seed come before the next seed.

Speed: alternating slices of 10 steps (`side.py`). The peer is `Trainer` as its documentation shows, with padding
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

from side import Side, compare, print_peak_memory, report, serve_trainer, transformers_callback

TASKS = {"sst2": "glue/SST-2/{}.tsv", "mrpc": "glue/MRPC/{}.tsv", "cola": "glue/CoLA/{}.tsv",
         "stsb": "glue/STS-B/{}.tsv", "bc5cdr": "ner/bc5cdr/{}.txt", "squad2": "squad2/{}.json"}
KINDS = {"bc5cdr": "tag"}  # the others are data sets that Stemma knows by name
WARMUP, DECAY, CLIP, EPSILON = 0.1, 0.01, 1.0, 1e-8
CLASSES = {"classify": "SequenceClassification", "pair": "SequenceClassification", "regress": "SequenceClassification",
           "tag": "TokenClassification", "qa": "QuestionAnswering"}
SIDES = {"stemma": "stemma", "fp32": "transformers Trainer fp32", "bf16": "transformers Trainer bf16"}


class TaskComparison:
    """A task with its examples and settings, the same for both sides."""

    def __init__(self, options: argparse.Namespace):
        from stemma.exchange.load import load
        from stemma.tasks.datasets import read_examples
        from stemma.tasks.runs.build_objective import build_task_objective
        from stemma.tasks.runs.finetune import TaskArguments, build_task_config, finetune_recipe
        from stemma.tasks.runs.finetune_run import input_encoder_for, task_dataset

        self.options, self.folder, self.task = options, options.model, options.task
        name = KINDS.get(options.task, options.task)
        files = {part: options.data / TASKS[options.task].format(part) for part in ("train", "dev")}
        examples = {part: read_examples(name, file) for part, file in files.items()}
        rng = random.Random(0)
        self.examples = {part: rng.sample(examples[part], min(limit, len(examples[part])))
                         for part, limit in (("train", options.examples), ("dev", options.dev))} | {"test": []}
        self.model = load(options.model)
        # set explicitly, without relying on defaults, so that both sides have the same values
        self.changes = [f"training.batch_size={options.batch}", f"training.learning_rate={options.rate}",
                        "training.schedule.kind=linear", f"training.clip_norm={CLIP}", "training.optimizer.kind=adamw",
                        "training.optimizer.beta1=0.9", "training.optimizer.beta2=0.999",
                        f"training.optimizer.epsilon={EPSILON}", f"training.optimizer.weight_decay={DECAY}",
                        f"corpus.sequence_length={options.length}", f"training.threads={options.threads}"]
        if options.side is None:  # for scores, both sides compute in the same precision
            self.changes.append("training.precision=fp32")
        if options.dropout is not None:
            self.changes += [f"network.dropout={options.dropout}", f"network.attention.dropout={options.dropout}"]
        self.recipe = finetune_recipe(self.model).with_overrides(self.changes)
        self.task_config = build_task_config(TaskArguments(name, files), self.examples, self.model, self.recipe, "task")
        if options.dropout is not None:
            heads = {name: replace(head, dropout=options.dropout) if hasattr(head, "dropout") else head
                     for name, head in self.task_config.heads.items()}
            self.task_config = replace(self.task_config, heads=heads)
        input_encoder = input_encoder_for(self.task_config, self.model.require_tokenizer())
        self.objective = build_task_objective(self.task_config, input_encoder)
        self.dataset = task_dataset(self.objective, self.examples, options.batch)

    def setting(self) -> dict[str, Any]:
        """The settings that identify comparable pairs of scores."""
        options = self.options
        return {"task": self.task, "metric": self.task_config.metrics[0], "examples": len(self.examples["train"]),
                "dev": len(self.examples["dev"]), "steps": self.steps(), "batch": options.batch,
                "length": options.length, "rate": options.rate, "dropout": options.dropout}

    def batches(self, seed: int) -> list[list[int]]:
        """The indices of the examples of every step, in the order of Stemma's loader."""
        from stemma.tasks.runs.finetune_loader import FinetuneLoader

        loader = FinetuneLoader(self.model, [self.dataset], seed, self.task_config.longest)
        return [indices.tolist() for epoch in range(self.options.epochs)
                for _, indices in loader._shuffled_batches(epoch)]

    def steps(self) -> int:
        return len(self.batches(0))

    def warmup(self) -> int:
        return int(WARMUP * self.steps())

    def lr_factor(self, updates: int) -> float:
        """The factor of the learning rate after `updates` updates. Stemma's schedule starts at 1 / warm-up steps, the
        linear schedule of transformers at 0; here both sides have Stemma's."""
        from stemma.training.schedules import LinearSettings, lr_factor

        steps, warmup = self.steps(), self.warmup()
        return lr_factor(LinearSettings(kind="linear"), updates + 1, warmup, updates / steps,
                         max(warmup - 1, 0) / steps)

    def score(self, model: Any) -> float:
        """The main metric on the dev set; the no-answer threshold is tuned on it for both sides."""
        from stemma.tasks.kinds import head_task
        from stemma.tasks.runs.compute_metrics import compute_metrics
        from stemma.tasks.runs.finetune_run import predict_examples

        dev = self.examples["dev"]
        predictions = predict_examples(model, self.objective, dev)
        kind = head_task(self.task_config.kind)
        predictions = kind.apply_options(kind.tune(self.task_config, dev, predictions), predictions)
        return float(compute_metrics(self.task_config, dev, predictions)[self.task_config.metrics[0]])


# --- stemma -----------------------------------------------------------------------------------------------------------


def build_stemma_trainer(comparison: TaskComparison, run: Path, steps: int, seed: int) -> tuple[Any, Any]:
    """(trainer, model) as `stemma finetune` builds them."""
    import torch

    from stemma.model import Model
    from stemma.network.network import Network
    from stemma.tasks.runs.common import TrainingLength
    from stemma.tasks.runs.finetune_loader import FinetuneLoader
    from stemma.tasks.runs.finetune_run import load_start_weights, task_head_specs
    from stemma.training.trainer import Trainer

    task_configs = {"task": comparison.task_config}
    resolved, budget = TrainingLength(steps=steps).apply_to(comparison.recipe, steps, ())
    resolved = resolved.with_changes({"training.warmup_steps": comparison.warmup(), "training.log_every": 1,
                                      "training.validate_every": steps, "training.checkpoint_every": steps},
                                     "benchmark")
    torch.manual_seed(seed)
    network = Network(resolved.settings.network, comparison.model.network.vocab_size, task_head_specs(task_configs))
    load_start_weights(str(comparison.folder), network, task_configs)
    model = Model(resolved, comparison.model.tokenizer, network, task_configs=task_configs)
    run.mkdir(parents=True)
    loader = FinetuneLoader(model, [comparison.dataset], seed, comparison.task_config.longest)
    return Trainer(run, resolved, loader, network, budget, seed), model


def finetune_with_stemma(comparison: TaskComparison, folder: Path, seed: int) -> dict[str, Any]:
    """The score, and the loss of every step. Saves the initial weights in `folder`/start."""
    from stemma.exchange.save import write_model

    stemma_trainer, model = build_stemma_trainer(comparison, folder / "run", comparison.steps(), seed)
    (folder / "start").mkdir()
    write_model(model, folder / "start")
    stemma_trainer.train()
    model.network.eval()
    records = [json.loads(line) for line in (folder / "run" / "log.jsonl").read_text().splitlines()]
    steps = [record for record in records if "learning_rate" in record]
    expected = [comparison.options.rate * comparison.lr_factor(step) for step in range(comparison.steps())]
    assert all(math.isclose(record["learning_rate"], rate, rel_tol=1e-9)
               for record, rate in zip(steps, expected, strict=True)), "the learning rates of the sides differ"
    return {"score": comparison.score(model), "losses": [record["loss"] for record in steps]}


def serve_stemma(comparison: TaskComparison, folder: Path, steps: int) -> None:
    stemma_trainer, _ = build_stemma_trainer(comparison, folder, 100_000, 0)
    serve_trainer(stemma_trainer, steps)
    os._exit(0)


# --- transformers -----------------------------------------------------------------------------------------------------


def transformers_features(comparison: TaskComparison) -> list[dict[str, Any]]:
    """The encoded examples in the format of transformers' collators."""
    features = []
    for item in comparison.dataset.train:
        sequence = item.sequences[0]
        length = len(sequence.input_ids)
        feature: dict[str, Any] = {"input_ids": sequence.input_ids.tolist(),
                                   "token_type_ids": sequence.segment_ids.tolist(), "attention_mask": [1] * length}
        if comparison.task_config.kind == "tag":
            feature["labels"] = [-100] * length
            for position, tag in zip(item.decode_info[0], item.target, strict=True):
                feature["labels"][position] = int(tag)
        elif comparison.task_config.kind == "qa":
            feature["start_positions"], feature["end_positions"] = map(int, item.target)
        else:
            feature["labels"] = item.target
        features.append(feature)
    return features


def build_transformers_trainer(comparison: TaskComparison, folder: Path, steps: int, seed: int, bf16: bool = False,
                               callbacks: Sequence[Any] = (), start: Path | None = None) -> Any:
    """Trainer as documented. With `start` (the initial weights of Stemma's run), it gets the same new head, batches in
    the same order and the same learning rates."""
    import logging
    import warnings

    import torch
    import transformers

    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(comparison.options.threads)
    transformers.set_seed(seed)
    kind, labels = comparison.task_config.kind, list(comparison.task_config.labels)
    config = {} if kind == "qa" else {"num_labels": len(labels) or 1}
    config |= {"id2label": dict(enumerate(labels)), "label2id": {label: index for index, label in enumerate(labels)}} \
        if labels else {"problem_type": "regression"} if kind == "regress" else {}
    if comparison.options.dropout is not None:
        config |= dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob", "classifier_dropout"),
                               comparison.options.dropout)
    model_class = getattr(transformers, f"AutoModelFor{CLASSES[kind]}")
    network = model_class.from_pretrained(comparison.folder, **config)
    if start is not None:
        copy_new_head(network, model_class.from_pretrained(start))
    tokenizer = transformers.AutoTokenizer.from_pretrained(comparison.folder)
    collator = transformers.DataCollatorForTokenClassification(tokenizer) if kind == "tag" \
        else transformers.DataCollatorWithPadding(tokenizer)
    arguments = transformers.TrainingArguments(
        output_dir=str(folder), per_device_train_batch_size=comparison.options.batch, max_steps=steps,
        learning_rate=comparison.options.rate, warmup_steps=comparison.warmup(), lr_scheduler_type="linear",
        weight_decay=DECAY, adam_beta1=0.9, adam_beta2=0.999, adam_epsilon=EPSILON, max_grad_norm=CLIP,
        seed=seed, logging_steps=1 if start else 10**9, save_strategy="no", report_to=[],
        use_cpu=True, bf16=bf16, disable_tqdm=True)
    features = transformers_features(comparison)

    class Paired(transformers.Trainer):
        def get_train_dataloader(self):
            return torch.utils.data.DataLoader(features, batch_sampler=comparison.batches(seed), collate_fn=collator)

        def create_scheduler(self, num_training_steps, optimizer=None):
            self.lr_scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer or self.optimizer, comparison.lr_factor)
            return self.lr_scheduler

    trainer = (transformers.Trainer if start is None else Paired)(
        model=network, args=arguments, train_dataset=features, data_collator=collator, processing_class=tokenizer,
        callbacks=list(callbacks))
    trainer.remove_callback(transformers.PrinterCallback)
    return trainer


def copy_new_head(network: Any, start: Any) -> None:
    """Copy the weights of the new head from `start`; all other weights are those of the checkpoint in both."""
    import torch

    weights, start_weights = network.state_dict(), start.state_dict()
    head = [name for name in weights if name.startswith(("classifier.", "qa_outputs."))]
    assert head and weights.keys() == start_weights.keys()
    assert all(torch.equal(weights[name], start_weights[name]) for name in weights if name not in head), \
        "weights below the head differ"
    network.load_state_dict({name: start_weights[name] for name in head}, strict=False)


def finetune_with_transformers(comparison: TaskComparison, folder: Path, seed: int) -> dict[str, Any]:
    from stemma.exchange.load import load

    trainer = build_transformers_trainer(comparison, folder / "trainer", comparison.steps(), seed,
                                         start=folder / "start")
    trainer.train()
    trainer.save_model(str(folder / "model"))
    losses = [record["loss"] for record in trainer.state.log_history if "loss" in record]
    return {"score": comparison.score(load(folder / "model")), "losses": losses}


def serve_transformers(comparison: TaskComparison, folder: Path, steps: int, bf16: bool) -> None:
    build_transformers_trainer(comparison, folder, 100_000, 0, bf16, callbacks=[transformers_callback(steps)]).train()
    print_peak_memory()
    os._exit(0)


# --- comparison -------------------------------------------------------------------------------------------------------


def compare_scores(comparisons: Sequence[TaskComparison], folder: Path, seeds: int,
                   log: Path | None) -> dict[str, dict[str, Any]]:
    """Fine-tune every task with both libraries, once per seed; pairs that are in the log are not computed again."""
    lines = log.read_text().splitlines() if log is not None and log.exists() else []
    logged = [json.loads(line) for line in lines]
    pairs = {comparison: {pair["seed"]: pair for pair in logged if comparison.setting().items() <= pair.items()}
             for comparison in comparisons}
    for seed, comparison in product(range(seeds), comparisons):
        if seed in pairs[comparison]:
            continue
        run_folder = folder / comparison.task / str(seed)
        stemma_result = finetune_with_stemma(comparison, run_folder, seed)
        peer_result = finetune_with_transformers(comparison, run_folder, seed)
        shutil.rmtree(run_folder)
        pair = {**comparison.setting(), "seed": seed, "stemma": stemma_result["score"],
                "Trainer": peer_result["score"], "stemma_losses": stemma_result["losses"],
                "Trainer_losses": peer_result["losses"]}
        pairs[comparison][seed] = pair
        if log is not None:
            with log.open("a") as file:
                file.write(json.dumps(pair) + "\n")
        print(f"{comparison.task}, seed {seed}: stemma {pair['stemma']:.4f}, Trainer {pair['Trainer']:.4f}", flush=True)
    results = {}
    for comparison in comparisons:
        scores = [(pair["stemma"], pair["Trainer"]) for _, pair in sorted(pairs[comparison].items())]
        results[comparison.task] = comparison.setting() | paired_statistics(scores)
        print(summary_line(results[comparison.task]), flush=True)
    return results


def paired_statistics(scores: Sequence[tuple[float, float]]) -> dict[str, Any]:
    """Of pairs (stemma, Trainer): the mean of each side; mean, deviation, t and 95% interval of the differences."""
    from stemma.tasks.metrics.student_t import student_t

    differences = [score - peer_score for score, peer_score in scores]
    difference = statistics.mean(differences)
    result: dict[str, Any] = {"pairs": len(scores), "stemma": statistics.mean(score for score, _ in scores),
                              "Trainer": statistics.mean(peer_score for _, peer_score in scores),
                              "difference": difference}
    if len(scores) > 1:
        deviation = statistics.stdev(differences)
        error = deviation / math.sqrt(len(scores))
        half_width = student_t(len(scores) - 1) * error
        result |= {"deviation": deviation, "t": difference / error if error else 0.0,
                   "interval": [difference - half_width, difference + half_width]}
    return result


def summary_line(result: dict[str, Any]) -> str:
    line = (f"{result['task']}, {result['metric']} on {result['dev']:,} dev examples, {result['pairs']} pairs: stemma "
            f"{result['stemma']:.4f}, Trainer {result['Trainer']:.4f}, difference {result['difference']:+.4f}")
    if result["pairs"] == 1:
        return line
    low, high = result["interval"]
    verdict = "not significant" if low <= 0 <= high else "significant"
    return f"{line} ± {result['deviation']:.4f}, t = {result['t']:.2f}, 95% [{low:+.4f}, {high:+.4f}]: {verdict}"


def compare_speed(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Compare speed; a slice has the same number of steps and examples on every side."""
    common = ["--model", str(options.model), "--data", str(options.data), "--task", options.task, "--rate",
              str(options.rate), "--threads", str(options.threads), "--steps", str(options.steps), "--examples",
              str(options.examples), "--epochs", str(options.epochs), "--length", str(options.length), "--batch",
              str(options.batch), "--dev", "1"]
    names = {side: name for side, name in SIDES.items() if side != "bf16" or not options.no_bf16}
    sides = [Side(name, Path(__file__), ["--side", side, "--folder", str(folder / side), *common])
             for side, name in names.items()]
    compare(sides, options.rounds)
    return report(sides, "examples", options.steps * options.batch)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="a Hugging Face folder to start from")
    parser.add_argument("--data", type=Path, required=True, help="the folder of the data sets")
    parser.add_argument("--tasks", default=",".join(TASKS))
    parser.add_argument("--seeds", type=int, default=8, help="pairs per task; 0 leaves out the scores")
    parser.add_argument("--rate", type=float, default=1e-4, help="peak learning rate")
    parser.add_argument("--examples", type=int, default=2000, help="training examples, sampled once for all seeds")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--length", type=int, default=128, help="maximum number of tokens per row")
    parser.add_argument("--dev", type=int, default=1000, help="dev examples, sampled once for all seeds")
    parser.add_argument("--dropout", type=float, help="of all dropout layers (default: the checkpoint's)")
    parser.add_argument("--rounds", type=int, default=20, help="slices per side; 0 leaves out the speed")
    parser.add_argument("--steps", type=int, default=10, help="optimizer steps per slice")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--no-bf16", action="store_true", help="leave out the slow bf16 peer")
    parser.add_argument("--log", type=Path, help="append each pair of scores to this file (JSON lines) and continue it")
    parser.add_argument("--out", type=Path, help="write the results to this file, as JSON")
    parser.add_argument("--task", help=argparse.SUPPRESS)
    parser.add_argument("--side", choices=list(SIDES), help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side == "stemma":
        serve_stemma(TaskComparison(options), options.folder, options.steps)
    elif options.side:
        serve_transformers(TaskComparison(options), options.folder, options.steps, options.side == "bf16")
    if unknown := [name for name in options.tasks.split(",") if name not in TASKS]:
        parser.error(f"no task {', '.join(unknown)}; there are {', '.join(TASKS)}")
    names = options.tasks.split(",")
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as temporary:
        # speed comes first: the peak memory of a child process includes that of its parent
        for name in names if options.rounds else ():
            options.task = name
            print(f"\n{name}, speed", flush=True)
            results.setdefault("speed", {})[name] = compare_speed(options, Path(temporary) / name)
        if options.seeds:
            comparisons = [TaskComparison(argparse.Namespace(**vars(options) | {"task": name})) for name in names]
            results["quality"] = compare_scores(comparisons, Path(temporary) / "quality", options.seeds, options.log)
    if options.out is not None:
        options.out.write_text(json.dumps(results, indent=1))
    if options.rounds:
        print("goal: 2x the examples/s of Trainer")


if __name__ == "__main__":
    main()
