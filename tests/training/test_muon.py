import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from pydantic import TypeAdapter
from torch import nn

from stemma.network.attention.cross_attention import CrossAttention
from stemma.network.block import Block
from stemma.objectives import build_network
from stemma.recipe_loading import recipe
from stemma.schema.training import AnyOptimizer
from stemma.training import muon as module
from stemma.training.layerwise import layer_lr_scales
from stemma.training.muon import Muon, orthogonalize
from stemma.training.optimizers import build_optimizer, count_hidden_matrices, set_learning_rate
from stemma.training.stable_adamw import StableAdamW

sys.path.append(str(Path(__file__).parent.parent))
from literal import muon as literal  # noqa: E402
from literal import stable_adamw as literal_stable  # noqa: E402

SMALL = ["network.width=16", "network.heads=2", "network.feedforward=32", "network.layers=2"]


def settings(**keys):
    return TypeAdapter(AnyOptimizer).validate_python({"kind": "muon", **keys})


def random_tensor(*shape, seed=0, scale=1.0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * scale


def build_small_network(name="bert", *changes):
    torch.manual_seed(0)
    return build_network(recipe(f"{name}@tiny", [*SMALL, *changes]), 50)


def run_steps(optimizer, parameter, gradients):
    for gradient in gradients:
        parameter.grad = gradient.clone()
        optimizer.step()
    return parameter.detach().numpy()


# ---- Newton-Schulz ----

@pytest.mark.parametrize(("rows", "columns"), [(24, 24), (24, 30), (24, 48), (8, 60)])
def test_orthogonalize_keeps_singular_vectors_and_moves_singular_values_near_1(rows, columns):
    """The singular vectors stay, and singular values from 0.003 of their root mean square upwards come near 1."""
    left, right = (torch.linalg.qr(random_tensor(size, rows, seed=size))[0] for size in (rows, columns))
    values = torch.logspace(0, -2.5, rows) if rows > 8 else torch.logspace(0, -2, rows)
    result = orthogonalize((left * values @ right.T)[None])[0]
    core = left.T @ result @ right
    assert (core - core.diag().diag()).abs().max() < 1e-3 and (result - left @ core @ right.T).abs().max() < 1e-3
    assert core.diag().min() > 0.65 and core.diag().max() < 1.25


@pytest.mark.parametrize("iterations", [1, 3, 5, 7])
@pytest.mark.parametrize(("rows", "columns"), [(6, 6), (6, 11), (6, 12), (5, 40)])
def test_orthogonalize_matches_the_authors_iteration(rows, columns, iterations):
    """Also for linearly dependent rows and for zeros: rounding errors do not grow."""
    matrices = random_tensor(4, rows, columns, seed=rows + columns)
    matrices[1, 1:] = matrices[1, :1]
    matrices[2] = 0
    matrices[3] *= 1e4
    result = orthogonalize(matrices.clone(), iterations)
    for orthogonal, matrix in zip(result, matrices, strict=True):
        np.testing.assert_allclose(orthogonal, literal.newton_schulz(matrix.numpy(), iterations), atol=1e-3)


@pytest.mark.parametrize("columns", [8, 40])
def test_many_iterations_stay_bounded(columns):
    """Also for linearly dependent rows, where rounding makes the Gram matrix slightly indefinite."""
    matrices = random_tensor(2, 8, columns)
    matrices[1, 1:] = matrices[1, :1]
    assert torch.linalg.svdvals(orthogonalize(matrices, 20)).max() < 1.3


# ---- the update ----

@pytest.mark.parametrize(("shape", "parts"), [((12, 6), 1), ((6, 12), 1), ((6, 6), 1), ((18, 6), 3), ((24, 5), 2)])
@pytest.mark.parametrize("keys", [{}, {"nesterov": False, "iterations": 3}, {"scale": "match_rms_adamw",
                                                                            "momentum": 0.5}])
def test_muon_matches_the_authors_code(shape, parts, keys):
    parameter = nn.Parameter(random_tensor(*shape))
    gradients = [random_tensor(*shape, seed=n, scale=0.1) for n in range(1, 6)]
    theirs = {"steps" if key == "iterations" else key: value for key, value in keys.items()}
    expected = literal.muon(parameter.detach(), gradients, 0.05, decay=0.3, parts=parts, **theirs)
    optimizer = Muon([{"params": [parameter], "parts": [parts]}], 0.05, weight_decay=0.3, **keys)
    np.testing.assert_allclose(run_steps(optimizer, parameter, gradients), expected, atol=5e-5)


@pytest.mark.parametrize("scale", ["original", "match_rms_adamw"])
@pytest.mark.parametrize("shape", [(40, 16), (16, 40), (16, 16)])
def test_muon_agrees_with_torch(shape, scale):
    """torch multiplies in bf16, so the updates of five steps differ by a few percent of their norm."""
    start, gradients = random_tensor(*shape), [random_tensor(*shape, seed=n) for n in range(1, 6)]
    ours, theirs = nn.Parameter(start.clone()), nn.Parameter(start.clone())
    expected = run_steps(torch.optim.Muon([theirs], 0.02, 0.1, adjust_lr_fn=scale), theirs, gradients)
    result = run_steps(Muon([{"params": [ours], "parts": [1]}], 0.02, scale=scale, weight_decay=0.1), ours, gradients)
    update_norm = np.linalg.norm(expected - start.numpy())
    assert update_norm > 0.1 and np.linalg.norm(result - expected) < 0.03 * update_norm


def test_batching_matrices_does_not_change_the_update(monkeypatch):
    """Matrices of one shape, transposed or not, in one batch or one by one."""
    shapes = {"a": (6, 9), "b": (9, 6), "c": (27, 6), "d": (6, 6), "e": (6, 6), "f": (6, 9)}
    weights_by_limit, sizes = [], []
    original = orthogonalize
    monkeypatch.setattr(module, "orthogonalize", lambda x, n: sizes.append(tuple(x.shape)) or original(x, n))
    for limit in (module.MAX_BATCH_ELEMENTS, 1):
        monkeypatch.setattr(module, "MAX_BATCH_ELEMENTS", limit)
        weights = [nn.Parameter(random_tensor(*shape, seed=n)) for n, shape in enumerate(shapes.values())]
        optimizer = Muon([{"params": weights, "parts": [1, 1, 3, 1, 1, 1]}], 0.1)
        for step in range(3):
            for n, weight in enumerate(weights):
                weight.grad = random_tensor(*weight.shape, seed=10 * step + n) if (n, step) != (4, 1) else None
            optimizer.step()
        weights_by_limit.append([weight.detach() for weight in weights])
    assert sizes[:2] == [(6, 6, 9), (2, 6, 6)] and (3, 6, 9) in sizes
    for together, alone in zip(*weights_by_limit, strict=True):
        torch.testing.assert_close(together, alone, atol=1e-5, rtol=1e-5)


# ---- which parameters Muon trains ----

EXPECTED = {  # by parts: how many matrices
    "bert": {3: 2, 1: 6},
    "albert": {3: 1, 1: 3},  # all layers share their parameters
    "bart": {3: 4, 2: 2, 1: 16},  # two layers in each stack; cross-attention fuses key and value
    "electra": {3: 4, 1: 12},  # and the generator's
    "transformer-xl": {3: 2, 1: 8},  # and the map of distances
    "universal-transformer": {3: 1, 1: 3},
}


@pytest.mark.parametrize("name", EXPECTED)
def test_muon_trains_the_matrices_of_the_blocks(name):
    result = list(count_hidden_matrices(build_small_network(name)).values())
    assert {parts: result.count(parts) for parts in result} == EXPECTED[name]


def test_query_key_and_value_are_orthogonalized_separately():
    """The update of each third of the fused matrix has singular values near 1; that of the whole matrix has not."""
    network = build_small_network()
    optimizer = build_optimizer(network, settings(weight_decay=0.0), 1.0)
    attention = network.encoder.blocks[0].attention
    before = attention.input.weight.detach().clone()
    for parameter in network.parameters():
        parameter.grad = random_tensor(*parameter.shape, seed=parameter.numel())
    attention.input.weight.grad[:16] *= 1e-3  # in the whole matrix the query update would vanish
    optimizer.step()
    moved = attention.input.weight.detach() - before
    for part in moved.chunk(3):
        values = torch.linalg.svdvals(part)
        assert values.min() > 0.3 and values.max() < 1.3
    assert attention.fused_matrices == {"input": 3}
    assert CrossAttention.fused_matrices == {"input": 2}


def test_parameter_groups_have_the_right_learning_rates_and_weight_decay():
    network = build_small_network()
    optimizer = build_optimizer(network, settings(adamw_learning_rate=0.003, weight_decay=0.1), 0.02,
                                layer_lr_scales(network, 0.5))
    set_learning_rate(optimizer, 0.01)  # half of the highest
    names = {parameter: name for name, parameter in network.named_parameters()}
    result = {names[p]: (group["parts"] is not None, group["lr"], group["weight_decay"])
              for group in optimizer.param_groups for p in group["params"]}
    assert result.keys() == set(names.values())
    scale_by_name = layer_lr_scales(network, 0.5)
    for parameter, name in names.items():
        hidden = ".blocks." in name and parameter.ndim == 2
        expected = (0.01 if hidden else 0.0015) * scale_by_name[name]
        assert result[name] == (hidden, pytest.approx(expected), 0.1 if parameter.ndim == 2 else 0.0), name
    assert len({lr for _, lr, _ in result.values()}) == 6  # two layers of each; the embedding and the heads


def test_embeddings_that_are_not_tied_have_a_learning_rate_of_their_own():
    network = build_small_network("nanochat", "network.norm.weight=true")
    rates = {"adamw_learning_rate": 0.003, "embedding_learning_rate": 0.1}
    optimizer = build_optimizer(network, settings(**rates), 0.02, layer_lr_scales(network, 0.5))
    names, scale_by_name = {p: name for name, p in network.named_parameters()}, layer_lr_scales(network, 0.5)
    result = {names[p]: group["lr"] for group in optimizer.param_groups for p in group["params"]}
    expected = {name: 0.1 if "tokens" in name else 0.02 if ".blocks." in name and p.ndim == 2 else 0.003
                for p, name in names.items()}
    assert result == pytest.approx({name: rate * scale_by_name[name] for name, rate in expected.items()})
    assert "heads.vocabulary.output.weight" in result and "embedding.tokens.weight" in result
    tied = build_optimizer(build_small_network(), settings(**rates), 0.02)  # a tied embedding is an output matrix too
    assert sorted({group["lr"] for group in tied.param_groups}) == pytest.approx([0.003, 0.02])


def test_other_parameters_take_exactly_the_steps_of_adamw():
    network, twin = build_small_network(), build_small_network()
    ours = build_optimizer(network, settings(beta1=0.8, beta2=0.9, epsilon=1e-5, adamw_learning_rate=0.02), 0.02)
    plain = TypeAdapter(AnyOptimizer).validate_python({"kind": "adamw", "beta1": 0.8, "beta2": 0.9,
                                                            "epsilon": 1e-5})
    theirs = build_optimizer(twin, plain, 0.02)
    for step in range(3):
        for mine, other in zip(network.parameters(), twin.parameters(), strict=True):
            mine.grad = random_tensor(*mine.shape, seed=step * 10_000 + mine.numel())
            other.grad = mine.grad.clone()
        ours.step()
        theirs.step()
    hidden = count_hidden_matrices(network)
    same = [torch.equal(a, b) for a, b in zip(network.parameters(), twin.parameters(), strict=True)]
    assert same == [parameter not in hidden for parameter in network.parameters()] and any(same) and not all(same)


def test_all_settings_and_the_learning_rate_change_the_update():
    untied = ("bert", "network.embedding.tied=false")

    def train(rate=0.01, **keys):
        network = build_small_network(*untied)
        optimizer = build_optimizer(network, settings(**keys), 0.5)
        set_learning_rate(optimizer, rate)
        for step in range(2):
            for parameter in network.parameters():
                parameter.grad = random_tensor(*parameter.shape, seed=step * 10_000 + parameter.numel())
            optimizer.step()
        return torch.cat([p.detach().flatten() for p in network.parameters()])

    assert torch.equal(train(0.0), torch.cat([p.detach().flatten() for p in build_small_network(*untied).parameters()]))
    base = train()
    changes = {"momentum": 0.5, "nesterov": False, "iterations": 3, "scale": "match_rms_adamw", "beta1": 0.5,
               "adamw_learning_rate": 1e-2, "embedding_learning_rate": 1e-2, "beta2": 0.7, "epsilon": 0.1,
               "weight_decay": 0.5}
    assert changes.keys() == type(settings()).model_fields.keys() - {"kind"}
    for key, value in changes.items():
        assert not torch.equal(train(**{key: value}), base), key


@pytest.mark.parametrize("requested", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("native", [torch.float32, torch.bfloat16])
def test_products_are_bf16_only_if_requested_and_native(monkeypatch, requested, native):
    from stemma.training import hardware
    monkeypatch.setattr(hardware, "resolve_precision", lambda setting, device: native)
    built = build_optimizer(build_small_network(), settings(), 0.02, precision=requested)
    assert built.dtype == (torch.bfloat16 if requested == native == torch.bfloat16 else torch.float32)


def test_a_network_without_hidden_matrices_gets_adamw_steps(caplog):
    network = build_small_network()
    for module_ in network.modules():
        if isinstance(module_, Block):
            module_.requires_grad_(False)
    optimizer = build_optimizer(network, settings(), 0.02)
    assert "all parameters get AdamW steps" in caplog.text
    assert all(group["parts"] is None for group in optimizer.param_groups)


# ---- StableAdamW ----

@pytest.mark.parametrize("shape", [(5, 7), (6,)])
@pytest.mark.parametrize(("decay", "size"), [(0.0, 1.0), (0.3, 1.0), (0.0, 1e-7)])
def test_stable_adamw_matches_the_paper(shape, decay, size):
    """With gradient spikes that are clipped, some gradients always zero, and some below epsilon."""
    parameter = nn.Parameter(random_tensor(*shape))
    scales = (0.1, 0.1, 3.0, 0.01, 0.1)
    gradients = [random_tensor(*shape, seed=n, scale=scale * size) for n, scale in enumerate(scales)]
    for gradient in gradients:
        gradient[0] = 0
    expected = literal_stable.stable_adamw(parameter.detach(), gradients, 0.02, 0.8, 0.95, 1e-6, decay)
    result = run_steps(StableAdamW([parameter], 0.02, (0.8, 0.95), 1e-6, decay), parameter, gradients)
    np.testing.assert_allclose(result, expected, rtol=2e-5, atol=1e-6)
