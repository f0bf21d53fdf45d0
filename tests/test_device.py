"""The --device option: every verb with a network has it, runs record it, and invalid devices give a one-line error."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest
import torch
from toy_tasks import save_model

import stemma
from stemma import cli
from stemma.device import choose_device, requested_device, use_device
from stemma.training.hardware import run_device
from stemma.training.run_folder import read_run_config

SMALL = ["network.width=16", "network.layers=1", "network.feedforward=16", "training.batch_size=2",
         "training.threads=1"]
WITHOUT = {"tree", "show", "diff", "average", "clean", "overlap", "export", "convert",  # verbs without a network
           "neighbours", "analogy", "similarity"}  # look up word vectors


def test_every_command_with_a_network_has_the_device_option():
    command = cli._build_command()
    verbs = {name: verb for name, verb in command.commands.items()
             if name not in WITHOUT and not hasattr(verb, "commands")}
    verbs |= {f"finetune {name}": verb for name, verb in command.commands["finetune"].commands.items()}
    verbs["claims run"] = command.commands["claims"].commands["run"]
    assert len(verbs) > 20
    for name, verb in verbs.items():
        assert any("--device" in parameter.opts for parameter in verb.params), name


@pytest.mark.parametrize(("name", "expected"), [
    ("gpu", '--device is "gpu"; choose auto, cpu, cuda, cuda:N (the N-th, from 0) or mps.'),
    ("cuda", "there is no CUDA device here for --device cuda (torch sees none); choose cpu, or auto for the best"),
    ("cuda:3", "there is no CUDA device here for --device cuda:3"),
    ("mps", "there is no Apple GPU here for --device mps; choose cpu"),
])
def test_a_missing_or_unknown_device_is_rejected(name, expected, tmp_path, monkeypatch, capsys, corpus_folder):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    monkeypatch.chdir(tmp_path)
    save_model(tmp_path / "bert")
    for command in (["pretrain", "bert@tiny", "--corpus", str(corpus_folder), "--steps", "1", "--out", "run", *SMALL],
                    ["fill", "bert", "the [MASK] reads"]):
        assert cli.main([*command, "--device", name]) == 2
        error = capsys.readouterr().err
        assert error.startswith(f"error: {expected}") and error.count("\n") == 1, error
    assert not Path("run").exists() and requested_device() is None
    with pytest.raises(stemma.UserError, match="device"):
        stemma.load("bert", device=name)


def test_a_run_records_its_device(tmp_path, corpus_folder, capsys):
    run = tmp_path / "run"
    assert cli.main(["pretrain", "bert@tiny", "--corpus", str(corpus_folder), "--steps", "1", "--out", str(run),
                     "--device", "cpu", *SMALL]) == 0
    assert json.loads((run / "run.json").read_text())["device"] == "cpu"
    assert json.loads((run / "result.json").read_text())["device"] == "cpu"
    assert requested_device() is None
    other = tmp_path / "other"
    result = stemma.pretrain(stemma.recipe("bert@tiny", SMALL), str(corpus_folder), other, steps=1)
    assert result["device"] == json.loads((other / "run.json").read_text())["device"] == choose_device().type
    model = stemma.load(run, device="cpu")
    assert model.device == torch.device("cpu")


def test_a_resumed_run_keeps_its_device_unless_another_is_requested(tmp_path, corpus_folder, monkeypatch, caplog):
    run = tmp_path / "run"
    stemma.pretrain(stemma.recipe("bert@tiny", SMALL), str(corpus_folder), run, steps=1, device="cpu")
    caplog.clear()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert run_device(run) == torch.device("cpu") and caplog.messages == []  # `auto` would be cuda by now
    with use_device("cuda"):
        assert run_device(run) == torch.device("cuda")
    assert read_run_config(run).device == "cuda" and len(caplog.messages) == 1
    assert "ran on cpu before and continues on cuda" in caplog.messages[0]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(stemma.UserError, match="there is no CUDA device here for --device cuda"):
        run_device(run)


def test_runs_of_earlier_versions_have_device_auto(tmp_path, corpus_folder):
    run = tmp_path / "run"
    stemma.pretrain(stemma.recipe("bert@tiny", SMALL), str(corpus_folder), run, steps=1)
    stored = json.loads((run / "run.json").read_text())
    del stored["device"]
    (run / "run.json").write_text(json.dumps(stored))
    (run / "checksums.json").unlink()
    with use_device("cpu"):
        assert read_run_config(run).device == "auto"


def test_a_requested_device_is_local_to_its_thread():
    seen = []
    with use_device("cpu"):
        thread = threading.Thread(target=lambda: seen.append(requested_device()))
        thread.start()
        thread.join()
        assert requested_device() == "cpu"
    assert seen == [None] and requested_device() is None
