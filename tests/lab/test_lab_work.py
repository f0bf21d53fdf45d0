"""Running an experiment: equal budgets, reuse of finished cells, and resuming after a kill."""

from __future__ import annotations

import json
import random
import signal
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from commands import start, stemma
from conftest import SEED
from progress_recorder import recorded_stages

from stemma.atomic_files import sha256
from stemma.errors import Interrupted, UserError
from stemma.exchange.build import build
from stemma.exchange.load import load
from stemma.exchange.save import save
from stemma.exchange.weights import SAFETENSORS
from stemma.lab import cell_runner, run_experiment
from stemma.lab.cell_runner import finetune_on, pretrained_start, with_finetuning_of
from stemma.lab.cells import distinct_cells, experiment_cells, finetuning_values, short_digest, task_digest
from stemma.lab.comparison import compared_variants, parse_budget, parse_tasks
from stemma.lab.experiment import RANDOM, ComputeBudget, DownstreamTask, Experiment, Variant
from stemma.lab.results import check_metric
from stemma.recipe_loading import recipe
from stemma.tasks.runs.finetune_defaults import stated_keys
from stemma.training.budget import Budget
from stemma.training.run_folder import RunConfig, create_run

SMALL = ["network.width=32", "network.heads=2", "network.layers=1", "network.feedforward=64",
         "corpus.sequence_length=32", "training.batch_size=8", "training.warmup_steps=5", "tokenizer.vocab_size=400",
         "training.learning_rate=3e-3", "training.checkpoint_every=20", "training.threads=1"]


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STEMMA_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """Words of which some are far more frequent than others."""
    rng = random.Random(0)
    words = [a + b for a in ("ba", "de", "mi", "ko", "lu", "ra", "ti", "so") for b in ("n", "r", "s", "l", "ta", "mo")]
    weights = [1 / rank for rank in range(1, len(words) + 1)]
    file = tmp_path_factory.mktemp("text") / "toy.txt"
    file.write_text("\n\n".join("\n".join(" ".join(rng.choices(words, weights, k=9)) + "." for _ in range(8))
                               for _ in range(160)))
    return file


def experiment(text, names, allowance, seeds=2, changes=(), **more):
    return Experiment("compare", "toy", compared_variants(names, [*SMALL, *changes], [])[0], allowance,
                      tuple(range(seeds)), None, (str(text),), **more)


def costs(results, key):
    return [cell["cost"][key] for cell in results["cells"]]


@pytest.mark.parametrize(("unit", "amount", "key", "within"), [
    ("tokens", 26_000, "tokens", 0.01), pytest.param("flops", 2e9, "flops", 0.01, marks=pytest.mark.slow),
    pytest.param("minutes", 0.05, "seconds", 0.03, marks=pytest.mark.slow)])  # by the clock: a busy machine may miss it
def test_all_cells_get_the_same_budget(tmp_path, text, unit, amount, key, within):
    results = run_experiment.run_experiment(experiment(text, ["bert@tiny", "gpt2@tiny", "electra@tiny"],
                                                       ComputeBudget(unit, amount), seeds=1), tmp_path / "lab")
    budget = 60 * amount if unit == "minutes" else amount
    assert len(results["cells"]) == 3 and results["budget"] == {"unit": unit, "amount": amount}
    assert all(abs(spent / budget - 1) <= within for spent in costs(results, key)), costs(results, key)
    for other in ("tokens", "flops", "seconds"):  # the results have all three units
        assert all(spent > 0 for spent in costs(results, other))
    if unit != "tokens":
        assert max(costs(results, "tokens")) > 1.2 * min(costs(results, "tokens"))  # equal in one unit, not in all


def test_adding_a_recipe_and_a_seed_reuses_finished_cells(tmp_path, text, caplog):
    allowance = ComputeBudget("tokens", 6000)
    first = run_experiment.run_experiment(experiment(text, ["bert@tiny", "gpt2@tiny"], allowance), tmp_path / "lab")
    second = run_experiment.run_experiment(experiment(text, ["bert@tiny", "gpt2@tiny", "electra@tiny"], allowance, 3),
                                           tmp_path / "lab")
    assert "4 of 9 cells are finished already." in caplog.messages
    before = {(cell["variant"], cell["seed"]): cell for cell in first["cells"]}
    after = {(cell["variant"], cell["seed"]): cell for cell in second["cells"]}
    assert len(after) == 9 and all(after[key] == cell for key, cell in before.items())
    assert after["bert@tiny", 0]["digest"] != after["bert@tiny", 2]["digest"]
    assert json.loads((tmp_path / "lab/results.json").read_text())["seeds"] == [0, 1, 2]


