import errno
import json
import os
import resource
import shutil
import subprocess

import pytest
import torch
from pydantic import TypeAdapter
from safetensors import safe_open
from torch import nn

from stemma.errors import CorruptFileError, UserError
from stemma.network.block import Block
from stemma.schema.training import AnyOptimizer
from stemma.training import checkpoints
from stemma.training.checkpoints import Checkpoint, latest_checkpoint
from stemma.training.optimizer_state import OptimizerState
from stemma.training.optimizers import build_optimizer, set_learning_rate

KINDS = ["adamw", "adam", "lamb", "adamax", "adafactor", "stable_adamw", "muon", "adagrad"]


class Hidden(Block):
    """A block with a matrix that Muon trains as two fused matrices."""

    joined = {"map": 2}

    def __init__(self, width):
        nn.Module.__init__(self)
        self.map = nn.Linear(width, width)

    def forward(self, x):
        return self.map(x)


class Tiny(nn.Module):
    """A network with a tied matrix, a buffer, and a parameter without a gradient before step 3."""

    def __init__(self, width=6, hidden=False):
        super().__init__()
        self.embed = nn.Embedding(11, width)
        self.norm = nn.LayerNorm(width)
        self.outer = nn.Linear(width, 11)
        self.outer.weight = self.embed.weight
        self.late = Hidden(width) if hidden else nn.Linear(width, width)
        self.register_buffer("seen", torch.zeros(11, dtype=torch.int64))

    def forward(self, ids, step):
        self.seen[ids] += 1
        hidden = self.norm(self.embed(ids))
        return self.outer(self.late(hidden) if step >= 3 else hidden)


def build(kind="adamw", seed=0, width=6):
    torch.manual_seed(seed)
    network = Tiny(width, hidden=kind == "muon")
    return network, build_optimizer(network, TypeAdapter(AnyOptimizer).validate_python({"kind": kind}), 1.0)


def save_checkpoint(run, network, optimizer, checkpoint, keep):
    return checkpoints.save_checkpoint(run, network, OptimizerState(network, optimizer), checkpoint, keep)


def load_checkpoint(folder, network, optimizer):
    return checkpoints._load(folder, network, OptimizerState(network, optimizer), f"delete {folder}.")


def load_latest(run, network, optimizer):
    return checkpoints.load_latest(run, network, OptimizerState(network, optimizer))


def train(network, optimizer, first, last):
    for step in range(first, last + 1):
        set_learning_rate(optimizer, 0.01 / step)
        generator = torch.Generator().manual_seed(step)
        ids, labels = torch.randint(0, 11, (2, 7), generator=generator)
        optimizer.zero_grad()
        nn.functional.cross_entropy(network(ids, step), labels).backward()
        optimizer.step()


def train_and_save(run, step, kind="adamw", keep=9, **values):
    network, optimizer = build(kind)
    train(network, optimizer, 1, step)
    return save_checkpoint(run, network, optimizer, Checkpoint(step, step * 14, values), keep)


def checkpoint_names(run):
    return sorted(path.name for path in (run / "checkpoints").iterdir())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("stop", [1, 3])
def test_saving_and_loading_does_not_change_training(tmp_path, kind, stop):
    uninterrupted = build(kind)
    train(*uninterrupted, 1, 6)
    expected = save_checkpoint(tmp_path / "uninterrupted", *uninterrupted, Checkpoint(6, 84), keep=1)

    interrupted = build(kind)
    train(*interrupted, 1, stop)
    checkpoint = Checkpoint(stop, 14 * stop, {"position": [3, 2**70]})
    folder = save_checkpoint(tmp_path / "interrupted", *interrupted, checkpoint, keep=1)
    resumed = build(kind, seed=99)
    assert load_checkpoint(folder, *resumed) == Checkpoint(stop, 14 * stop, {"position": [3, 2**70]})
    assert resumed[1].param_groups[0]["lr"] == 0.01 / stop
    train(*resumed, stop + 1, 6)
    assert kind != "muon" or "momentum" in resumed[1].state[resumed[0].late.map.weight]
    result = save_checkpoint(tmp_path / "interrupted", *resumed, Checkpoint(6, 84), keep=1)
    for name in ("weights.safetensors", "optimizer.safetensors", "state.json", "checksums.json"):
        assert (result / name).read_bytes() == (expected / name).read_bytes(), name


