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

KINDS = ["adamw", "adam", "lamb", "adamax", "adafactor", "stable_adamw", "muon"]


class Hidden(Block):
    """What Muon trains: a matrix inside a block, here two that are joined."""

    joined = {"map": 2}

    def __init__(self, width):
        nn.Module.__init__(self)
        self.map = nn.Linear(width, width)

    def forward(self, x):
        return self.map(x)


class Tiny(nn.Module):
    """A tied matrix, a buffer, and a parameter that has no gradient before step 3."""

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


def make(kind="adamw", seed=0, width=6):
    torch.manual_seed(seed)
    network = Tiny(width, hidden=kind == "muon")
    return network, build_optimizer(network, TypeAdapter(AnyOptimizer).validate_python({"kind": kind}), 1.0)


def save_checkpoint(run, network, optimizer, standing, keep):
    return checkpoints.save_checkpoint(run, network, OptimizerState(network, optimizer), standing, keep)


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


def saved(run, step, kind="adamw", keep=9, **values):
    network, optimizer = make(kind)
    train(network, optimizer, 1, step)
    return save_checkpoint(run, network, optimizer, Checkpoint(step, step * 14, values), keep)


def names(run):
    return sorted(path.name for path in (run / "checkpoints").iterdir())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("stop", [1, 3])
def test_stop_and_go_is_bit_exact(tmp_path, kind, stop):
    straight = make(kind)
    train(*straight, 1, 6)
    expected = save_checkpoint(tmp_path / "straight", *straight, Checkpoint(6, 84), keep=1)

    halves = make(kind)
    train(*halves, 1, stop)
    folder = save_checkpoint(tmp_path / "halves", *halves, Checkpoint(stop, 14 * stop, {"position": [3, 2**70]}),
                             keep=1)
    fresh = make(kind, seed=99)
    assert load_checkpoint(folder, *fresh) == Checkpoint(stop, 14 * stop, {"position": [3, 2**70]})
    assert fresh[1].param_groups[0]["lr"] == 0.01 / stop
    train(*fresh, stop + 1, 6)
    assert kind != "muon" or "momentum" in fresh[1].state[fresh[0].late.map.weight]
    result = save_checkpoint(tmp_path / "halves", *fresh, Checkpoint(6, 84), keep=1)
    for name in ("weights.safetensors", "optimizer.safetensors", "state.json", "checksums.json"):
        assert (result / name).read_bytes() == (expected / name).read_bytes(), name


def test_contents_are_plain_named_and_tied_tensors_are_stored_once(tmp_path):
    folder = saved(tmp_path, 2)
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


def test_tied_tensors_stay_tied_after_loading(tmp_path):
    folder = saved(tmp_path, 2)
    network, optimizer = make(seed=5)
    load_checkpoint(folder, network, optimizer)
    assert network.outer.weight is network.embed.weight
    assert optimizer.param_groups[0]["params"][0] is network.embed.weight


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_restored_lies_where_torch_would_put_it(tmp_path, kind):
    """A kernel may round differently at another address, and the bytes that follow are promised."""
    network, optimizer = make(kind)
    train(network, optimizer, 1, 4)
    memories = {"rows": {"first": torch.randn(3, 5), "second": torch.randn(3, 5)}}
    folder = save_checkpoint(tmp_path, network, optimizer, Checkpoint(4, 56, {}, memories), keep=1)
    fresh = make(kind, seed=7)
    result = load_checkpoint(folder, *fresh).memories
    tensors = [*fresh[0].parameters(), *result["rows"].values()]
    tensors += [value for state in fresh[1].state.values() for value in state.values() if torch.is_tensor(value)]
    assert len(tensors) > 10 and [tensor.shape for tensor in tensors if tensor.data_ptr() % 64] == []
    assert all(torch.equal(result["rows"][name], memories["rows"][name]) for name in memories["rows"])


def test_old_ones_go_after_the_new_one_is_in_place(tmp_path):
    for step in (2, 9, 10):
        saved(tmp_path, step, keep=2)
    assert names(tmp_path) == ["step-10", "step-9"]
    assert latest_checkpoint(tmp_path).name == "step-10"  # by number, not by spelling


def test_the_same_step_can_be_saved_again(tmp_path):
    saved(tmp_path, 3, note="first")
    saved(tmp_path, 3, note="second")
    assert names(tmp_path) == ["step-3"]
    assert load_checkpoint(tmp_path / "checkpoints" / "step-3", *make()).state == {"note": "second"}


def test_leftovers_of_a_kill_are_removed_and_never_loaded(tmp_path):
    leftover = tmp_path / "checkpoints" / ".step-7.0123abcd.tmp"
    leftover.mkdir(parents=True)
    (leftover / "weights.safetensors").write_bytes(b"half")
    assert latest_checkpoint(tmp_path) is None
    assert load_latest(tmp_path, *make()) is None
    saved(tmp_path, 2)
    assert names(tmp_path) == ["step-2"]


