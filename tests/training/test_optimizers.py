import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from pydantic import TypeAdapter
from torch import nn

from stemma.schema.training import AnyOptimizer
from stemma.training.adafactor import Adafactor
from stemma.training.lamb import Lamb
from stemma.training.optimizers import build_optimizer, set_learning_rate

sys.path.append(str(Path(__file__).parent.parent))
from literal import adafactor as literal_adafactor  # noqa: E402
from literal import lamb as literal_lamb  # noqa: E402

KINDS = ["adamw", "adam", "lamb", "adamax", "adafactor", "stable_adamw"]


def settings(kind, **keys):
    return TypeAdapter(AnyOptimizer).validate_python({"kind": kind, **keys})


def run_steps(optimizer, parameter, gradients):
    for gradient in gradients:
        parameter.grad = gradient.clone()
        optimizer.step()
    return parameter.detach().numpy()


def random_problem(shape, seed, count=5):
    generator = torch.Generator().manual_seed(seed)
    parameter = nn.Parameter(torch.randn(shape, generator=generator) * 0.3)
    return parameter, [torch.randn(shape, generator=generator) * 0.1 for _ in range(count)]


@pytest.mark.parametrize("shape", [(5, 7), (6,)])
@pytest.mark.parametrize("decay", [0.0, 0.3])
def test_lamb_matches_the_paper(shape, decay):
    parameter, gradients = random_problem(shape, 1)
    expected = literal_lamb.lamb(parameter.detach(), gradients, 0.02, 0.8, 0.95, 1e-6, decay)
    result = run_steps(Lamb([parameter], 0.02, (0.8, 0.95), 1e-6, decay), parameter, gradients)
    np.testing.assert_allclose(result, expected, rtol=2e-5, atol=1e-6)


def test_lamb_updates_a_tensor_of_zeros():
    parameter = nn.Parameter(torch.zeros(4, 3))
    gradients = random_problem((4, 3), 2)[1]
    expected = literal_lamb.lamb(parameter.detach(), gradients, 0.02, 0.9, 0.999, 1e-6, 0.01)
    result = run_steps(Lamb([parameter], 0.02), parameter, gradients)
    assert np.abs(result).min() > 0
    np.testing.assert_allclose(result, expected, rtol=2e-5, atol=1e-7)


