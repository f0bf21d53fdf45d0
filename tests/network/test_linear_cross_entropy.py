import pytest
import torch
from closeness import assert_close
from torch.nn import functional

from stemma.network import linear_cross_entropy as module
from stemma.network.linear_cross_entropy import (
    BUNDLE_COLUMNS,
    linear_cross_entropy,
    linear_cross_entropy_and_sample,
    sample_columns,
)

WIDTH, VOCABULARY = 6, 37


@pytest.fixture(autouse=True, params=[2 * VOCABULARY, 1 << 23])
def chunk(request, monkeypatch):
    """Chunks of two rows, and one for all rows."""
    monkeypatch.setattr(module, "CHUNK_LOGITS", request.param)


def inputs(rows: int, bias: bool = True, scale: float = 1.0):
    rng = torch.Generator().manual_seed(0)
    hidden = torch.randn(rows, WIDTH, generator=rng) * scale
    table = torch.randn(VOCABULARY, WIDTH, generator=rng)
    offset = torch.randn(VOCABULARY, generator=rng) if bias else None
    labels = torch.randint(0, VOCABULARY, (rows,), generator=rng)
    return [None if tensor is None else tensor.requires_grad_() for tensor in (hidden, table, offset)], labels


def reference(leaves, labels, total, smoothing=0.0, softcap=None):
    hidden, table, bias = leaves
    scores = functional.linear(hidden, table, bias)
    scores = scores if softcap is None else softcap * torch.tanh(scores / softcap)
    return functional.cross_entropy(scores, labels, reduction="sum", label_smoothing=smoothing) / total


def gradients(loss, leaves):
    return torch.autograd.grad(loss * 1.7, [leaf for leaf in leaves if leaf is not None])


@pytest.mark.parametrize("block", [1, VOCABULARY, 3 * VOCABULARY, 1 << 23])
@pytest.mark.parametrize("rows", [1, 8, 11])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("total", [11.0, 3.0])
@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.7])
def test_loss_and_gradients_match_torch(monkeypatch, block, rows, bias, total, smoothing):
    monkeypatch.setattr(module, "BLOCK_LOGITS", block)
    leaves, labels = inputs(rows, bias)
    expected = reference(leaves, labels, total, smoothing)
    result = linear_cross_entropy(*leaves, labels, total, smoothing)
    torch.testing.assert_close(result, expected)
    for actual, correct in zip(gradients(result, leaves), gradients(expected, leaves), strict=True):
        torch.testing.assert_close(actual, correct, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("block", [VOCABULARY, 3 * VOCABULARY])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("smoothing", [0.0, 0.7])
def test_soft_capped_logits_match_torch(monkeypatch, block, bias, smoothing):
    monkeypatch.setattr(module, "BLOCK_LOGITS", block)
    leaves, labels = inputs(8, bias)
    expected = reference(leaves, labels, 3.0, smoothing, softcap=1.5)
    result = linear_cross_entropy(*leaves, labels, 3.0, smoothing, softcap=1.5)
    torch.testing.assert_close(result, expected)
    assert (result - reference(leaves, labels, 3.0, smoothing)).abs() > 0.01
    for actual, correct in zip(gradients(result, leaves), gradients(expected, leaves), strict=True):
        torch.testing.assert_close(actual, correct, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(linear_cross_entropy_and_sample(*leaves, labels, 3.0, softcap=1.5).loss,
                               reference(leaves, labels, 3.0, softcap=1.5))


@pytest.mark.parametrize("block", [VOCABULARY, 1 << 23])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_z_loss_adds_the_squared_log_normalizer(monkeypatch, block, smoothing, dtype):
    monkeypatch.setattr(module, "BLOCK_LOGITS", block)
    leaves, labels = inputs(8)
    scores = functional.linear(*leaves)
    expected = reference(leaves, labels, 3.0, smoothing) + 0.05 * scores.logsumexp(-1).square().sum() / 3.0
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype == torch.bfloat16):
        result = linear_cross_entropy(*leaves, labels, 3.0, smoothing, z_loss=0.05)
    tolerance = {"rtol": 1e-5, "atol": 1e-5} if dtype == torch.float32 else {"rtol": 0.03, "atol": 0.03}
    torch.testing.assert_close(result, expected, **tolerance)
    for actual, correct in zip(gradients(result, leaves), gradients(expected, leaves), strict=True):
        torch.testing.assert_close(actual, correct, **tolerance)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_large_scores_do_not_overflow(smoothing):
    leaves, labels = inputs(5, scale=300.0)
    result = linear_cross_entropy(*leaves, labels, 5.0, smoothing)
    expected = reference(leaves, labels, 5.0, smoothing)
    torch.testing.assert_close(result, expected)
    for actual, correct in zip(gradients(result, leaves), gradients(expected, leaves), strict=True):
        assert actual.isfinite().all()
        torch.testing.assert_close(actual, correct, rtol=1e-4, atol=1e-4)


def test_no_rows_give_zero_loss():
    leaves, labels = inputs(0)
    result = linear_cross_entropy(*leaves, labels, 4.0)
    assert result.item() == 0.0
    for gradient, leaf in zip(gradients(result, leaves), leaves, strict=True):
        assert gradient.shape == leaf.shape and not gradient.any()


@pytest.mark.parametrize("block", [2 * VOCABULARY, 1 << 23])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_bf16_autocast_is_close_to_fp32(monkeypatch, block, smoothing):
    monkeypatch.setattr(module, "BLOCK_LOGITS", block)
    leaves, labels = inputs(64)
    expected = reference(leaves, labels, 64.0, smoothing)
    with torch.autocast("cpu", torch.bfloat16):
        result = linear_cross_entropy(*leaves, labels, 64.0, smoothing)
    assert result.dtype == torch.float32
    assert result.item() == pytest.approx(expected.item(), rel=0.01)
    for actual, correct, leaf in zip(gradients(result, leaves), gradients(expected, leaves), leaves, strict=True):
        assert actual.dtype == leaf.dtype
        assert (actual - correct).norm() < 0.02 * correct.norm()


@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad])
def test_the_loss_is_right_without_gradients(mode):
    leaves, labels = inputs(9)
    expected = reference(leaves, labels, 9.0, 0.2).item()
    with mode():
        result = linear_cross_entropy(*leaves, labels, 9.0, 0.2)
    assert result.item() == pytest.approx(expected, rel=1e-5)
    assert not result.requires_grad


