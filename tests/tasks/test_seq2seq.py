"""Sequence-to-sequence fine-tuning: every generative family learns pairs, is scored, and loads for translation."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
from conftest import SEED
from toy_pairs import pairs, rate, save_model, translated, write_pairs

import stemma
from stemma.corpus.corpus import Corpus
from stemma.corpus.subset import train_validation_split
from stemma.errors import UserError
from stemma.exchange.load import load
from stemma.recipe_loading import recipe
from stemma.tasks.runs.multitask import multitask
from stemma.tasks.runs.multitask_plan import read_multitask_plan
from stemma.tasks.runs.seq2seq import finetune_seq2seq, seq2seq_recipe
from stemma.tasks.runs.seq2seq_data import Seq2SeqData, data_from_cli
from stemma.training.run_folder import read_run

LEARNING = ["transformer"]  # the others learn in make test-slow; tests/tasks/test_structures.py has a short run of each
FAMILIES = ["transformer", "mass", "bart", "t5", "unilm", "prefix-lm", "gpt2"]


@pytest.fixture
def models(tmp_path_factory):
    return lambda name, *changes, **more: save_model(tmp_path_factory.mktemp("model") / name, name, *changes, **more)


@pytest.fixture
def data(tmp_path) -> Seq2SeqData:
    """Training pairs, and dev pairs of several words, because every single word must occur in training."""
    every = sorted(dict.fromkeys(pairs(2000, longest=3)), key=lambda pair: " " not in pair[0])
    return data_from_cli({"train": [write_pairs(tmp_path / "train.tsv", every[40:])],
                     "dev": [write_pairs(tmp_path / "dev.tsv", every[:20])],
                     "test": [write_pairs(tmp_path / "test.tsv", every[20:40])]})


def run_briefly(model, data, out, *changes, **options):
    return finetune_seq2seq(model, data, out, beams=1, changes=changes, **{"steps": 2, **options})


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (name not in LEARNING))
                                  for name in FAMILIES])
def test_every_family_learns_to_translate(tmp_path, models, data, name):
    result = finetune_seq2seq(models(name), data, tmp_path / "run", steps=400, beams=2, seed=SEED,
                      changes=[rate(name), "training.batch_size=8", "training.schedule={kind='linear'}"])
    dev, test = result["metrics"]["dev"], result["metrics"]["test"]
    # seen (five seeds): 55 to 100 exactly right, where chance has one in a hundred; 91 to 100 of the words
    assert dev["exact_match"] >= 25 and test["exact_match"] >= 25
    assert dev["chrf"] > 70 and dev["rouge_l"] > 70 and dev["examples"] == 20
    assert dev["loss"] == result["validation_loss"] < 0.7 < 2 < result["unigram_loss"] < 2.5
    assert dev["signatures"]["bleu"].startswith("nrefs:1|case:mixed") and result["examples_per_second"] > 0

    lines = [json.loads(line) for line in (tmp_path / "run" / "test.jsonl").read_text().splitlines()]
    again = stemma.translate(tmp_path / "run", [line["source"] for line in lines], beams=2,
                             max_length_ratio=0, max_extra=4)
    assert [line["text"] for line in lines] == [one.text for one in again]
    assert json.loads((tmp_path / "run" / "result.json").read_text())["metrics"] == result["metrics"]


def test_the_objective_fits_the_decoding_mode(models):
    by_family = {name: seq2seq_recipe(load(models(name))).settings for name in FAMILIES}
    tasks = {name: list(settings.objective.values()) for name, settings in by_family.items()}
    assert all(len(kinds) == 1 for kinds in tasks.values())
    assert all(settings.packings().popitem()[1] == "parallel" for settings in by_family.values())
    assert {name: tasks[name][0].smoothing for name in FAMILIES[:4]} == {"transformer": 0.1, "mass": 0.1, "bart": 0.1,
                                                                         "t5": 0.0}
    cloze = tasks["unilm"][0]
    assert (cloze.kind, cloze.attention_mask, cloze.scored, cloze.rate) == ("masked_lm", "prefix", "second", 0.7)
    assert tasks["prefix-lm"][0].kind == "prefix_lm" and by_family["prefix-lm"].corpus.pair == "A end B end"
    assert (tasks["gpt2"][0].kind, tasks["gpt2"][0].scored) == ("causal_lm", "second")


def test_a_second_fine_tuning_keeps_the_objective_settings(tmp_path, models, data):
    model = models("bart")
    run_briefly(model, data, tmp_path / "one", "objective.translation.smoothing=0.25")
    run_briefly(tmp_path / "one", data, tmp_path / "two")
    assert recipe(tmp_path / "two" / "recipe.toml").settings.objective["translation"].smoothing == 0.25


def test_the_learning_rate_is_lower_than_in_pretraining(models):
    for name, slower in (("bart", "linear"), ("t5", "constant"), ("unilm", "linear")):
        before = load(models(name, "network.width=128"))
        after = seq2seq_recipe(before).settings.training
        assert after.learning_rate < before.recipe.settings.training.learning_rate
        assert after.schedule.kind == slower and (after.clip_norm is None) == (name == "t5")  # Adafactor has its own


def test_exactly_the_dev_pairs_are_held_out(tmp_path, models, data):
    run_briefly(models("bart"), data, tmp_path / "run")
    corpus = Corpus.open(tmp_path / "run" / "corpus")
    training, validation = train_validation_split(corpus, fraction=0.5)
    dev = (tmp_path / "dev.tsv").read_text().splitlines()[1:]
    rows = [corpus.values_between("tokens", *bounds) for bounds in validation.document_ranges.tolist()]
    assert [corpus.tokenizer.decode(row.tolist()).split() for row in rows] == [line.split() for line in dev]
    assert len(training.document_ranges) + len(rows) == corpus.manifest["documents"]
    assert not np.isin(validation.document_ranges[:, 0], training.document_ranges[:, 0]).any()


def test_the_steps_of_a_run_come_from_its_epochs(tmp_path, models, data):
    model = models("bart")
    result = run_briefly(model, data, tmp_path / "one", "training.batch_size=8", steps=None, epochs=1)
    settings = recipe(tmp_path / "one" / "recipe.toml").settings.training
    count = len((tmp_path / "train.tsv").read_text().splitlines()) - 1
    rows = 8 * 32 // 5  # tokens per batch, by the length of the longest pairs: three words and special tokens
    assert result["steps"] == settings.validate_every == settings.checkpoint_every == pytest.approx(count / rows, abs=4)
    assert settings.batch_size == 8 and settings.warmup_steps == int(0.025 * result["steps"])  # BART's
    two = run_briefly(model, data, tmp_path / "two", "training.batch_size=8", steps=None, epochs=2)
    assert two["steps"] == 2 * result["steps"] and two["tokens"] == pytest.approx(2 * result["tokens"], rel=0.1)
    three = run_briefly(model, data, tmp_path / "three", "training.steps=7", steps=None)
    assert three["steps"] == 7
    with pytest.raises(UserError, match="--epochs and --steps exclude each other"):
        run_briefly(model, data, tmp_path / "four", epochs=2)
    with pytest.raises(UserError, match="--epochs must be a number greater than 0, not -1"):
        run_briefly(model, data, tmp_path / "four", steps=None, epochs=-1)


def test_dev_overlap_with_train_is_reported(tmp_path, models, data, caplog):
    run_briefly(models("bart"), data, tmp_path / "one")
    assert not [text for text in caplog.messages if "memorization" in text]
    (task,) = data.tasks
    same = Seq2SeqData((type(task)("seq2seq", task.train, (type(task.dev[0])(task.train[0].path, name="seq2seq, dev"),
                                                           )),))
    run_briefly(models("bart"), same, tmp_path / "two")
    [by_family] = [text for text in caplog.messages if "memorization" in text]
    count = len(set((tmp_path / "train.tsv").read_text().splitlines()[1:]))
    assert by_family.startswith(f"{count} of {count} held-out pairs also occur in the training set")


def test_pairs_longer_than_the_model_are_left_out_and_reported(tmp_path, models, data, caplog):
    model = models("bart")
    long = [(" ".join(["ink"] * 40), "lamp"), *pairs(30), ("ink", " ".join(["lamp"] * 31))]
    some = data_from_cli({"train": [write_pairs(tmp_path / "some.tsv", long)], "dev": [tmp_path / "dev.tsv"]})
    run_briefly(model, some, tmp_path / "one")
    message = "2 of 32 training pairs are longer than the 32 tokens that bart@tiny reads, and are left out."
    assert message in caplog.messages
    every = data_from_cli({"train": [write_pairs(tmp_path / "all.tsv", long[:1] * 3)], "dev": [tmp_path / "dev.tsv"]})
    with pytest.raises(UserError, match=r"every pair to train on is longer than the 32 tokens .*all\.tsv, line 2;"):
        run_briefly(model, every, tmp_path / "two")
    assert not (tmp_path / "two").exists() and not list(tmp_path.glob(".two*"))


def test_lists_of_sentences_and_several_references_are_read(tmp_path, models):
    """SciTLDR's format: a source is a list of sentences, a target a list of summaries."""
    rows = [{"source": ["ink lamp.", "page"], "target": [target]} for target in ("leaf", "tree")] * 20
    train, dev = tmp_path / "train.jsonl", tmp_path / "dev.jsonl"
    train.write_text("".join(json.dumps(row) + "\n" for row in rows))
    right = [{"source": ["ink", "lamp"], "target": ["text copy noon", "tree"]},
             {"source": ["page"], "target": ["leaf"]}]
    dev.write_text("".join(json.dumps(row) + "\n" for row in right))
    result = finetune_seq2seq(models("bart"), data_from_cli({"train": [train], "dev": [dev]}), tmp_path / "run",
                              steps=2, beams=1)
    lines = [json.loads(line) for line in (tmp_path / "run" / "dev.jsonl").read_text().splitlines()]
    assert [line["source"] for line in lines] == ["ink lamp", "page"]
    assert [line["references"] for line in lines] == [["text copy noon", "tree"], ["leaf"]]
    assert result["metrics"]["dev"]["signatures"]["bleu"].startswith("nrefs:2")
    text = lines[0]["text"]
    matches = (text in right[0]["target"]) + (lines[1]["text"] == "leaf")
    assert result["metrics"]["dev"]["exact_match"] == 50 * matches