def test_progress_names_the_current_cell(tmp_path, text, monkeypatch):
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(run_experiment.CellRunner, "run", stop)
    with recorded_stages() as stages, pytest.raises(Interrupted):
        run_experiment.run_experiment(experiment(text, ["bert@tiny", "gpt2@tiny"], ComputeBudget("tokens", 6000)),
                                      tmp_path)
    assert "cell 1 of 4: bert@tiny, seed 0" in stages


def test_equal_recipes_share_their_cells(tmp_path, text):
    comparison = experiment(text, ["bert@tiny", "gpt2@tiny"], ComputeBudget("tokens", 6000), 1)
    twin = Variant("the same under another name", recipe("bert@tiny", SMALL))
    results = run_experiment.run_experiment(replace(comparison, variants=(comparison.variants[0], twin)),
                                            tmp_path / "lab")
    assert len(list((tmp_path / "lab/cells").iterdir())) == 1
    assert [difference["verdict"] for difference in results["differences"]] == ["same bytes"] * len(results["measures"])


def test_pretraining_is_shared_if_only_fine_tuning_differs(tmp_path):
    """Without a task both variants share one cell; with a task each is fine-tuned separately."""
    (tmp_path / "task.tsv").write_text("text\tlabel\ngood\t1\nbad\t0\n")
    names = ["bert@tiny", "bert@tiny"]
    variants = [Variant(f"{index}", recipe(name, [*SMALL, change])) for index, (name, change) in enumerate(
        zip(names, ("finetuning.epochs=3", "finetuning.optimizer.kind=adamax"), strict=True))]
    comparison = experiment(tmp_path / "no-text", ["bert@tiny", "gpt2@tiny"], ComputeBudget("tokens", 6000), 1)
    task = parse_tasks(["classify"], [str(tmp_path / "task.tsv")], [str(tmp_path / "task.tsv")], 1.0)
    for tasks, count in (((), 1), (task, 2)):
        shared = replace(comparison, variants=tuple(variants), tasks=tasks)
        cells = experiment_cells(shared, SimpleNamespace(digest="text"), tmp_path)
        assert len({cell.digest for cell in cells}) == 1 and len(distinct_cells(cells, tasks)) == count
    assert cells[0].task(task[0]).folder != cells[1].task(task[0]).folder
    create_run(cells[0].run, cells[0].variant.recipe, RunConfig(None, [], Budget("steps", 1), 0), overwrite=False)
    assert pretrained_start(cells[0], tmp_path / "start") == cells[0].run  # it was pre-trained with this recipe
    changed = with_finetuning_of(cells[0].variant.recipe, cells[1].variant.recipe)
    assert changed.values["finetuning"] == cells[1].finetuning != cells[0].finetuning
    assert stated_keys(changed) == stated_keys(cells[1].variant.recipe) == {"optimizer.kind"}
    weights = build(cells[0].variant.recipe, 50)
    save(weights, cells[1].run / "model")
    copied = load(pretrained_start(cells[1], tmp_path / "start"))
    assert copied.recipe.values["finetuning"] == cells[1].finetuning
    assert all(torch.equal(tensor, copied.network.state_dict()[name])
               for name, tensor in weights.network.state_dict().items())


def test_a_new_key_at_its_default_does_not_change_the_digest():
    """Labs from before finetuning.style and finetuning.crf existed can be resumed."""
    bert = recipe("bert@tiny", SMALL)
    before = {key: value for key, value in bert.values["finetuning"].items() if key not in ("style", "crf")}
    assert "style" in bert.values["finetuning"] and finetuning_values(Variant("now", bert)) == before
    changed = finetuning_values(Variant("changed", bert.with_overrides(["finetuning.style=gpt"])))
    assert changed == {**before, "style": "gpt"}
    assert list(bert.settings.later_defaults()) == ["finetuning.style", "finetuning.crf"]


@pytest.fixture
def task_files(tmp_path) -> tuple[str, str]:
    for part in ("train", "dev"):
        (tmp_path / f"{part}.tsv").write_text("text\tlabel\n" + "ban dan kor\tyes\nsota lus\tno\n" * 4)
    return str(tmp_path / "train.tsv"), str(tmp_path / "dev.tsv")