@pytest.mark.parametrize("columns", [3, BUNDLE_COLUMNS - 1, BUNDLE_COLUMNS, BUNDLE_COLUMNS + 1,
                                     3 * BUNDLE_COLUMNS + 17])
def test_columns_are_sampled_in_proportion_to_their_weights(columns):
    """A chi-squared test over a few likely columns in different bundles, and all others together."""
    torch.manual_seed(0)
    weights = torch.rand(columns) * 0.02
    weights[[0, columns // 2, columns - 1]] = torch.tensor([1.0, 4.0, 2.0])
    rows = 40_000
    result = sample_columns(weights.expand(rows, columns))
    assert result.shape == (rows,) and result.dtype == torch.int64
    likely = [0, columns // 2, columns - 1]
    probability = weights.double() / weights.double().sum()
    expected = [*(rows * probability[likely]).tolist(), rows * (1 - probability[likely].sum()).item()]
    counts = torch.bincount(result, minlength=columns).double()
    observed = [*counts[likely].tolist(), rows - counts[likely].sum().item()]
    chi_squared = sum((count - mean) ** 2 / max(mean, 1e-9)
                      for count, mean in zip(observed, expected, strict=True) if mean)
    assert chi_squared < 16.3  # the 0.999 quantile with three degrees of freedom


def test_columns_of_zero_weight_are_never_sampled():
    weights = torch.zeros(500, 2 * BUNDLE_COLUMNS + 5)
    column = torch.randint(weights.shape[1], (500,), generator=torch.Generator().manual_seed(3))
    weights[torch.arange(500), column] = 1e-30
    assert torch.equal(sample_columns(weights), column)


@pytest.mark.parametrize("block", [2 * VOCABULARY, 1 << 23])
def test_loss_and_sample_gives_the_same_loss_and_samples_from_the_same_distribution(monkeypatch, block):
    monkeypatch.setattr(module, "BLOCK_LOGITS", block)
    torch.manual_seed(1)
    leaves, labels = inputs(5)
    hidden, table, bias = leaves
    many = 6000
    repeated = [hidden.detach().repeat(many, 1).requires_grad_(), table, bias]
    output = linear_cross_entropy_and_sample(*repeated, labels.repeat(many), 7.0)
    expected = linear_cross_entropy(*repeated, labels.repeat(many), 7.0)
    torch.testing.assert_close(output.loss, expected)
    for actual, correct in zip(gradients(output.loss, repeated), gradients(expected, repeated), strict=True):
        assert_close(actual, correct)
    scores = functional.linear(hidden, table, bias)
    assert torch.equal(output.correct.view(many, 5)[0], scores.argmax(1) == labels)
    assert not output.sampled.requires_grad
    for row in range(5):
        frequency = torch.bincount(output.sampled.view(many, 5)[:, row], minlength=VOCABULARY) / many
        expected_frequency = scores[row].softmax(0)
        error = (expected_frequency * (1 - expected_frequency) / many).sqrt()
        assert ((frequency - expected_frequency).abs() <= 4.5 * error + 1e-4).all()


def test_samples_depend_on_torchs_seed():
    leaves, labels = inputs(64)

    def sample(seed: int) -> torch.Tensor:
        torch.manual_seed(seed)
        return linear_cross_entropy_and_sample(*leaves, labels, 1.0).sampled

    assert torch.equal(sample(1), sample(1)) and not torch.equal(sample(1), sample(2))


def test_a_tied_embedding_gets_both_gradients():
    """Its gradient is the sum of those as input and as output embedding."""
    table = torch.randn(VOCABULARY, WIDTH, requires_grad=True)
    ids, labels = torch.tensor([3, 3, 5]), torch.tensor([1, 2, 3])

    def through(loss):
        return torch.autograd.grad(loss, table)[0]

    expected = through(functional.cross_entropy(functional.embedding(ids, table) @ table.T, labels))
    result = through(linear_cross_entropy(functional.embedding(ids, table), table, None, labels, 3.0))
    torch.testing.assert_close(result, expected, rtol=1e-5, atol=1e-6)