def test_outputs_are_not_longer_than_the_longest_training_target(tmp_path, models):
    """An untrained model would generate up to its maximum length."""
    train, dev = (write_pairs(tmp_path / f"{name}.tsv", [(" ".join(["ink"] * 9), target)] * 4)
                  for name, target in (("train", "lamp page"), ("dev", "lamp page leaf tree")))
    finetune_seq2seq(models("bart"), data_from_cli({"train": [train], "dev": [dev]}), tmp_path / "run", steps=1,
                     beams=1)
    _, plan = read_run(tmp_path / "run")
    assert plan.task is not None and plan.task["longest"] == 3  # and the end
    lines = [json.loads(line) for line in (tmp_path / "run" / "dev.jsonl").read_text().splitlines()]
    assert all(len(line["text"].split()) <= 3 for line in lines)


def test_the_best_of_several_references_counts():
    from stemma.tasks.runs.seq2seq import _score_task

    scores = _score_task([("the old clerk reads a page", ["nothing of the kind", "the old clerk reads a page"]),
                          ("seven pages are missing now", ["seven pages are missing now"])])
    assert scores["exact_match"] == 100 and scores["bleu"] == pytest.approx(100) and scores["rouge_l"] == 100
    # a row with fewer references than others still has the brevity penalty: half the length costs exp(1 - 2)
    long = "seven pages of the old manuscript are missing and nobody knows since when"
    short = _score_task([("seven pages of the", [long]), ("the clerk reads a page", ["a", "the clerk reads a page"])])
    assert short["bleu"] == pytest.approx(36.79, abs=0.01)
    chinese = _score_task([("他在河边读书", ["他在河边读书"])])
    assert "tok:zh" in chinese["signatures"]["bleu"] and chinese["bleu"] == pytest.approx(100)


