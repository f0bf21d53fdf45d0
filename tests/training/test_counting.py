"""A training method without gradient descent: the bigram model of docs/how-to/extending.md, trained by counting."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path

import pytest
import torch
from closeness import assert_close
from commands import has_checkpoint
from commands import start_unreported as start
from commands import stemma_unreported as run
from conftest import small_text

import stemma
from stemma import plugins, registry
from stemma.corpus.corpus import Corpus
from stemma.errors import UserError
from stemma.objectives import build_objectives
from stemma.plugins import use_plugin
from stemma.training.pretrain_loader import PretrainLoader
from stemma.training.run_folder import read_run

PAGE = (Path(__file__).parent.parent.parent / "docs" / "how-to" / "extending.md").read_text()
FILES = dict(re.findall(r"^```(?:toml|python)\n# (\S*bigram\.(?:toml|py))\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL))
OFTEN = ["training.checkpoint_every=2", "training.validate_every=20", "training.log_every=1", "training.batch_size=4",
         "network.width=16", "corpus.sequence_length=32", "training.precision=fp32"]
PLUGIN = ["--plugin", "my_bigram.py"]
STEPS = 30


@pytest.fixture(scope="module")
def counting_runs(tmp_path_factory, corpus_folder) -> Path:
    """A folder with the plug-in, an uninterrupted run and a run that is killed and resumed."""
    folder = tmp_path_factory.mktemp("counting")
    for name, content in FILES.items():
        (folder / name).write_text(content)
    (folder / "held-out.txt").write_text(small_text(seed=1))
    command = ["pretrain", "bigram.toml@tiny", "--corpus", corpus_folder, "--steps", STEPS, "--json", *OFTEN]
    uninterrupted = run(*command, "--out", "uninterrupted", folder=folder)
    assert uninterrupted.code == 0, uninterrupted.err
    start(*command, "--out", "killed", folder=folder).kill_when(lambda: has_checkpoint(folder / "killed", 2))
    assert not (folder / "killed" / "result.json").exists()
    resumed = run("resume", "killed", *PLUGIN, folder=folder)
    assert resumed.code == 0, resumed.err
    return folder


@pytest.fixture
def loaded(counting_runs, monkeypatch) -> Path:
    """The same folder, with the plug-in loaded in this process during the test."""
    for slot in registry.BUILT_IN:
        registry.entries(slot)
    monkeypatch.setattr(plugins, "_loaded", {})
    monkeypatch.setattr(registry, "_entries", dict(registry._entries))
    use_plugin(counting_runs / "my_bigram.py")
    return counting_runs


def weights(run: Path) -> bytes:
    return (run / "model" / "model.safetensors").read_bytes()


def test_a_killed_run_resumes_to_the_same_bytes(counting_runs):
    assert weights(counting_runs / "uninterrupted") == weights(counting_runs / "killed")
    results = [json.loads((counting_runs / name / "result.json").read_text()) for name in ("uninterrupted", "killed")]
    for key in ("steps", "tokens", "loss", "losses", "validation_loss", "unigram_loss"):
        assert results[0][key] == results[1][key], key
    assert results[0]["steps"] == STEPS and results[0]["validation_loss"] < 0.8 * results[0]["unigram_loss"]
    lines = [json.loads(line) for line in (counting_runs / "uninterrupted" / "log.jsonl").read_text().splitlines()]
    losses = [line["loss"] for line in lines if "loss" in line]
    assert len(losses) == STEPS and "learning_rate" not in lines[0]
    assert sum(losses[-5:]) < sum(losses[:5])


def test_counts_and_smoothed_probabilities_match_the_text(loaded, corpus_folder):
    resolved, plan = read_run(loaded / "uninterrupted")
    loader = PretrainLoader(resolved, Corpus.open(corpus_folder), build_objectives(resolved), plan.seed)
    pairs: Counter[tuple[int, int]] = Counter()
    for step in range(STEPS):
        batch = loader.get_batch(step, 32).batch
        target = batch.token_targets["vocabulary"]
        before = batch.streams["encoder"].input_ids.flatten()[target.index]
        pairs.update(zip(before.tolist(), target.labels.tolist(), strict=True))
    loader.close()
    model = stemma.load(loaded / "uninterrupted")
    counts = model.network.heads["vocabulary"].counts
    assert counts.dtype == torch.int32 and int(counts.sum()) == pairs.total()
    assert {(int(a), int(b)): int(counts[a, b]) for a, b in counts.nonzero()} == pairs

    (first, second), _ = pairs.most_common(1)[0]  # the smoothed probability, by its formula
    after, size = sum(n for (a, _), n in pairs.items() if a == first), len(counts)
    unigram = (sum(n for (_, b), n in pairs.items() if b == second) + 1) / (pairs.total() + size)
    result = model.logits(torch.tensor([[second, first]]))[0, 1].exp()
    assert_close(result[second], torch.tensor((pairs[first, second] + 5.0 * unigram) / (after + 5.0)))
    assert_close(result.sum(), torch.tensor(1.0))


def test_the_model_can_be_loaded_saved_and_evaluated(loaded, tmp_path):
    model = stemma.load(loaded / "uninterrupted")
    stemma.save(model, tmp_path / "again")
    assert (tmp_path / "again" / "model.safetensors").read_bytes() == weights(loaded / "uninterrupted")
    written = model.generate("the old", tokens=5, seed=1)[0]
    assert written.text
    completed = run("perplexity", "uninterrupted", "held-out.txt", "--json", *PLUGIN, folder=loaded)
    assert completed.code == 0, completed.err
    uniform = len(model.network.heads["vocabulary"].counts)
    assert completed.json["perplexity"] < 0.5 * uniform


def test_counting_without_a_count_model_is_refused(loaded, tmp_path, corpus_folder):
    with pytest.raises(UserError, match=r"needs a model of counts: add objective\.bigram"):
        stemma.pretrain("gpt2@tiny", corpus_folder, tmp_path / "run", steps=2,
                        changes=["training.method.kind=counting"])
    assert not (tmp_path / "run").exists()


def test_a_checkpoint_of_another_training_method_is_refused(loaded, tmp_path):
    """Gradient descent reports a checkpoint of the counting method as incompatible."""
    from stemma.training.optimizer_state import OptimizerState

    network = torch.nn.Linear(2, 2)
    other = OptimizerState(network, torch.optim.SGD(network.parameters(), 0.1))
    state = json.loads(next((loaded / "uninterrupted" / "checkpoints").glob("step-*/state.json")).read_text())
    assert other.incompatibility(state["optimizer"]) == "another optimizer (Counting, not SGD, or other groups)"