def test_the_digest_of_a_task_covers_its_seed_and_settings(task_files):
    """A task without them keeps its old digest, so fine-tuning results of older labs are reused."""
    task = DownstreamTask("classify", *task_files)
    train, dev = (sha256(Path(file)) for file in task_files)
    before = {"name": "classify", "train": train, "dev": dev, "epochs": 3.0, "columns": {}}
    changed = [replace(task, seed=0), replace(task, also=task_files[1]), replace(task, changes=("training.frozen=1",))]
    assert task_digest(task) == short_digest(before)
    assert len({task_digest(variant) for variant in [task, *changed]}) == 4


def test_random_weights_are_a_variant_that_is_only_fine_tuned(tmp_path, text, task_files, monkeypatch):
    """Random weights are sampled with the seed of each task; the trained variant is in the requested folder."""
    starts: list[tuple[str, str, int]] = []

    def record(task: DownstreamTask, start: Path, run: Path, **options: Any) -> dict[str, Any]:
        assert "training.frozen=1" in options["changes"]
        weights = next(path for path in (start / "model" / SAFETENSORS, start / SAFETENSORS) if path.is_file())
        starts.append((start.name, sha256(weights), options["seed"]))
        return finetune_on(task, start, run, **options)

    monkeypatch.setattr(cell_runner, "finetune_on", record)
    bert, run = recipe("bert@tiny", SMALL), tmp_path / "requested"
    comparison = replace(
        experiment(text, ["bert@tiny", "gpt2@tiny"], ComputeBudget("tokens", 6000), 1),
        variants=(Variant("trained", bert, run=str(run)), Variant("untrained", bert, RANDOM)),
        tasks=tuple(DownstreamTask("classify", *task_files, 1.0, seed=seed, also=task_files[0],
                                   changes=("training.frozen=1",))
                    for seed in (5, 6, 5)))
    results = run_experiment.run_experiment(comparison, tmp_path / "lab")
    assert Experiment.read(tmp_path / "lab").tasks == comparison.tasks and (run / "model").is_dir()
    assert [(name, seed) for name, _, seed in starts] == [("requested", 5), ("requested", 6), ("start", 5),
                                                         ("start", 6)]
    assert starts[0][1] == starts[1][1] and len({weights for _, weights, _ in starts}) == 3
    trained, random = results["table"]
    assert {"classify-1.accuracy", "classify-3.accuracy"} <= set(random["scores"]) < set(trained["scores"])
    assert trained["cost"]["tokens"] > 0 and random["cost"] == {}
    assert results["cells"][0]["hash"] != results["cells"][1]["hash"]
    linear = results["baselines"]["linear"]
    assert set(linear) == {f"classify-{index}.{name}" for index in (1, 2, 3) for name in ("accuracy", "macro_f1")}
    assert linear["classify-1.accuracy"] == linear["classify-2.accuracy"] == 1  # one word decides
    assert len(list((tmp_path / "lab/baselines").iterdir())) == 1  # once for all variants and seeds
    page = (tmp_path / "lab/report.md").read_text()
    assert "| linear baseline |" in page
    without = run_experiment.run_experiment(replace(comparison, baseline=False), tmp_path / "lab")
    assert without["baselines"] == {"linear": {}} and without["table"] == results["table"]
    assert "linear baseline" not in (tmp_path / "lab/report.md").read_text()
    page = (tmp_path / "lab/report.md").read_text()
    assert "Each model except untrained (random weights) was trained on 6,000 tokens" in page


def test_generative_models_are_compared_by_continuation_and_seq2seq_metrics(tmp_path, text):
    """An encoder-decoder and an encoder have different likelihood metrics; both are fine-tuned on text pairs."""
    for part in ("train", "dev"):
        (tmp_path / f"{part}.tsv").write_text("source\ttarget\nban dan\tgan\ngan\tdan ban\n")
    task = parse_tasks(["seq2seq"], [str(tmp_path / "train.tsv")], [str(tmp_path / "dev.tsv")], 1.0)
    comparison = experiment(text, ["bert@tiny", "gpt2@tiny"], ComputeBudget("tokens", 6000), 1)
    bart = Variant("bart@tiny", recipe("bart@tiny", [*SMALL, "network.decoder.layers=1"]))
    comparison = replace(comparison, variants=(comparison.variants[0], bart), tasks=task)
    assert run_experiment.run_experiment(comparison, tmp_path / "lab", dry_run=True)["cells"] == 2
    results = run_experiment.run_experiment(comparison, tmp_path / "lab")
    scores = {row["variant"]: set(row["scores"]) for row in results["table"]}
    metrics = {f"seq2seq.{name}" for name in ("bleu", "chrf", "rouge_l", "exact_match")}
    assert metrics <= scores["bert@tiny"] & scores["bart@tiny"] and results["measures"][0]["key"] in metrics
    assert "pseudo_bits_per_byte" in scores["bert@tiny"] - scores["bart@tiny"]
    assert "continuation_bits_per_byte" in scores["bart@tiny"] - scores["bert@tiny"]