def test_latest_skips_an_incomplete_one(tmp_path):
    saved(tmp_path, 1)
    (saved(tmp_path, 2) / "checksums.json").unlink()
    assert latest_checkpoint(tmp_path).name == "step-1"
    assert latest_checkpoint(tmp_path / "nowhere") is None


def flip(path):
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("damage", ["flip", "truncate", "delete", "empty listing"])
@pytest.mark.parametrize("name", ["weights.safetensors", "optimizer.safetensors", "state.json"])
def test_damage_is_named_and_nothing_is_touched(tmp_path, damage, name):
    file = saved(tmp_path, 2) / name
    if damage == "flip":
        flip(file)
    elif damage == "truncate":
        file.write_bytes(file.read_bytes()[:-20])
    elif damage == "delete":
        file.unlink()
    else:
        name = "checksums.json"
        (file.parent / name).write_text("")
    network, optimizer = make(seed=5)
    before = {key: value.clone() for key, value in network.state_dict().items()}
    with pytest.raises(CorruptFileError) as error:
        load_checkpoint(file.parent, network, optimizer)
    assert name in str(error.value) and "step-2" in str(error.value) and "delete" in str(error.value)
    assert "\n" not in str(error.value)
    assert all(torch.equal(value, before[key]) for key, value in network.state_dict().items())


def test_a_damaged_newest_falls_back_with_a_notice(tmp_path, caplog):
    for step in (1, 2, 3):
        saved(tmp_path, step)
    flip(tmp_path / "checkpoints" / "step-3" / "optimizer.safetensors")
    (tmp_path / "checkpoints" / "step-2" / "state.json").unlink()
    assert load_latest(tmp_path, *make(seed=5)) == Checkpoint(1, 14)
    assert len(caplog.messages) == 2
    assert "step-3/optimizer.safetensors" in caplog.messages[0] and "step-2 instead" in caplog.messages[0]
    assert "state.json" in caplog.messages[1] and "step-1 instead" in caplog.messages[1]

    saved(tmp_path, 2, keep=1)  # the line of the damaged step 3 was abandoned
    assert names(tmp_path) == ["step-2"]


def test_when_none_is_good_that_is_an_error(tmp_path, caplog):
    for step in (1, 2):
        flip(saved(tmp_path, step) / "weights.safetensors")
    with pytest.raises(CorruptFileError, match=r"step-1/weights\.safetensors is damaged.* starts again from step 0"):
        load_latest(tmp_path, *make())
    assert len(caplog.messages) == 1


def test_another_network_or_optimizer_is_refused(tmp_path):
    folder = saved(tmp_path, 2)
    with pytest.raises(UserError) as error:
        load_checkpoint(folder, *make(width=8))
    assert "another network" in error.value.message
    assert ("norm.bias", "is [6] in the checkpoint, [8] in this network") in error.value.problems
    assert len(error.value.problems) == 5
    network, optimizer = make("lamb", seed=5)
    before = network.embed.weight.clone()
    with pytest.raises(UserError, match="another optimizer"):
        load_checkpoint(folder, network, optimizer)
    assert torch.equal(network.embed.weight, before)


def assert_only_step_1_is_left_and_good(run):
    assert names(run) == ["step-1"]
    assert load_latest(run, *make(seed=5)).step == 1


@pytest.mark.parametrize("where", ["weights", "fsync"])
def test_a_full_disk_leaves_the_previous_one(tmp_path, monkeypatch, where):
    saved(tmp_path, 1)

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    if where == "fsync":
        monkeypatch.setattr(os, "fsync", full)
    else:
        monkeypatch.setattr(checkpoints, "save_file", full)
    with pytest.raises(UserError, match="the disk is full while writing .*step-2"):
        saved(tmp_path, 2, keep=1)
    monkeypatch.undo()
    assert_only_step_1_is_left_and_good(tmp_path)


def test_a_disk_that_is_really_full(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = shutil.which("mount")
    if os.geteuid() or not mount or subprocess.run([mount, "-t", "tmpfs", "-o", "size=40k", "none", disk]).returncode:
        pytest.skip("mounting a small disk needs root")
    try:
        saved(disk, 1)
        (disk / "filler").write_bytes(b"x" * 16384)
        with pytest.raises(UserError, match="the disk is full while writing .*step-2"):
            saved(disk, 2, keep=1)
        assert_only_step_1_is_left_and_good(disk)
    finally:
        subprocess.run(["umount", disk], check=True)


def test_a_limit_on_file_sizes_is_explained(tmp_path):
    saved(tmp_path, 1)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (500, hard))
    try:
        with pytest.raises(UserError, match="step-2 would exceed the largest file"):
            saved(tmp_path, 2, keep=1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert_only_step_1_is_left_and_good(tmp_path)