def test_a_network_with_more_embeddings_than_tokens_trains(tmp_path, models, data):
    """T5's matrix is larger than its vocabulary."""
    model = models("t5", extra_embeddings=12)
    run_briefly(model, data, tmp_path / "run")
    tuned = load(tmp_path / "run")
    assert tuned.network.vocab_size == tuned.require_tokenizer().vocab_size + 12


def test_the_model_to_start_from_is_not_overwritten(tmp_path, models, data):
    run_briefly(models("bart"), data, tmp_path / "run")
    for start in (tmp_path / "run", tmp_path / "run" / "model"):
        with pytest.raises(UserError, match="the model to start from lies in"):
            run_briefly(start, data, tmp_path / "run", overwrite=True)
    assert (tmp_path / "run" / "result.json").is_file()


PLAN = """
temperature = 2.0
limit = 100
[tasks.first]
kind = "seq2seq"
train = "first.tsv"
dev = ["first-dev.tsv"]
metric = "exact_match"
[tasks.second]
kind = "seq2seq"
prefix = "second : "
train = "second.tsv"
dev = "second-dev.tsv"
metric = "rouge_l"
"""


@pytest.fixture
def plan(tmp_path):
    """The same sources for two tasks; a prefix names the target language."""
    for name, shift, count in (("first", 3, 400), ("second", 5, 25)):
        every = list(dict.fromkeys(pairs(count * 3, 1, longest=1 if name == "second" else 2, shift=shift)))
        write_pairs(tmp_path / f"{name}.tsv", (every * 40)[:count])
        write_pairs(tmp_path / f"{name}-dev.tsv", every[:8])
    file = tmp_path / "plan.toml"
    file.write_text(PLAN.replace("[tasks.first]", '[tasks.first]\nprefix = "first : "'))
    return file


