"""Every recipe takes training steps on another device than the CPU, and looks at held-out text there.

There is no GPU where these tests run; tests/pretended.py says what stands in for one, and why not FakeTensorMode.
"""

from __future__ import annotations

import pytest
import torch
from pretended import MixedDevicesError, device, pretended
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
# What a step brings back to the CPU: each makes the program wait for the device, so that each needs a reason.
RETURNS = {
    "training/forward_backward.py:forward_backward": "the losses of a step, all at once",
    "training/gradient_descent.py:_clip": "the gradients' norm, which says whether the step is sound",
    "training/validation.py:evaluate": "the losses on held-out text",
    "network/unpad.py:should_unpad": "how much of the batch is padding",
    "network/stack.py:_run_last_at_outputs": "the most positions that a row wants",
    "network/recurrent.py:any_running": "whether any position goes on",
}
ONE_STEP = 1e-9  # seconds: a loop that goes on so long takes one step


@pytest.fixture(autouse=True)
def _elsewhere(monkeypatch):
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
                                  for name in recipe_loading.recipe_names()])
def test_a_step_of_every_recipe(name, tmp_path, text_file):
    chosen = recipe_loading.recipe(f"{name}@tiny", changes_of(name))
    if "parallel" in chosen.settings.packings().values():
        text_file = write_pairs(tmp_path / "pairs.tsv", pairs(60))
    create_run(tmp_path / "run", chosen, RunConfig(None, [str(text_file)], Budget("steps", 9), 0), overwrite=False)
    with pretended() as returned:
        training = open_run(tmp_path / "run", False)
        with training.trainer as loop:
            before = {key: tensor.held.clone() for key, tensor in loop.network.state_dict().items()}
            steps = 8 if any(task.starts for task in chosen.settings.objective.values()) else 3  # tasks take turns
            for _ in range(steps):
                loop.run_for(ONE_STEP)
            assert all(parameter.device == device() for parameter in loop.network.parameters())
            with torch.no_grad():  # a wrapper's views are refused in inference mode, so that the mode is left out
                look = type(loop.validation).evaluate.__wrapped__  # type: ignore[attr-defined]
                found = look(loop.validation, loop.state, loop.loader.sequence_length_at(loop._progress()))
    changed = [key for key, tensor in loop.network.state_dict().items() if not torch.equal(tensor.held, before[key])]
    assert len(changed) > len(before) / 2
    # the last of ernie-2's tasks have no held-out examples in so small a text
    assert found["validation_loss"] > 0 if found["validation_losses"] else name == "ernie-2"
    assert loop.state.step == steps
    assert set(returned) <= set(RETURNS), "something new is brought back to the CPU; say here why, or leave it there"


def test_what_is_mixed_is_found(tmp_path):
    """The stand-in can fail: a stream that was left on the CPU is refused, by the line that met it."""
    with pretended():
        network = build_network(recipe_loading.recipe("bert@tiny", SMALL), 60).to(device())
        with pytest.raises(MixedDevicesError, match=r"mixes 1 tensors there .* at network/embedding.py:_embed_inputs"):
            network({"encoder": Stream(torch.zeros(2, 6, dtype=torch.long), Bidirectional())})
        sent = torch.ones(3).to(device())
        assert sent.device == device() and (sent + 1).device == device() and float((sent * 2).sum()) == 6
        assert sent.cpu().device == torch.device("cpu") and torch.zeros(2, device=device()).device == device()
