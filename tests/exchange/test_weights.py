"""Weight files: safetensors and pickles, single and sharded; code in a pickle is never run."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest
import torch
from closeness import assert_close
from safetensors.torch import load_file, save_file

import stemma
from stemma.errors import CorruptFileError, UserError
from stemma.exchange.weights import read_weights, write_weights


@pytest.fixture
def tensors():
    torch.manual_seed(0)
    return {"b.weight": torch.randn(3, 5), "a.bias": torch.randn(7), "c": torch.randn(2, 2, 2)}


def assert_equal(tensors, expected):
    assert tensors.keys() == expected.keys()
    assert all(torch.equal(tensors[name], expected[name]) for name in expected)


def shard(folder: Path, tensors: dict[str, torch.Tensor], suffix: str, index: str) -> None:
    """Write a sharded checkpoint with one tensor per file."""
    parts = {name: f"part-{number}-of-{len(tensors)}.{suffix}" for number, name in enumerate(tensors, 1)}
    for name, part in parts.items():
        write = save_file if suffix == "safetensors" else torch.save
        write({name: tensors[name]}, folder / part)
    (folder / index).write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": parts}))


def test_equal_weights_give_equal_bytes_in_any_order(tmp_path, tensors):
    write_weights(tmp_path / "model.safetensors", tensors)
    write_weights(tmp_path / "again.safetensors", dict(reversed(tensors.items())))
    first = (tmp_path / "model.safetensors").read_bytes()
    assert first == (tmp_path / "again.safetensors").read_bytes()
    length = int.from_bytes(first[:8], "little")
    assert json.loads(first[8:8 + length])["__metadata__"] == {"format": "pt"}
    assert_equal(read_weights(tmp_path), tensors)
    tensors["c"] = tensors["c"] + 1
    write_weights(tmp_path / "other.safetensors", tensors)
    assert first != (tmp_path / "other.safetensors").read_bytes()


def test_views_and_transposed_tensors_are_written(tmp_path, tensors):
    views = {"t": tensors["b.weight"].T, "v": tensors["c"][:, 1]}
    write_weights(tmp_path / "model.safetensors", views)
    assert_equal(read_weights(tmp_path), views)


@pytest.mark.parametrize(("suffix", "index"), [("safetensors", "model.safetensors.index.json"),
                                               ("bin", "pytorch_model.bin.index.json")])
def test_sharded_weights_are_read(tmp_path, tensors, suffix, index):
    shard(tmp_path, tensors, suffix, index)
    assert_equal(read_weights(tmp_path), tensors)
    next(tmp_path.glob(f"part-2*.{suffix}")).unlink()
    with pytest.raises(CorruptFileError, match=f"lacks part-2-of-3.{suffix}, which {index} names"):
        read_weights(tmp_path)


@pytest.mark.parametrize("content", ["{", "[]", '{"weight_map": ["a"]}', "{}", '{"weight_map": {"a": 3}}'])
def test_a_damaged_index_is_reported(tmp_path, content):
    (tmp_path / "model.safetensors.index.json").write_text(content)
    with pytest.raises(CorruptFileError, match="no readable index"):
        read_weights(tmp_path)


@pytest.mark.parametrize("zipped", [True, False])
def test_a_pickled_file_is_read(tmp_path, tensors, zipped):
    torch.save({**tensors, "step": 3}, tmp_path / "pytorch_model.bin", _use_new_zipfile_serialization=zipped)
    assert_equal(read_weights(tmp_path), tensors)


def test_safetensors_are_preferred_to_a_pickled_file(tmp_path, tensors):
    torch.save({"old": torch.zeros(1)}, tmp_path / "pytorch_model.bin")
    write_weights(tmp_path / "model.safetensors", tensors)
    assert_equal(read_weights(tmp_path), tensors)


class Payload:
    """Code in a malicious checkpoint: unpickling it creates a file."""

    def __init__(self, target: Path):
        self.target = target

    def __reduce__(self):
        return (Path.touch, (self.target,))


def test_a_pickle_with_code_is_refused_and_not_run(tmp_path, tensors):
    target = tmp_path / "it-ran"
    hostile = {**tensors, "x": Payload(target)}
    torch.save(hostile, tmp_path / "pytorch_model.bin")
    with pytest.raises(UserError, match="it holds more than tensors"):
        read_weights(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(pickle.dumps(hostile, protocol=2))
    with pytest.raises(UserError, match="it holds more than tensors"):
        read_weights(tmp_path)
    shard(tmp_path, {"a": torch.zeros(1)}, "bin", "pytorch_model.bin.index.json")
    (tmp_path / "pytorch_model.bin").rename(tmp_path / "part-1-of-1.bin")
    with pytest.raises(UserError, match="it holds more than tensors"):
        read_weights(tmp_path)
    assert not target.exists()
    pickle.loads(pickle.dumps(Payload(target)))  # the payload works if it is unpickled
    assert target.exists()


def test_a_pickle_that_is_no_dict_is_reported(tmp_path):
    torch.save([torch.zeros(2)], tmp_path / "pytorch_model.bin")
    with pytest.raises(UserError, match="holds a list and not a dict of tensors"):
        read_weights(tmp_path)


@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin"])
@pytest.mark.parametrize("length", [0, 5, 60, -9])
def test_a_truncated_file_is_reported(tmp_path, tensors, name, length):
    write_weights(tmp_path / name, tensors) if name.endswith("tensors") else torch.save(tensors, tmp_path / name)
    content = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(content[:length])
    with pytest.raises(CorruptFileError, match=rf"cannot read the weights in .*{name}.*truncated or damaged"):
        read_weights(tmp_path)


def test_a_model_loads_from_every_weight_format(tmp_path):
    """Each format gives the same logits."""
    torch.manual_seed(1)
    stemma.save(stemma.build("bert@tiny", 50, ["network.width=24", "network.layers=1"]), tmp_path / "stemma")
    ids = torch.tensor([[4, 8, 15, 16, 23, 42]])
    expected = stemma.load(tmp_path / "stemma").logits(ids)
    weights = load_file(tmp_path / "stemma/model.safetensors")
    for kind in ("single", "bin", "safetensors"):
        folder = tmp_path / kind
        folder.mkdir()
        (folder / "config.json").write_bytes((tmp_path / "stemma/config.json").read_bytes())
        if kind == "single":
            torch.save(weights, folder / "pytorch_model.bin")
        else:
            index = "pytorch_model.bin.index.json" if kind == "bin" else "model.safetensors.index.json"
            shard(folder, weights, kind, index)
        assert_close(stemma.load(folder).logits(ids), expected)


def test_loaded_parameters_have_aligned_memory(tmp_path):
    """Some kernels round differently for unaligned memory, so that further training would not be reproducible."""
    model = stemma.build("bert@tiny", 51, ["network.width=20", "network.heads=2", "network.feedforward=33"])
    stemma.save(model, tmp_path / "m")
    unaligned = [name for name, tensor in read_weights(tmp_path / "m").items() if tensor.data_ptr() % 64]
    assert unaligned, "all tensors of the file are aligned, so the test shows nothing"
    parameters = dict(stemma.load(tmp_path / "m").network.named_parameters())
    assert [name for name, tensor in parameters.items() if tensor.data_ptr() % 64] == []
    assert all(torch.equal(tensor, parameters[name]) for name, tensor in model.network.named_parameters())