@pytest.mark.slow
def test_variants_with_other_fine_tuning_settings_share_one_pretrained_model(tmp_path, text):
    rows = [f"{line}\t{'yes' if 'ban' in line else 'no'}" for line in text.read_text().split("\n") if line][:96]
    for split, split_rows in (("train", rows[:64]), ("dev", rows[64:])):
        (tmp_path / f"{split}.tsv").write_text("\n".join(["text\tlabel", *split_rows]) + "\n")
    comparison = experiment(text, ["bert@tiny", "gpt2@tiny"], ComputeBudget("tokens", 6000), 1)
    task = parse_tasks(["classify"], [str(tmp_path / "train.tsv")], [str(tmp_path / "dev.tsv")], 1.0)
    comparison = replace(comparison, tasks=task,
                    variants=(comparison.variants[0], Variant("high", recipe("bert@tiny", [
                        *SMALL, "finetuning.learning_rate=1e-2", "finetuning.optimizer.kind=adamax"]))))
    results = run_experiment.run_experiment(comparison, tmp_path / "lab")
    (cell,) = (tmp_path / "lab/cells").iterdir()
    assert len(list((cell / "tasks").iterdir())) == 2
    assert len({cell["hash"] for cell in results["cells"]}) == 1 and len(results["cells"]) == 2


def compare_command(text, out, *more, seeds=2):
    return ["compare", "bert@tiny", "gpt2@tiny", "--corpus", str(text), "--tokens", "12000", "--seeds", str(seeds),
            "--out", str(out), "--json", *SMALL, *more]


def test_a_killed_experiment_resumes_to_the_same_results(tmp_path, text):
    complete = stemma(*compare_command(text, tmp_path / "complete"))
    assert complete.code == 0, complete.err
    expected = {cell["hash"]: cell["digest"] for cell in complete.json["cells"]}
    out = tmp_path / "killed"
    for finished, command in enumerate((compare_command(text, out), ["resume", out])):  # killed in two different cells
        killed = start(*command).kill_when(
            lambda finished=finished: len(list(out.glob("cells/*/scores.json"))) >= finished
            and list(out.glob("cells/*/run/checkpoints/step-*")))
        assert killed.code == -signal.SIGKILL, killed.err
    assert not (out / "results.json").exists()
    for _ in range(2):  # the second time all cells are finished
        done = stemma("resume", out, "--json")
        assert done.code == 0, done.err
        assert {cell["hash"]: cell["digest"] for cell in done.json["cells"]} == expected
        costs = [cell["cost"] for cell in done.json["cells"]]
        assert all(cost["cell_seconds"] > cost["seconds"] for cost in costs)  # includes the killed processes
        assert done.json["took_seconds"] == pytest.approx(sum(cost["cell_seconds"] for cost in costs), rel=0.05)
    assert (out / "report.html").is_file() and (out / "report.md").is_file()
    assert not list(out.glob("cells/*/run/checkpoints/step-*"))  # checkpoints of finished cells are deleted


@pytest.mark.slow
@pytest.mark.parametrize("killed", [False, True])
def test_two_processes_share_the_cells(tmp_path, text, killed):
    if killed:
        start(*compare_command(text, tmp_path / "lab", seeds=8)).kill_when((tmp_path / "lab/lab.json").is_file)
    done = stemma("resume", tmp_path / "lab", "--processes", "2", "--json") if killed \
        else stemma(*compare_command(text, tmp_path / "lab", "--processes", "2", seeds=8))
    assert done.code == 0, done.err
    assert len(done.json["cells"]) == 16 and all(cell["state"] == "done" for cell in done.json["cells"])
    worker_log = (tmp_path / "lab/workers.log").read_text()
    cell_lines = [line for line in (worker_log + done.err).splitlines() if "cell " in line]
    assert len(cell_lines) == 16 and "cell " in worker_log  # each cell once, some of them by the other process


