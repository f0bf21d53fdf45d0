"""Every recipe trains and validates on a device other than the CPU; tests/fake_device.py replaces a GPU.

tests/test_other_device.py runs this file in a separate process.
"""

from __future__ import annotations

import pytest
import torch
from fake_device import MixedDevicesError, device, use_fake_device
from toy_pairs import pairs, write_pairs

from stemma import recipe_loading
from stemma.network.inputs_outputs import Stream
from stemma.objectives import build_network
from stemma.training import hardware
from stemma.training.budget import Budget
from stemma.training.pretrain import open_run
from stemma.training.run_folder import RunConfig, create_run
from stemma.visibility import Bidirectional

SMALL = ["network.layers=2", "network.width=32", "network.heads=2", "network.feedforward=48", "training.batch_size=4",
         "corpus.sequence_length=32", "training.precision=fp32", "training.threads=1"]
# The copies to the CPU that a step may make, with their reasons: each waits for the device.
ALLOWED_COPIES = {
    "training/forward_backward.py:forward_backward": "the losses of a step, all at once",
    "training/gradient_descent.py:_clip": "the gradient norm, to check that it is finite",
    "training/validation.py:evaluate": "the losses on held-out text",
    "network/unpad.py:should_unpad": "how much of the batch is padding",
    "network/stack.py:_run_last_at_outputs": "the largest number of output positions in a row",
    "network/recurrent.py:any_running": "whether any position has not halted",
}
ONE_STEP = 1e-9  # seconds; shorter than a step, so the loop takes one


@pytest.fixture(autouse=True)
def _train_on_fake_device(monkeypatch):
    monkeypatch.setattr(hardware, "choose_device", lambda name=None: device())


def changes_of(name: str) -> list[str]:
    settings = recipe_loading.recipe(f"{name}@tiny").settings
    changes = [*SMALL]
    changes += ["network.attention.head_width=16"] if settings.network.attention.head_width else []
    changes += ["network.memory.length=16"] if settings.network.memory else []
    return changes


# One recipe for each kind of network and step; the others run in make test-slow.
QUICK = ("bert", "electra", "ernie-2", "modernbert", "t5", "transformer", "unilm", "universal-transformer", "xlnet")


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (name not in QUICK))
                                  for name in recipe_loading.recipe_names()
                                  if not recipe_loading.recipe(name).settings.network.depth.counts])
def test_every_recipe_trains_on_another_device(name, tmp_path, text_file):
    resolved = recipe_loading.recipe(f"{name}@tiny", changes_of(name))
    if "parallel" in resolved.settings.packings().values():
        text_file = write_pairs(tmp_path / "pairs.tsv", pairs(60))
    create_run(tmp_path / "run", resolved, RunConfig(None, [str(text_file)], Budget("steps", 9), 0), overwrite=False)
    with use_fake_device() as copies:
        training = open_run(tmp_path / "run", False)
        with training.trainer as loop:
            before = {key: tensor.held.clone() for key, tensor in loop.network.state_dict().items()}
            takes_turns = any(task.start_fraction for task in resolved.settings.objective.values())
            steps = 8 if takes_turns else 3
            for _ in range(steps):
                loop.run_for(ONE_STEP)
            assert all(parameter.device == device() for parameter in loop.network.parameters())
            with torch.no_grad():  # torch refuses views of wrapper tensors in inference mode, so this bypasses it
                evaluate = type(loop.validation).evaluate.__wrapped__  # type: ignore[attr-defined]
                result = evaluate(loop.validation, loop.state, loop.loader.sequence_length_at(loop._progress()))
    changed = [key for key, tensor in loop.network.state_dict().items() if not torch.equal(tensor.held, before[key])]
    assert len(changed) > len(before) / 2
    # this text is too small for held-out examples of the last tasks of ernie-2
    assert result["validation_loss"] > 0 if result["validation_losses"] else name == "ernie-2"
    assert loop.state.step == steps
    assert set(copies) <= set(ALLOWED_COPIES), "a new copy to the CPU: avoid it, or add it with a reason"


def test_mixing_devices_raises(tmp_path):
    """The fake device detects a stream that is left on the CPU, and names the function that used it."""
    with use_fake_device():
        network = build_network(recipe_loading.recipe("bert@tiny", SMALL), 60).to(device())
        with pytest.raises(MixedDevicesError, match=r"mixes 1 tensors on the .* at network/embedding.py:_embed_input"):
            network({"encoder": Stream(torch.zeros(2, 6, dtype=torch.long), Bidirectional())})
        tensor = torch.ones(3).to(device())
        assert tensor.device == device() and (tensor + 1).device == device() and float((tensor * 2).sum()) == 6
        assert tensor.cpu().device == torch.device("cpu") and torch.zeros(2, device=device()).device == device()
