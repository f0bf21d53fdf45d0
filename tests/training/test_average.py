"""Checkpoint averaging is the exact mean of the newest checkpoints, and refuses damaged ones."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import stemma
from stemma.errors import CorruptFileError, UserError
from stemma.training.average import average, load_averaged_weights
from stemma.training.checkpoints import checkpoints_newest_first

SMALL = ["network.width=16", "network.heads=2", "network.layers=1", "network.feedforward=32",
         "corpus.sequence_length=32", "training.batch_size=2", "training.warmup_steps=1"]


@pytest.fixture(scope="module")
def run(tmp_path_factory, corpus_folder):
    out = tmp_path_factory.mktemp("average") / "run"
    stemma.pretrain("bert@tiny", corpus_folder, out, steps=6,
                    changes=[*SMALL, "training.checkpoint_every=2", "training.keep_checkpoints=5"])
    return out


def weights_of(folder):
    return load_file(folder / "weights.safetensors")


def test_the_average_is_the_mean_of_the_newest_checkpoints(run, tmp_path):
    result = average(run, 2, tmp_path / "mean")
    assert result == {"run": str(run), "out": str(tmp_path / "mean"), "checkpoints": 2, "steps": [4, 6]}
    newest, older = map(weights_of, checkpoints_newest_first(run)[:2])
    actual = stemma.load(tmp_path / "mean").network.state_dict()
    assert any(not torch.equal(newest[name], older[name]) for name in newest)
    for name, tensor in newest.items():
        expected = (tensor.double() + older[name].double()) / 2
        assert torch.equal(actual[name], expected.float()), name


def test_the_average_of_one_checkpoint_is_the_model(run, tmp_path):
    average(run, 1, tmp_path / "mean")
    assert (tmp_path / "mean/model.safetensors").read_bytes() == (run / "model/model.safetensors").read_bytes()
    assert stemma.load(tmp_path / "mean").recipe.label == "bert@tiny"


def test_weights_are_summed_in_double_precision(tmp_path):
    """In single precision the sum of large and small numbers loses the small ones."""
    values = [3e7, 1.0, 1.0, -3e7, 2.0]
    for index, value in enumerate(values):
        save_file({"w": torch.tensor([value]), "count": torch.tensor([index])}, tmp_path / f"{index}")
    result = {"w": torch.zeros(1), "count": torch.zeros(1, dtype=torch.int64)}
    load_averaged_weights(result, [tmp_path / str(index) for index in range(5)])
    assert result["w"].item() == np.float32(0.8) and result["count"].item() == 0  # integers are not averaged


def test_the_default_output_is_the_folder_averaged_in_the_run(run, tmp_path):
    shutil.copytree(run, tmp_path / "run")
    assert average(tmp_path / "run", 3)["out"] == str(tmp_path / "run/averaged")
    assert stemma.load(tmp_path / "run/averaged").tokenizer is not None
    with pytest.raises(UserError, match="averaged exists and is not empty"):
        average(tmp_path / "run", 3)
    average(tmp_path / "run", 2, overwrite=True)


def test_averaging_an_unfinished_run_uses_the_tokenizer_of_the_corpus(run, tmp_path):
    shutil.copytree(run, tmp_path / "run")
    shutil.rmtree(tmp_path / "run/model")
    assert average(tmp_path / "run", 2)["steps"] == [4, 6]
    plan = json.loads((tmp_path / "run/run.json").read_text())
    (tmp_path / "run/run.json").write_text(json.dumps({**plan, "corpus": str(tmp_path / "gone")}))
    (tmp_path / "run/checksums.json").unlink()
    with pytest.raises(UserError, match="has no model yet and its corpus is gone"):
        average(tmp_path / "run", 2, overwrite=True)


def test_missing_and_damaged_checkpoints_are_refused(run, tmp_path):
    with pytest.raises(UserError, match=r"has 3 checkpoints, not 5; use --last 3, or .*keep_checkpoints=5"):
        average(run, 5, tmp_path / "mean")
    with pytest.raises(UserError, match="--last must be 1 or more"):
        average(run, 0, tmp_path / "mean")
    with pytest.raises(UserError, match="is not a run"):
        average(tmp_path, 2)
    shutil.copytree(run, tmp_path / "run")
    damaged = checkpoints_newest_first(tmp_path / "run")[1] / "weights.safetensors"
    content = bytearray(damaged.read_bytes())
    content[-1] ^= 1
    damaged.write_bytes(content)
    with pytest.raises(CorruptFileError, match="step-4/weights.safetensors is damaged.*delete .*step-4"):
        average(tmp_path / "run", 2)
    assert not (tmp_path / "run/averaged").exists() and average(tmp_path / "run", 1)
    shutil.rmtree(tmp_path / "run/checkpoints")
    with pytest.raises(UserError, match="has no checkpoint, not 1; train with"):
        average(tmp_path / "run", 1, overwrite=True)