def test_a_diverged_training_is_stored_as_failed_and_not_tried_again(tmp_path, text, caplog):
    allowance = ComputeBudget("tokens", 6000)
    comparison = experiment(text, ["bert@tiny", "gpt2@tiny"], allowance, 1)
    broken = Variant("broken", recipe("bert@tiny", [*SMALL, "training.learning_rate=1e30", "training.warmup_steps=0"]))
    comparison = replace(comparison, variants=(*comparison.variants, broken))
    results = run_experiment.run_experiment(comparison, tmp_path / "lab")
    cell = results["cells"][-1]
    assert cell["state"] == "failed" and "loss" in cell["why"] and results["cells"][0]["state"] == "done"
    caplog.clear()
    run_experiment.resume_lab(tmp_path / "lab")
    assert not any(line.startswith("cell ") for line in caplog.messages)


@pytest.mark.slow
def test_a_true_effect_is_significant_and_a_null_effect_is_not(tmp_path, text):
    """Words here are single tokens, so masking words equals masking tokens: no effect. With a tiny learning rate a
    model does not even learn token frequencies: a true effect."""
    base = recipe("bert@tiny", [*SMALL, "remove=objective.next_sentence", "corpus.packing=full_sentences",
                                "objective.masked_lm.dynamic=true"])
    variants = (Variant("tokens", base), Variant("words", base.with_overrides(["objective.masked_lm.unit=word"])),
                Variant("untrained", base.with_overrides(["training.learning_rate=1e-6"])))
    comparison = experiment(text, ["bert@tiny", "gpt2@tiny"], ComputeBudget("tokens", 12_000), 4)
    comparison = replace(comparison, variants=variants, seeds=tuple(range(4 * SEED, 4 * SEED + 4)))
    results = run_experiment.run_experiment(comparison, tmp_path / "lab")
    verdicts = {(entry["a"], entry["b"]): entry for entry in results["differences"]
                if entry["measure"] == "pseudo_bits_per_byte"}
    assert verdicts["tokens", "words"]["verdict"] in ("inconclusive", "equivalent", "same bytes"), verdicts
    assert results["cells"][0]["digest"] != results["cells"][1]["digest"]  # two different models
    effect = verdicts["tokens", "untrained"]
    assert effect["verdict"] == "worse" and effect["low"] > 0, verdicts


# --- bad input --------------------------------------------------------------------------------------------------------


def test_a_budget_smaller_than_the_warmup_is_rejected(tmp_path, text):
    comparison = experiment(text, ["bert@tiny", "gpt2@tiny"], ComputeBudget("tokens", 2000),
                       changes=["training.warmup_steps=50"])
    with pytest.raises(UserError) as caught:
        run_experiment.run_experiment(comparison, tmp_path / "lab")
    assert len(caught.value.problems) == 2 and all("warm-up" in problem for _, problem in caught.value.problems)
    assert not (tmp_path / "lab").exists()


def test_all_unsuitable_recipes_are_reported_together(tmp_path, text):
    comparison = experiment(text, ["bert@tiny", "gpt2@tiny"], ComputeBudget("tokens", 6000))
    tiny = Variant("small vocabulary", recipe("roberta@tiny", [*SMALL, "tokenizer.vocab_size=100"]))
    pairs = Variant("pairs", recipe("transformer@tiny", SMALL))
    with pytest.raises(UserError) as caught:
        run_experiment.run_experiment(replace(comparison, variants=(*comparison.variants, tiny, pairs)),
                                      tmp_path / "lab")
    assert [name for name, _ in caught.value.problems] == ["small vocabulary", "pairs"]


def test_a_per_token_metric_across_tokenizers_is_rejected(text):
    mixed = experiment(text, ["bert@tiny", "gpt2@tiny"], ComputeBudget("tokens", 6000), measure="validation_loss")
    with pytest.raises(UserError, match="Bits per byte"):
        check_metric(mixed)
    alike = experiment(text, ["bert@tiny", "electra@tiny"], ComputeBudget("tokens", 6000), measure="validation_loss")
    check_metric(alike)
    with pytest.raises(UserError, match="no measure"):
        check_metric(experiment(text, ["bert@tiny", "gpt2@tiny"], ComputeBudget("tokens", 6000), measure="losss"))


