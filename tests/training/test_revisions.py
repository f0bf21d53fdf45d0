"""Models saved at numbers of words read: where, which weights, exact resume, bad input."""

from __future__ import annotations

import json
import shutil
import signal
from contextlib import nullcontext
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from closeness import assert_close
from commands import start_unreported, stemma_unreported
from safetensors.torch import load_file

import stemma
from stemma.cli import main
from stemma.corpus.corpus import Corpus
from stemma.errors import UserError
from stemma.objectives import build_objectives
from stemma.recipe_loading import recipe
from stemma.training.callbacks import StepReport
from stemma.training.corpus_cache import adopt_tokenizer
from stemma.training.pretrain import pretrain, resume
from stemma.training.pretrain_loader import PretrainLoader
from stemma.training.revisions import RevisionSaver, list_revisions, parse_word_counts, revision_name

SMALL = ["network.width=16", "network.heads=2", "network.layers=1", "network.feedforward=24",
         "corpus.sequence_length=32", "training.batch_size=4", "training.warmup_steps=1", "training.validate_every=100",
         "training.checkpoint_every=1", "training.keep_checkpoints=100", "training.threads=1"]
STEPS = 8
COUNTS = [150, 151, 400, 10**6]  # the first two in one step, the last beyond the end


@pytest.fixture(scope="module")
def run(shared, corpus_folder):
    def make(folder: Path) -> None:
        pretrain("gpt2@tiny", corpus_folder, folder, steps=STEPS, changes=SMALL, checkpoint_words=COUNTS)

    return shared("revisions", make)


def words_of_steps(corpus_folder, name: str, changes: list[str], steps: int) -> list[int]:
    """The words of the rows of each step: WordPieces that continue no word, and no special tokens."""
    corpus = Corpus.open(corpus_folder)
    resolved = adopt_tokenizer(recipe(name, changes), corpus)
    loader = PretrainLoader(resolved, corpus, build_objectives(resolved), 0)
    special = set(corpus.tokenizer.special_token_ids.values())
    is_word = torch.tensor([index not in special and not corpus.tokenizer.id_to_token(index).startswith("##")
                            for index in range(corpus.tokenizer.vocab_size)])
    counts = []
    for step in range(steps):
        draft, _ = loader.build_draft(step, 32)
        counts.append(int(is_word[torch.from_numpy(draft.input_ids[draft.is_text]).long()].sum()))
    return counts