@pytest.mark.parametrize("shape", [(5, 7), (6,)])
@pytest.mark.parametrize("clip", [0.5, 1.0])
def test_adafactor_matches_the_paper(shape, clip):
    parameter, gradients = random_problem(shape, 3)
    expected = literal_adafactor.adafactor(parameter.detach(), gradients, 0.03, 0.8, 1e-30, 1e-3, clip)
    result = run_steps(Adafactor([parameter], 0.03, clip=clip), parameter, gradients)
    np.testing.assert_allclose(result, expected, rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("shape", [(5, 7), (6,), (2, 3, 4)])
@pytest.mark.parametrize("relative", [True, False])
def test_adafactor_agrees_with_transformers(shape, relative):
    from transformers.optimization import Adafactor as Reference

    ours, gradients = random_problem(shape, 4)
    theirs = nn.Parameter(ours.detach().clone())
    reference = Reference([theirs], lr=0.03, weight_decay=0.2, relative_step=False, scale_parameter=relative)
    expected = run_steps(reference, theirs, gradients)
    result = run_steps(Adafactor([ours], 0.03, weight_decay=0.2, relative=relative), ours, gradients)
    np.testing.assert_allclose(result, expected, rtol=2e-5, atol=1e-6)


def test_adafactor_leaves_rows_without_gradient_unchanged():
    parameter = nn.Parameter(torch.ones(4, 3))
    gradient = torch.zeros(4, 3)
    gradient[1] = 1e-4
    result = run_steps(Adafactor([parameter], 0.01), parameter, [gradient] * 3)
    assert np.isfinite(result).all()
    assert (result[[0, 2, 3]] == 1).all()


class Small(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(11, 6)
        self.norm = nn.LayerNorm(6)
        self.inner = nn.Linear(6, 6)
        self.outer = nn.Linear(6, 11)
        self.outer.weight = self.embed.weight
        self.frozen = nn.Parameter(torch.zeros(2, 2), requires_grad=False)


@pytest.mark.parametrize("kind", KINDS)
def test_weight_decay_applies_to_matrices_only(kind):
    keys = {} if kind == "adam" else {"weight_decay": 0.1}
    optimizer = build_optimizer(Small(), settings(kind, **keys), 0.01)
    sizes = {group["weight_decay"]: {p.ndim for p in group["params"]} for group in optimizer.param_groups}
    if kind == "adam":
        assert {group["weight_decay"] for group in optimizer.param_groups} == {0.0}
    else:
        assert sizes == {0.1: {2}, 0.0: {1}}
    assert sum(p.numel() for group in optimizer.param_groups for p in group["params"]) == 66 + 12 + 42 + 11


@pytest.mark.parametrize("kind", KINDS)
def test_all_settings_and_the_learning_rate_change_the_update(kind):
    """Another value of any setting gives other weights, and a learning rate of 0 the same weights."""
    def train(rate, **keys):
        torch.manual_seed(0)
        network = Small()
        optimizer = build_optimizer(network, settings(kind, **keys), 0.5)
        set_learning_rate(optimizer, rate)
        for step in range(3):
            optimizer.zero_grad()
            hidden = network.inner(network.norm(network.embed(torch.arange(11).roll(step))))
            nn.functional.cross_entropy(network.outer(hidden)[:4], torch.arange(4)).backward()
            optimizer.step()
        return torch.cat([p.detach().flatten() for p in network.parameters()])

    torch.manual_seed(0)
    start = torch.cat([p.detach().flatten() for p in Small().parameters()])
    assert torch.equal(train(0.0), start)
    base = train(0.01)
    changes = {"beta1": 0.5, "beta2": 0.7, "epsilon": 0.1, "weight_decay": 0.5, "beta2_decay": 0.3, "clip": 0.1,
               "least_scale": 10.0, "relative": False}
    keys = set(type(settings(kind)).model_fields) - {"kind"}
    assert keys and keys <= set(changes)
    for key in keys:
        assert not torch.equal(train(0.01, **{key: changes[key]}), base), key


@pytest.mark.parametrize("kind", ["adamw", "adam"])
def test_fused_adam_is_used_and_agrees_with_the_unfused_one(kind):
    from torch.optim import Adam, AdamW

    ours, theirs = nn.Linear(5, 4, bias=False), nn.Linear(5, 4, bias=False)
    theirs.load_state_dict(ours.state_dict())
    built = build_optimizer(ours, settings(kind, beta2=0.98, epsilon=1e-6), 0.01)
    assert built.param_groups[0]["fused"] is True
    plain = (AdamW if kind == "adamw" else Adam)(theirs.parameters(), 0.01, (0.9, 0.98), 1e-6, foreach=False)
    gradients = random_problem((4, 5), 5)[1]
    np.testing.assert_allclose(run_steps(built, ours.weight, gradients), run_steps(plain, theirs.weight, gradients),
                               rtol=1e-5, atol=1e-7)


def test_lamb_updates_vectors_as_adamw_does():
    optimizer = build_optimizer(Small(), settings("lamb"), 0.01)
    assert [(group["adapt"], group["params"][0].ndim) for group in optimizer.param_groups] == [(True, 2), (False, 1)]
    parameter, gradients = random_problem((6,), 6)
    twin = nn.Parameter(parameter.detach().clone())
    plain = run_steps(torch.optim.AdamW([twin], 0.01, (0.9, 0.999), 1e-6, 0.0), twin, gradients)
    result = run_steps(Lamb([parameter], 0.01, weight_decay=0.0, adapt=False), parameter, gradients)
    np.testing.assert_allclose(result, plain, rtol=1e-5, atol=1e-7)