def test_one_seed_gives_no_interval(tmp_path, text):
    results = run_experiment.run_experiment(experiment(text, ["bert@tiny", "structbert@tiny"],
                                                       ComputeBudget("tokens", 6000), 1), tmp_path / "lab")
    assert results["differences"] and all(difference["verdict"] == "one seed" and difference["low"] is None
                                        for difference in results["differences"])


def test_labs_of_another_version_and_other_folders_are_rejected(tmp_path, text):
    comparison = experiment(text, ["bert@tiny", "gpt2@tiny"], ComputeBudget("tokens", 6000), 1)
    (tmp_path / "lab").mkdir()
    comparison.write(tmp_path / "lab")
    stored = json.loads((tmp_path / "lab/lab.json").read_text())
    (tmp_path / "lab/lab.json").write_text(json.dumps(stored | {"version": 0}))
    (tmp_path / "lab/checksums.json").unlink()  # as in a lab that another version made
    with pytest.raises(UserError, match="another version"):
        run_experiment.run_experiment(comparison, tmp_path / "lab")
    with pytest.raises(UserError, match="another version"):
        run_experiment.resume_lab(tmp_path / "lab")
    (tmp_path / "full").mkdir()
    (tmp_path / "full/precious.txt").write_text("mine")
    with pytest.raises(UserError, match="not empty"):
        run_experiment.run_experiment(comparison, tmp_path / "full")


@pytest.mark.parametrize(("call", "expected"), [
    (lambda: parse_budget(None, None, None), "fair comparison"),
    (lambda: parse_budget(5, None, 1.0), "exclude each other"),
    (lambda: parse_budget(-1, None, None), "greater than 0"),
    (lambda: compared_variants(["bert@tiny"], [], []), "at least two"),
    (lambda: compared_variants(["bert@tiny", "bert@tiny"], [], []), "given twice"),
    (lambda: compared_variants(["bert@tiny", "gpt"], [], ["mini"]), "says its size"),
    (lambda: parse_tasks(["sst2"], [], [], 3), "every task has one of each"),
    (lambda: parse_tasks(["sst2"], ["nowhere.tsv"], ["nowhere.tsv"], 3), "no file"),
    (lambda: parse_tasks(["sstt2"], ["a"], ["b"], 3), "sst2")])
def test_invalid_arguments_are_rejected(call, expected):
    with pytest.raises(UserError, match=expected):
        call()


def test_a_stored_experiment_is_read_back_equal(tmp_path, text):
    comparison = experiment(text, ["bert@tiny", "gpt2@tiny"], ComputeBudget("flops", 1e9), 3,
                            details={"sizes": ["tiny"]})
    comparison.write(tmp_path)
    again = Experiment.read(tmp_path)
    assert [(variant.name, variant.recipe.values) for variant in again.variants] == [
        (variant.name, variant.recipe.values) for variant in comparison.variants]
    assert {**vars(again), "variants": ()} == {**vars(comparison), "variants": ()}


def test_a_dry_run_estimates_the_time_and_writes_nothing(tmp_path, text):
    comparison = experiment(text, ["bert@tiny", "gpt2@tiny"], ComputeBudget("tokens", 6500))
    plan = run_experiment.run_experiment(comparison, tmp_path / "lab", dry_run=True)
    assert plan["cells"] == 4 and len(plan["variants"]) == 2 and plan["seconds"] > 0
    assert abs(plan["variants"][0]["tokens"] / 6500 - 1) < 0.1 and not list(tmp_path.iterdir())
    results = run_experiment.run_experiment(comparison, tmp_path / "lab")
    assert results["foretold_seconds"] == plan["seconds"] and results["took_seconds"] > 0
    assert results["differences"] == [] and "No two of these models" in (tmp_path / "lab/report.md").read_text()
    spent = sum(cell["cost"]["cell_seconds"] for cell in results["cells"])
    assert results["took_seconds"] == pytest.approx(spent, rel=0.2)  # cells run one after another


def test_another_text_in_the_same_folder_is_rejected(tmp_path, text):
    allowance = ComputeBudget("tokens", 6000)
    run_experiment.run_experiment(experiment(text, ["bert@tiny", "gpt2@tiny"], allowance, 1), tmp_path / "lab")
    other = tmp_path / "other.txt"
    other.write_text(text.read_text().replace("ban", "nab"))
    with pytest.raises(UserError, match="another text"):
        run_experiment.run_experiment(experiment(other, ["bert@tiny", "gpt2@tiny"], allowance, 1), tmp_path / "lab")
