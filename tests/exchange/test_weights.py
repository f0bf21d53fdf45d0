"""Weight files, new and old, whole and in parts; nothing in them is ever executed."""

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


def assert_equal(found, expected):
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def shard(folder: Path, tensors: dict[str, torch.Tensor], ending: str, index: str) -> None:
    """One tensor a file, as the large published checkpoints are cut."""
    parts = {name: f"part-{number}-of-{len(tensors)}.{ending}" for number, name in enumerate(tensors, 1)}
    for name, part in parts.items():
        write = save_file if ending == "safetensors" else torch.save
        write({name: tensors[name]}, folder / part)
    (folder / index).write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": parts}))


def test_written_bytes_depend_on_the_weights_alone(tmp_path, tensors):
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


def test_views_and_transposed_tensors_are_written_as_they_look(tmp_path, tensors):
    seen = {"t": tensors["b.weight"].T, "v": tensors["c"][:, 1]}
    write_weights(tmp_path / "model.safetensors", seen)
    assert_equal(read_weights(tmp_path), seen)


@pytest.mark.parametrize(("ending", "index"), [("safetensors", "model.safetensors.index.json"),
                                               ("bin", "pytorch_model.bin.index.json")])
def test_weights_in_parts(tmp_path, tensors, ending, index):
    shard(tmp_path, tensors, ending, index)
    assert_equal(read_weights(tmp_path), tensors)
    next(tmp_path.glob(f"part-2*.{ending}")).unlink()
    with pytest.raises(CorruptFileError, match=f"lacks part-2-of-3.{ending}, which {index} names"):
        read_weights(tmp_path)


@pytest.mark.parametrize("content", ["{", "[]", '{"weight_map": ["a"]}', "{}", '{"weight_map": {"a": 3}}'])
def test_a_broken_index_is_told(tmp_path, content):
    (tmp_path / "model.safetensors.index.json").write_text(content)
    with pytest.raises(CorruptFileError, match="no readable index"):
        read_weights(tmp_path)


@pytest.mark.parametrize("zipped", [True, False])
def test_the_old_pickled_file(tmp_path, tensors, zipped):
    torch.save({**tensors, "step": 3}, tmp_path / "pytorch_model.bin", _use_new_zipfile_serialization=zipped)
    assert_equal(read_weights(tmp_path), tensors)


def test_safetensors_come_before_the_old_file(tmp_path, tensors):
    torch.save({"old": torch.zeros(1)}, tmp_path / "pytorch_model.bin")
    write_weights(tmp_path / "model.safetensors", tensors)
    assert_equal(read_weights(tmp_path), tensors)


class Payload:
    """What a hostile checkpoint holds: unpickling it would make a file."""

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
    pickle.loads(pickle.dumps(Payload(target)))  # the payload is a real one
    assert target.exists()


def test_something_else_than_a_table_is_told(tmp_path):
    torch.save([torch.zeros(2)], tmp_path / "pytorch_model.bin")
    with pytest.raises(UserError, match="holds a list and not a dict of tensors"):
        read_weights(tmp_path)


@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin"])
@pytest.mark.parametrize("kept", [0, 5, 60, -9])
def test_a_truncated_file_is_told(tmp_path, tensors, name, kept):
    write_weights(tmp_path / name, tensors) if name.endswith("tensors") else torch.save(tensors, tmp_path / name)
    whole = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(whole[:kept])
    with pytest.raises(CorruptFileError, match=rf"cannot read the weights in .*{name}.*truncated or damaged"):
        read_weights(tmp_path)


def test_a_whole_model_from_the_old_layouts(tmp_path):
    """The formats meet the loader: the same numbers from each."""
    torch.manual_seed(1)
    stemma.save(stemma.build("bert@tiny", 50, ["network.width=24", "network.layers=1"]), tmp_path / "stemma")
    ids = torch.tensor([[4, 8, 15, 16, 23, 42]])
    expected = stemma.load(tmp_path / "stemma").logits(ids)
    weights = load_file(tmp_path / "stemma/model.safetensors")
    for number, kind in enumerate(("single", "bin", "safetensors")):
        folder = tmp_path / f"old-{number}"
        folder.mkdir()
        (folder / "config.json").write_bytes((tmp_path / "stemma/config.json").read_bytes())
        if kind == "single":
            torch.save(weights, folder / "pytorch_model.bin")
        else:
            index = "pytorch_model.bin.index.json" if kind == "bin" else "model.safetensors.index.json"
            shard(folder, weights, kind, index)
        assert_close(stemma.load(folder).logits(ids), expected)


def test_what_is_read_lies_where_torch_would_put_it(tmp_path):
    """Some kernels round differently at other addresses, so a model trained further would not be the one saved."""
    odd = stemma.build("bert@tiny", 51, ["network.width=20", "network.heads=2", "network.feedforward=33"])
    stemma.save(odd, tmp_path / "m")
    assert any(tensor.data_ptr() % 64 for tensor in read_weights(tmp_path / "m").values()), "the file is of no use here"
    read = dict(stemma.load(tmp_path / "m").network.named_parameters())
    assert [name for name, tensor in read.items() if tensor.data_ptr() % 64] == []
    assert all(torch.equal(tensor, read[name]) for name, tensor in odd.network.named_parameters())