def read_plan(path) -> Seq2SeqData:
    return read_multitask_plan(path).seq2seq_data()


def test_a_mixture_of_tasks_learns_all_of_them(tmp_path, models, plan, caplog):
    result = finetune_seq2seq(models("t5"), read_plan(plan), tmp_path / "run", steps=400, beams=1, seed=SEED,
                      changes=[rate("t5"), "training.batch_size=8"])
    assert "sampling rates of the tasks: first 66.7%, second 33.3%." in caplog.messages  # sqrt(100) and sqrt(25)
    dev = result["metrics"]["dev"]
    assert dev["tasks"]["first"]["exact_match"] >= 70 and dev["tasks"]["second"]["exact_match"] >= 70
    assert dev["mean"] == (dev["tasks"]["first"]["exact_match"] + dev["tasks"]["second"]["rouge_l"]) / 2
    translations = stemma.translate(tmp_path / "run", ["first : ink", "second : ink"], greedy=True)
    assert [one.text for one in translations] == [*translated(["ink"], 3), *translated(["ink"], 5)]
    mixture = recipe(tmp_path / "run" / "recipe.toml").settings.corpus.mixture
    assert (mixture.temperature, mixture.limit) == (2.0, 100)


def test_tasks_are_sampled_at_the_stated_rates(tmp_path, models, plan):
    from stemma.objectives import build_objectives
    from stemma.training.pretrain_loader import PretrainLoader

    run_briefly(models("t5"), read_plan(plan), tmp_path / "run")
    run_recipe, _ = read_run(tmp_path / "run")
    corpus = Corpus.open(tmp_path / "run" / "corpus")
    loader = PretrainLoader(run_recipe, corpus, build_objectives(run_recipe), seed=1)
    border = int(corpus.document_starts[corpus.manifest["groups"][1]["first"]])
    end = int(corpus.document_starts[corpus.manifest["groups"][2]["first"]])
    starts = np.concatenate([loader.build_draft(step, 32)[0].spans.start
                             for step in range(3 * loader.epoch_stats().steps)])
    assert starts.max() < end  # what is held out is never drawn
    assert np.mean(starts >= border) == pytest.approx(1 / 3, abs=0.01)