def test_tensors_are_stored_by_name_and_tied_ones_once(tmp_path):
    folder = train_and_save(tmp_path, 2)
    with safe_open(folder / "weights.safetensors", framework="pt") as file:
        assert set(file.keys()) == {"embed.weight", "norm.weight", "norm.bias", "outer.bias", "late.weight",
                                    "late.bias", "seen"}
        assert file.metadata() == {"format": "pt"}
    with safe_open(folder / "optimizer.safetensors", framework="pt") as file:
        used = ("embed.weight", "norm.weight", "norm.bias", "outer.bias")
        assert set(file.keys()) == {f"{name}/{key}" for name in used for key in ("step", "exp_avg", "exp_avg_sq")}
        assert file.get_tensor("embed.weight/step").item() == 2
        assert file.metadata() == {"format": "pt"}
    assert set(json.loads((folder / "checksums.json").read_text())) == {"weights.safetensors", "optimizer.safetensors",
                                                                        "state.json"}


def test_tied_tensors_are_tied_after_loading(tmp_path):
    folder = train_and_save(tmp_path, 2)
    network, optimizer = build(seed=5)
    load_checkpoint(folder, network, optimizer)
    assert network.outer.weight is network.embed.weight
    assert optimizer.param_groups[0]["params"][0] is network.embed.weight


@pytest.mark.parametrize("kind", KINDS)
def test_loaded_tensors_are_aligned_to_64_bytes(tmp_path, kind):
    """A kernel may round differently at another alignment, and resumed runs must give the same bytes."""
    network, optimizer = build(kind)
    train(network, optimizer, 1, 4)
    memories = {"rows": {"first": torch.randn(3, 5), "second": torch.randn(3, 5)}}
    folder = save_checkpoint(tmp_path, network, optimizer, Checkpoint(4, 56, {}, memories), keep=1)
    resumed = build(kind, seed=7)
    result = load_checkpoint(folder, *resumed).memories
    tensors = [*resumed[0].parameters(), *result["rows"].values()]
    tensors += [value for state in resumed[1].state.values() for value in state.values() if torch.is_tensor(value)]
    assert len(tensors) > 10 and [tensor.shape for tensor in tensors if tensor.data_ptr() % 64] == []
    assert all(torch.equal(result["rows"][name], memories["rows"][name]) for name in memories["rows"])


def test_only_the_newest_checkpoints_are_kept(tmp_path):
    for step in (2, 9, 10):
        train_and_save(tmp_path, step, keep=2)
    assert checkpoint_names(tmp_path) == ["step-10", "step-9"]
    assert latest_checkpoint(tmp_path).name == "step-10"  # ordered by step, not by name


def test_the_same_step_can_be_saved_again(tmp_path):
    train_and_save(tmp_path, 3, note="first")
    train_and_save(tmp_path, 3, note="second")
    assert checkpoint_names(tmp_path) == ["step-3"]
    assert load_checkpoint(tmp_path / "checkpoints" / "step-3", *build()).state == {"note": "second"}


def test_temporary_folders_of_a_killed_run_are_removed_and_never_loaded(tmp_path):
    leftover = tmp_path / "checkpoints" / ".step-7.0123abcd.tmp"
    leftover.mkdir(parents=True)
    (leftover / "weights.safetensors").write_bytes(b"half")
    assert latest_checkpoint(tmp_path) is None
    assert load_latest(tmp_path, *build()) is None
    train_and_save(tmp_path, 2)
    assert checkpoint_names(tmp_path) == ["step-2"]


def test_the_latest_checkpoint_is_a_complete_one(tmp_path):
    train_and_save(tmp_path, 1)
    (train_and_save(tmp_path, 2) / "checksums.json").unlink()
    assert latest_checkpoint(tmp_path).name == "step-1"
    assert latest_checkpoint(tmp_path / "nowhere") is None


