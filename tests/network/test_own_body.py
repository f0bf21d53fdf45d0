"""Plug-in bodies other than stacks, with and without parameters, and the recipe keys that they require."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from closeness import assert_close
from commands import has_checkpoint
from commands import start_unreported as start
from commands import stemma_unreported as run

import stemma
from stemma import plugins, recipe_loading, registry
from stemma.errors import UserError
from stemma.network.inputs_outputs import Stream
from stemma.plugins import use_plugin
from stemma.visibility import Causal, PaddingRule

PAGE = (Path(__file__).parent.parent.parent / "docs" / "how-to" / "extending.md").read_text()
GATED = re.search(r"# my_body\.py\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)[1]
BAG = '''
import torch
from stemma.extend import Body, BodySettings, StackOutput, register

class BagSettings(BodySettings):
    """The mean of all vectors except that of the position itself; it has no parameters."""
    required_keys = frozenset()

@register("body", "bag", BagSettings)
class Bag(Body):
    def __init__(self, network, part):
        super().__init__()

    def forward(self, x, stack_input):
        mask = stack_input.layer_context.attention_token_mask
        mask = x.new_ones(x.shape[:2]) if mask is None else mask.to(x.dtype)
        others = (x * mask[..., None]).sum(1, keepdim=True) - x * mask[..., None]
        return StackOutput(others / (mask.sum(1, keepdim=True) - mask).clamp(min=1)[..., None])
'''
SMALL = ["network.width=16", "corpus.sequence_length=24", "training.batch_size=4", "training.checkpoint_every=2",
         "training.validate_every=20", "training.log_every=1"]


@pytest.fixture
def plugin_folder(monkeypatch, tmp_path) -> Path:
    """A folder with both plug-ins, which are loaded during the test."""
    for slot in registry.BUILT_IN:
        registry.entries(slot)
    monkeypatch.setattr(plugins, "_loaded", {})
    monkeypatch.setattr(registry, "_entries", dict(registry._entries))
    for name, text in (("my_body.py", GATED), ("my_bag.py", BAG)):
        (tmp_path / name).write_text(text)
        use_plugin(tmp_path / name)
    return tmp_path


def test_a_body_without_attention_is_trained_resumed_and_fine_tuned(tmp_path, corpus_folder):
    """Pre-trained, killed and resumed to the same bytes, used for generation, and fine-tuned."""
    (tmp_path / "my_body.py").write_text(GATED)
    plugin = ["--plugin", "my_body.py"]
    command = ["pretrain", "gpt2@tiny", "--corpus", corpus_folder, "--steps", "7", "--json", *plugin, *SMALL,
               "network.depth.kind=gated"]
    uninterrupted = run(*command, "--out", "whole", folder=tmp_path)
    assert uninterrupted.code == 0, uninterrupted.err
    start(*command, "--out", "killed", folder=tmp_path).kill_when(lambda: has_checkpoint(tmp_path / "killed", 2))
    resumed = run("resume", "killed", *plugin, folder=tmp_path)
    assert resumed.code == 0, resumed.err
    first, second = ((tmp_path / name / "model" / "model.safetensors").read_bytes() for name in ("whole", "killed"))
    assert first == second
    written = run("generate", "whole", "the old", "--tokens", "5", "--json", *plugin, folder=tmp_path)
    assert written.code == 0, written.err
    rows = ["text\tlabel", *(f"{word} letter reads\t{label}" for word, label in (("old", "a"), ("young", "b")) * 4)]
    (tmp_path / "train.tsv").write_text("\n".join(rows))
    tuned = run("finetune", "classify", "--model", "whole", "--train", "train.tsv", "--dev", "train.tsv", "--out",
                "tuned", "--steps", "2", *plugin, folder=tmp_path)
    assert tuned.code == 0, tuned.err


def test_a_model_with_a_parameter_free_body_learns_its_embedding(tmp_path, corpus_folder):
    """Masked words are predicted from the mean of the other vectors."""
    (tmp_path / "my_bag.py").write_text(BAG)
    plugin = ["--plugin", "my_bag.py"]
    learned = run("pretrain", "bert@tiny", "--corpus", corpus_folder, "--steps", "60", "--out", "bag", "--json",
                  *plugin, *SMALL, "network.depth.kind=bag", "remove=objective.next_sentence",
                  "corpus.packing=full_sentences", "training.learning_rate=0.02", "training.warmup_steps=5",
                  folder=tmp_path)
    assert learned.code == 0, learned.err
    assert not [name for name in stemma_tensors(tmp_path / "bag" / "model") if name.startswith("encoder.")]
    lines = map(json.loads, (tmp_path / "bag" / "log.jsonl").read_text().splitlines())
    losses = [line["loss"] for line in lines if "loss" in line]
    assert np.mean(losses[-10:]) < np.mean(losses[:5]) - 0.5
    filled = run("fill", "bag", "the old [MASK] reads", "--json", *plugin, folder=tmp_path)
    assert filled.code == 0 and len(filled.json["predictions"]) == 1, filled.err


def stemma_tensors(folder: Path) -> list[str]:
    from safetensors import safe_open

    with safe_open(folder / "model.safetensors", "pt") as file:
        return list(file.keys())


@torch.no_grad()
def test_incremental_decoding_with_the_gated_body_equals_one_pass(plugin_folder):
    network = stemma.build("gpt2@tiny", 40, ["network.depth.kind=gated", "network.width=16"]).network.eval()
    ids = torch.randint(40, (2, 9), generator=torch.Generator().manual_seed(0))
    at_once = network({"encoder": Stream(ids, Causal())})["encoder"]
    cache = network.new_cache()
    for first, last in ((0, 4), (4, 5), (5, 9)):
        output = network({"encoder": Stream(ids[:, first:last], Causal())}, cache)["encoder"]
        assert_close(output, at_once[:, first:last])
        if first == 0:
            cache.reorder(torch.tensor([0, 1]))
    assert cache.length == 9
    real = torch.arange(9) >= 3  # left padding does not change the text
    padded = network({"encoder": Stream(ids, Causal() & PaddingRule(real.expand(2, 9)),
                                        position_ids=(torch.arange(9) - 3).clamp(min=0))})["encoder"]
    assert_close(padded[:, 3:], network({"encoder": Stream(ids[:, 3:], Causal())})["encoder"])


def test_a_recipe_has_the_keys_that_its_body_requires_and_no_others(plugin_folder):
    gated = recipe_loading.recipe("gpt2@tiny", ["network.depth.kind=gated"])
    assert gated.values["network"].keys().isdisjoint({"heads", "feedforward", "attention"})
    assert (gated.values["network"]["layers"], gated.settings.network.supported_features()) == (2, {"causal", "cache"})
    bag = recipe_loading.recipe("bert@tiny", ["network.depth.kind=bag"])
    assert bag.values["network"].keys().isdisjoint({"layers", "heads", "feedforward", "attention"})
    back = ["network.depth.kind=stacked", "network.heads=2", "network.feedforward=8", "network.attention.kind=full"]
    with pytest.raises(UserError) as refused:
        gated.with_overrides(back)
    assert [(key, message) for key, message in refused.value.problems] == [("network.attention.dropout", "is missing")]
    again = gated.with_overrides([*back, "network.attention.dropout=0"])
    assert again.settings.network.heads == 2


@pytest.mark.parametrize(("name", "changes", "expected"), [
    ("gpt2@tiny", ["network.depth.kind=gated", "network.heads=3"], "means nothing to a body of kind gated"),
    ("bert@tiny", ["network.depth.kind=gated"], "reads from left to right only, and objective.masked_lm looks at both"),
    ("gpt2@tiny", ["network.depth.kind=bag"], "a body of kind bag cannot be causal, which objective.causal_lm needs"),
    ("transformer@tiny", ["network.depth.kind=bag"],
     "cannot attend to the encoder's output: set network.decoder.depth.kind=stacked"),
    ("transformer-xl@tiny", ["network.depth.kind=gated"], "a body of kind gated cannot look at a memory"),
    ("bert@tiny", ["remove=network.attention"], "is missing"),
])
def test_an_unsupported_body_is_an_error_before_anything_is_built(plugin_folder, name, changes, expected):
    with pytest.raises(UserError) as refused:
        recipe_loading.recipe(name, changes)
    assert any(expected in message for _, message in refused.value.problems), refused.value.problems


@torch.no_grad()
def test_a_decoder_may_attend_to_any_body(plugin_folder):
    """The bag as encoder, and a stack as decoder."""
    changes = ["network.depth.kind=bag", "network.decoder.depth.kind=stacked", "network.width=16", "network.heads=2",
               "network.feedforward=8", "network.attention.kind=full", "network.attention.dropout=0"]
    model = stemma.build("transformer@tiny", 40, changes)
    ids = torch.arange(8)[None]
    first, other = (model.logits(source, decoder_input_ids=ids) for source in (ids, ids.flip(1) + 9))
    assert first.shape == (1, 8, 40) and not torch.allclose(first, other)