def test_all_problems_of_a_plan_are_reported_together(tmp_path, plan):
    plan.write_text(PLAN.replace("temperature", "temprature").replace("limit = 100", "limit = 0")
                    .replace('"second.tsv"', '"missing.tsv"').replace('metric = "rouge_l"', 'metric = "rouge"')
                    + '[tasks.third]\nkind = "seq2seq"\ntrain = "first.tsv"\nprefx = "x"\n')
    with pytest.raises(UserError) as error:
        read_plan(plan)
    reported = dict(error.value.problems)
    assert reported["temprature = 2.0"] == 'no such key. Did you mean "temperature"?'
    assert reported["limit = 0"] == "must be 1 or more"
    assert reported["tasks.third.prefx = x"] == 'no such key. Did you mean "prefix"?'
    assert reported["tasks.second.metric = rouge"].startswith("must be one of bleu, chrf, rouge_l, exact_match")
    assert reported["tasks.third.dev"] == "is missing"
    assert error.value.message == f"{len(reported)} problems in the plan {plan}"
    plan.write_text(PLAN.replace('"second.tsv"', '"missing.tsv"').replace("second-dev", "gone")
                    .replace("limit", "finetune = true\nlimit"))
    with pytest.raises(UserError) as error:
        read_plan(plan)
    reported = dict(error.value.problems)
    assert "missing.tsv" in reported["tasks.second.train"] and "gone.tsv" in reported["tasks.second.dev"]
    assert reported["finetune = true"].startswith("fine-tunes each head separately")


def older(text: str) -> str:
    """As plans of text-to-text tasks were written before."""
    return re.sub(r"\[tasks\.(\w+)\]", r'[[task]]\nname = "\1"', text).replace('kind = "seq2seq"\n', "")


def test_a_legacy_plan_is_read_with_a_warning(plan, caplog):
    new = read_multitask_plan(plan)
    assert not caplog.messages
    plan.write_text(older(plan.read_text()))
    assert read_multitask_plan(plan) == new
    assert len(caplog.messages) == 1 and 'write [tasks.NAME] with kind = "seq2seq" now' in caplog.messages[0]
    plan.write_text(older(PLAN).replace('name = "second"', 'name = "first"'))
    with pytest.raises(UserError) as error:
        read_plan(plan)
    assert dict(error.value.problems)["tasks.first"] == "2 tasks have this name; give each its own"


def test_weights_multiply_the_sampling_rates_and_the_plan_sets_training(tmp_path, models, plan, caplog):
    text = plan.read_text().replace("temperature = 2.0", "epochs = 2")
    text = text.replace("limit = 100", "[training]\nbatch_size = 3")
    plan.write_text(text.replace("[tasks.second]", "weight = 3\n[tasks.second]"))
    multitask(plan, models("t5"), tmp_path / "run", steps=1, seed=SEED)
    assert "sampling rates of the tasks: first 98.0%, second 2.0%." in caplog.messages  # 3 * 400 and 25
    run_recipe, noted = read_run(tmp_path / "run")
    assert run_recipe.settings.training.batch_size == 3 and noted.task is not None and noted.task["kind"] == "seq2seq"
    assert read_plan(plan).epochs == 2


def test_a_mixed_plan_is_rejected(plan):
    plan.write_text(PLAN + '[tasks.third]\nkind = "classify"\ntrain = "first.tsv"\ndev = "first.tsv"\n')
    with pytest.raises(UserError) as error:
        read_plan(plan)
    assert error.value.problems == [("tasks", "first, second are text to text, and third has a head: a plan cannot "
                                              "mix them; make two plans, or make all tasks text to text, "
                                              'with kind = "seq2seq"')]
    plan.write_text('[tasks.third]\nkind = "classify"\ntrain = "first.tsv"\ndev = "first.tsv"\n')
    with pytest.raises(UserError, match="have heads and do not generate text; train them with `stemma multitask"):
        read_plan(plan)


@pytest.mark.parametrize(("text", "expected"), [("", "a plan has a table"), ("task = 3", "a plan has a table"),
                                            ("task = [3]", "must be a table"),
                                            ("[tasks]\na = 1", "must be a table"), ("[[task", "is not valid TOML")])
def test_invalid_plans_are_rejected(tmp_path, text, expected):
    (tmp_path / "plan.toml").write_text(text)
    with pytest.raises(UserError) as error:
        read_plan(tmp_path / "plan.toml")
    assert expected in str(error.value)