def flip(path):
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("damage", ["flip", "truncate", "delete", "empty listing"])
@pytest.mark.parametrize("name", ["weights.safetensors", "optimizer.safetensors", "state.json"])
def test_a_damaged_checkpoint_is_refused_and_the_network_unchanged(tmp_path, damage, name):
    file = train_and_save(tmp_path, 2) / name
    if damage == "flip":
        flip(file)
    elif damage == "truncate":
        file.write_bytes(file.read_bytes()[:-20])
    elif damage == "delete":
        file.unlink()
    else:
        name = "checksums.json"
        (file.parent / name).write_text("")
    network, optimizer = build(seed=5)
    before = {key: value.clone() for key, value in network.state_dict().items()}
    with pytest.raises(CorruptFileError) as error:
        load_checkpoint(file.parent, network, optimizer)
    assert name in str(error.value) and "step-2" in str(error.value) and "delete" in str(error.value)
    assert "\n" not in str(error.value)
    assert all(torch.equal(value, before[key]) for key, value in network.state_dict().items())


def test_a_damaged_newest_checkpoint_falls_back_with_a_warning(tmp_path, caplog):
    for step in (1, 2, 3):
        train_and_save(tmp_path, step)
    flip(tmp_path / "checkpoints" / "step-3" / "optimizer.safetensors")
    (tmp_path / "checkpoints" / "step-2" / "state.json").unlink()
    assert load_latest(tmp_path, *build(seed=5)) == Checkpoint(1, 14)
    assert len(caplog.messages) == 2
    assert "step-3/optimizer.safetensors" in caplog.messages[0] and "step-2 instead" in caplog.messages[0]
    assert "state.json" in caplog.messages[1] and "step-1 instead" in caplog.messages[1]

    train_and_save(tmp_path, 2, keep=1)  # replaces the damaged step 3
    assert checkpoint_names(tmp_path) == ["step-2"]


def test_if_all_checkpoints_are_damaged_it_is_an_error(tmp_path, caplog):
    for step in (1, 2):
        flip(train_and_save(tmp_path, step) / "weights.safetensors")
    with pytest.raises(CorruptFileError, match=r"step-1/weights\.safetensors is damaged.* starts again from step 0"):
        load_latest(tmp_path, *build())
    assert len(caplog.messages) == 1


def test_a_checkpoint_of_another_network_or_optimizer_is_refused(tmp_path):
    folder = train_and_save(tmp_path, 2)
    with pytest.raises(UserError) as error:
        load_checkpoint(folder, *build(width=8))
    assert "another network" in error.value.message
    assert ("norm.bias", "is [6] in the checkpoint, [8] in this network") in error.value.problems
    assert len(error.value.problems) == 5
    network, optimizer = build("lamb", seed=5)
    before = network.embed.weight.clone()
    with pytest.raises(UserError, match="another optimizer"):
        load_checkpoint(folder, network, optimizer)
    assert torch.equal(network.embed.weight, before)


def assert_only_step_1_exists_and_loads(run):
    assert checkpoint_names(run) == ["step-1"]
    assert load_latest(run, *build(seed=5)).step == 1


@pytest.mark.parametrize("where", ["weights", "fsync"])
def test_a_full_disk_keeps_the_previous_checkpoint(tmp_path, monkeypatch, where):
    train_and_save(tmp_path, 1)

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    if where == "fsync":
        monkeypatch.setattr(os, "fsync", full)
    else:
        monkeypatch.setattr(checkpoints, "save_file", full)
    with pytest.raises(UserError, match="the disk is full while writing .*step-2"):
        train_and_save(tmp_path, 2, keep=1)
    monkeypatch.undo()
    assert_only_step_1_exists_and_loads(tmp_path)


def test_a_real_full_disk_keeps_the_previous_checkpoint(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = shutil.which("mount")
    if os.geteuid() or not mount or subprocess.run([mount, "-t", "tmpfs", "-o", "size=40k", "none", disk]).returncode:
        pytest.skip("mounting a small disk needs root")
    try:
        train_and_save(disk, 1)
        (disk / "filler").write_bytes(b"x" * 16384)
        with pytest.raises(UserError, match="the disk is full while writing .*step-2"):
            train_and_save(disk, 2, keep=1)
        assert_only_step_1_exists_and_loads(disk)
    finally:
        subprocess.run(["umount", disk], check=True)


def test_exceeding_the_file_size_limit_gives_an_error(tmp_path):
    train_and_save(tmp_path, 1)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (500, hard))
    try:
        with pytest.raises(UserError, match="step-2 would exceed the largest file"):
            train_and_save(tmp_path, 2, keep=1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert_only_step_1_exists_and_loads(tmp_path)