def read_folder(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_they_are_saved_after_the_step_that_reaches_the_number(run, corpus_folder):
    totals = torch.tensor(words_of_steps(corpus_folder, "gpt2@tiny", SMALL, STEPS)).cumsum(0).tolist()
    result = json.loads((run / "result.json").read_text())
    assert result["words"] == totals[-1] and result["revisions"] == ["words-150", "words-151", "words-400"]
    assert [(revision.words, revision.name) for revision in list_revisions(run)] == \
        list(zip(COUNTS, result["revisions"], strict=False))
    for revision in list_revisions(run):
        step = next(number for number, total in enumerate(totals, 1) if total >= revision.words)
        assert 1 < step < STEPS
        saved = load_file(revision.folder / "model.safetensors")
        after, before = (load_file(run / f"checkpoints/step-{at}/weights.safetensors") for at in (step, step - 1))
        name = "embedding.tokens.weight"
        table = next(tensor for key, tensor in saved.items() if key.endswith("wte.weight"))
        assert torch.equal(table, after[name]) and not torch.equal(table, before[name])


def test_a_number_is_reached_by_the_step_that_ends_on_it_or_passes_it(tmp_path):
    def write_model(folder: Path) -> None:
        saved.setdefault(folder.name, []).append(state.words)

    saved, state = {}, SimpleNamespace(words=0)
    trainer = SimpleNamespace(state=state, run=tmp_path, method=SimpleNamespace(evaluated_weights=nullcontext))
    saver = RevisionSaver([1, 10, 11, 25, 31], write_model)
    for words in (10, 0, 10, 10):
        state.words += words
        saver.on_step(trainer, StepReport(None, {}, {}, words))
    assert saved == {"words-1": [10], "words-10": [10], "words-11": [20], "words-25": [30]}


@pytest.mark.parametrize("name", ["t5@tiny", "xlnet@tiny", "mdlm@tiny"])
def test_objectives_of_every_shape_count_words(corpus_folder, tmp_path, name):
    """Corruption, permutation and targets of a decoder do not change how many words are read."""
    changes = [change for change in SMALL if "feedforward" not in change]
    changes += ["network.decoder.layers=1"] * (name == "t5@tiny") + ["network.attention.head_width=8"] * (
        name == "xlnet@tiny")
    result = pretrain(name, corpus_folder, tmp_path / "run", steps=2, changes=changes, checkpoint_words="20")
    assert result["revisions"] == ["words-20"]
    text = Corpus.open(corpus_folder)
    share = text.values_at("word_starts", torch.arange(text.num_tokens).numpy()).mean()
    assert result["words"] == pytest.approx(share * result["tokens"], rel=0.25)


def test_transformers_and_stemma_open_them(run):
    transformers = pytest.importorskip("transformers")
    revision = run / "revisions/words-400"
    model = stemma.load(revision)
    reference = transformers.AutoModelForCausalLM.from_pretrained(revision).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(revision)
    ids = tokenizer("the old clerk reads a letter.", return_tensors="pt").input_ids
    with torch.no_grad():
        assert_close(model.logits(ids), reference(ids).logits, 1e-4)
    assert model.tokenizer.encode("the old clerk").ids == tokenizer("the old clerk").input_ids


def test_saving_them_changes_nothing_in_training(run, corpus_folder, tmp_path):
    """Also with --from, where a saved model gets back the pooler that training does without."""
    pretrain("gpt2@tiny", corpus_folder, tmp_path / "without", steps=STEPS, changes=SMALL)
    model = "model/model.safetensors"
    assert (tmp_path / "without" / model).read_bytes() == (run / model).read_bytes()
    bert = [*SMALL, "remove=corpus.first_phase"]
    pretrain("bert@tiny", corpus_folder, tmp_path / "bert", steps=1, changes=bert)
    for out, words in (("with", "1,50"), ("plain", ())):
        pretrain("bert@tiny", corpus_folder, tmp_path / out, steps=3, init_from=tmp_path / "bert",
                 changes=[*bert, "remove=objective.next_sentence", "corpus.packing=full_sentences"],
                 checkpoint_words=words)
    assert read_folder(tmp_path / "with/model") == read_folder(tmp_path / "plain/model")
    for name in ("words-1", "words-50"):
        assert "bert.pooler.dense.weight" in load_file(tmp_path / "with/revisions" / name / "model.safetensors")


def test_a_run_killed_between_two_of_them_resumes_to_the_same_bytes(corpus_folder, tmp_path):
    changes = [*[change for change in SMALL if "_every" not in change], "training.checkpoint_every=5",
               "training.validate_every=2"]
    command = ["pretrain", "gpt2@tiny", "--corpus", corpus_folder, "--steps", 12, "--checkpoint-words",
               "150,400,700,1000", *changes]
    reference = stemma_unreported(*command, "--out", tmp_path / "whole", "--json")
    assert reference.code == 0, reference.err
    out = tmp_path / "killed"

    def saved(number: int) -> bool:
        return len(list_revisions(out)) >= number

    def saving() -> bool:
        return saved(3) and any((out / "revisions").glob(".words-*"))

    for index, condition in enumerate((lambda: saved(1), lambda: saved(2), saving)):
        words = [*command, "--out", out] if index == 0 else ["resume", out]
        ended = start_unreported(*words).kill_when(lambda condition=condition: condition() or
                                                   (out / "result.json").exists())
        assert ended.code == -signal.SIGKILL or index, ended.err
    resumed = stemma_unreported("resume", out, "--json")
    assert resumed.code == 0, resumed.err
    assert resumed.json["words"] == reference.json["words"]
    assert resumed.json["revisions"] == reference.json["revisions"] == ["words-150", "words-400", "words-700",
                                                                        "words-1K"]
    assert read_folder(out / "revisions") == read_folder(tmp_path / "whole/revisions")  # none twice, no leftover
    assert read_folder(out / "model") == read_folder(tmp_path / "whole/model")


def test_a_step_that_is_repeated_saves_the_same_bytes(run, corpus_folder, tmp_path):
    """Killed after a revision and before the next checkpoint: the revision is there, and its step is taken again."""
    out = tmp_path / "run"
    shutil.copytree(run, out)
    shutil.rmtree(out / "model")
    (out / "result.json").unlink()
    for step in range(2, STEPS + 1):
        shutil.rmtree(out / f"checkpoints/step-{step}")
    assert resume(out)["revisions"] == ["words-150", "words-151", "words-400"]
    assert read_folder(out / "revisions") == read_folder(run / "revisions")


def test_numbers_of_words_are_read_and_written():
    assert parse_word_counts("2M, 500K,1_000,2.5m,2000000,") == [1000, 500_000, 2_000_000, 2_500_000]  # in order, once
    assert parse_word_counts([7, "1B"]) == [7, 10**9]
    names = {150: "words-150", 1000: "words-1K", 1234: "words-1234", 12_500: "words-12.5K", 2_500_000: "words-2.5M",
             10**9: "words-1B", 10**9 + 1: "words-1000000001"}
    assert {words: revision_name(words) for words in names} == names
    counts = sorted({*names, *(10**power + 10**(power - 2) for power in range(3, 12))})
    assert [parse_word_counts(revision_name(words).removeprefix("words-")) for words in counts] == \
        [[words] for words in counts]
    assert all(revision_name(a) != revision_name(b) for a, b in pairwise(counts))


@pytest.mark.parametrize(("value", "wrong"), [
    ("1Q,2M,-3", ["1Q", "-3"]), ("0", ["0"]), ("1.5", ["1.5"]), ("0.0001K", ["0.0001K"]), ("many", ["many"]),
    ("9" * 400 + "B", ["9" * 400 + "B"]), ("1e6", ["1e6"]), (" , ", []), ("", [])])
def test_what_is_no_number_of_words_is_refused_before_anything_is_written(tmp_path, capsys, corpus_folder, value,
                                                                          wrong):
    out = tmp_path / "run"
    command = ["pretrain", "gpt2@tiny", "--corpus", str(corpus_folder), "--out", str(out), "--steps", "1", *SMALL]
    assert main([*command, f"--checkpoint-words={value}", "--json"]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("error: --checkpoint-words cannot be read; give numbers of words such as 1M,2M,5M")
    problems = [line for line in captured.err.splitlines() if "is no number of words; write 500K, 1M" in line]
    assert [problem.split()[0] for problem in problems] == wrong
    assert json.loads(captured.out)["error"] and not out.exists()


def test_numbers_that_are_not_reached_are_named(tmp_path, capsys, corpus_folder):
    command = ["pretrain", "gpt2@tiny", "--corpus", str(corpus_folder), "--steps", "2", *SMALL]
    assert main([*command, "--out", str(tmp_path / "a"), "--checkpoint-words", "1M,20,2M", "--json"]) == 0
    captured = capsys.readouterr()
    result = json.loads(captured.out)
    assert result["revisions"] == ["words-20"] and captured.out.count("\n") == 1
    assert f"the run read {result['words']:,} words, so it has no revision at 1,000,000, 2,000,000 words" in \
        captured.err
    assert main([*command, "--out", str(tmp_path / "b"), "--checkpoint-words", "20,40"]) == 0
    assert f"2 revisions in {tmp_path / 'b'}/revisions: words-20, words-40 (" in capsys.readouterr().out
    assert main([*command, "--out", str(tmp_path / "c"), "--json"]) == 0
    captured = capsys.readouterr()
    assert not json.loads(captured.out).keys() & {"words", "revisions"} and not (tmp_path / "c/revisions").exists()


def test_a_model_that_is_counted_has_none(tmp_path, corpus_folder):
    with pytest.raises(UserError, match="has no model before its training ends, so --checkpoint-words cannot"):
        pretrain("ngram", corpus_folder, tmp_path / "run", checkpoint_words="10")
    assert not (tmp_path / "run").exists()
