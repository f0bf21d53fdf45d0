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


def inputs(rows: int, bias: bool = True, scale: float = 1.0):
    rng = torch.Generator().manual_seed(0)
    hidden = torch.randn(rows, WIDTH, generator=rng) * scale
    table = torch.randn(VOCABULARY, WIDTH, generator=rng)
    offset = torch.randn(VOCABULARY, generator=rng) if bias else None
    labels = torch.randint(0, VOCABULARY, (rows,), generator=rng)
    return [None if each is None else each.requires_grad_() for each in (hidden, table, offset)], labels


def reference(leaves, labels, total, smoothing=0.0):
    hidden, table, bias = leaves
    scores = functional.linear(hidden, table, bias)
    return functional.cross_entropy(scores, labels, reduction="sum", label_smoothing=smoothing) / total


def gradients(loss, leaves):
    return torch.autograd.grad(loss * 1.7, [leaf for leaf in leaves if leaf is not None])


@pytest.mark.parametrize("block", [1, VOCABULARY, 3 * VOCABULARY, 1 << 23])
@pytest.mark.parametrize("rows", [1, 8, 11])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("total", [11.0, 3.0])
@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.7])
def test_value_and_gradients_are_torch_s(monkeypatch, block, rows, bias, total, smoothing):
    monkeypatch.setattr(module, "BLOCK_LOGITS", block)
    leaves, labels = inputs(rows, bias)
    expected = reference(leaves, labels, total, smoothing)
    found = linear_cross_entropy(*leaves, labels, total, smoothing)
    torch.testing.assert_close(found, expected)
    for one, other in zip(gradients(found, leaves), gradients(expected, leaves), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_large_scores_do_not_overflow(smoothing):
    leaves, labels = inputs(5, scale=300.0)
    found, expected = (loss(*given, labels, 5.0, smoothing) for loss, given in ((linear_cross_entropy, leaves),
                                                                                (reference, [leaves])))
    torch.testing.assert_close(found, expected)
    for one, other in zip(gradients(found, leaves), gradients(expected, leaves), strict=True):
        assert one.isfinite().all()
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


def test_no_rows_give_zero_loss():
    leaves, labels = inputs(0)
    found = linear_cross_entropy(*leaves, labels, 4.0)
    assert found.item() == 0.0
    for gradient, leaf in zip(gradients(found, leaves), leaves, strict=True):
        assert gradient.shape == leaf.shape and not gradient.any()


@pytest.mark.parametrize("block", [2 * VOCABULARY, 1 << 23])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_under_bf16_autocast(monkeypatch, block, smoothing):
    monkeypatch.setattr(module, "BLOCK_LOGITS", block)
    leaves, labels = inputs(64)
    expected = reference(leaves, labels, 64.0, smoothing)
    with torch.autocast("cpu", torch.bfloat16):
        found = linear_cross_entropy(*leaves, labels, 64.0, smoothing)
    assert found.dtype == torch.float32
    assert found.item() == pytest.approx(expected.item(), rel=0.01)
    for one, other, leaf in zip(gradients(found, leaves), gradients(expected, leaves), leaves, strict=True):
        assert one.dtype == leaf.dtype
        assert (one - other).norm() < 0.02 * other.norm()


@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad])
def test_where_no_gradient_is_wanted(mode):
    leaves, labels = inputs(9)
    expected = reference(leaves, labels, 9.0, 0.2).item()
    with mode():
        found = linear_cross_entropy(*leaves, labels, 9.0, 0.2)
    assert found.item() == pytest.approx(expected, rel=1e-5)
    assert not found.requires_grad


@pytest.mark.parametrize("columns", [3, BUNDLE_COLUMNS - 1, BUNDLE_COLUMNS, BUNDLE_COLUMNS + 1,
                                     3 * BUNDLE_COLUMNS + 17])
def test_columns_are_sampled_in_proportion_to_their_weights(columns):
    """Chi-squared over a few likely columns, spread over all bundles, and the rest together."""
    torch.manual_seed(0)
    weights = torch.rand(columns) * 0.02
    weights[[0, columns // 2, columns - 1]] = torch.tensor([1.0, 4.0, 2.0])
    rows = 40_000
    found = sample_columns(weights.expand(rows, columns))
    assert found.shape == (rows,) and found.dtype == torch.int64
    likely = [0, columns // 2, columns - 1]
    share = weights.double() / weights.double().sum()
    expected = [*(rows * share[likely]).tolist(), rows * (1 - share[likely].sum()).item()]
    counts = torch.bincount(found, minlength=columns).double()
    seen = [*counts[likely].tolist(), rows - counts[likely].sum().item()]
    surprise = sum((one - other) ** 2 / max(other, 1e-9) for one, other in zip(seen, expected, strict=True) if other)
    assert surprise < 16.3  # three degrees of freedom: passed by chance in 999 of 1,000 cases


def test_columns_of_zero_weight_are_never_sampled():
    weights = torch.zeros(500, 2 * BUNDLE_COLUMNS + 5)
    chosen = torch.randint(weights.shape[1], (500,), generator=torch.Generator().manual_seed(3))
    weights[torch.arange(500), chosen] = 1e-30
    assert torch.equal(sample_columns(weights), chosen)


@pytest.mark.parametrize("block", [2 * VOCABULARY, 1 << 23])
def test_loss_and_sample_gives_the_same_loss_and_samples_from_the_same_distribution(monkeypatch, block):
    monkeypatch.setattr(module, "BLOCK_LOGITS", block)
    torch.manual_seed(1)
    leaves, labels = inputs(5)
    hidden, table, bias = leaves
    many = 6000
    repeated = [hidden.detach().repeat(many, 1).requires_grad_(), table, bias]
    guess = linear_cross_entropy_and_sample(*repeated, labels.repeat(many), 7.0)
    expected = linear_cross_entropy(*repeated, labels.repeat(many), 7.0)
    torch.testing.assert_close(guess.loss, expected)
    for one, other in zip(gradients(guess.loss, repeated), gradients(expected, repeated), strict=True):
        assert_close(one, other)
    scores = functional.linear(hidden, table, bias)
    assert torch.equal(guess.correct.view(many, 5)[0], scores.argmax(1) == labels)
    assert not guess.sampled.requires_grad
    for row in range(5):
        share = torch.bincount(guess.sampled.view(many, 5)[:, row], minlength=VOCABULARY) / many
        chance = scores[row].softmax(0)
        assert ((share - chance).abs() <= 4.5 * (chance * (1 - chance) / many).sqrt() + 1e-4).all()


def test_samples_follow_torch_s_seed():
    leaves, labels = inputs(64)

    def sample(seed: int) -> torch.Tensor:
        torch.manual_seed(seed)
        return linear_cross_entropy_and_sample(*leaves, labels, 1.0).sampled

    assert torch.equal(sample(1), sample(1)) and not torch.equal(sample(1), sample(2))


def test_one_weight_serves_as_embedding_and_output():
    """Tied: the table's gradient is the sum of what both ends ask for."""
    table = torch.randn(VOCABULARY, WIDTH, requires_grad=True)
    ids, labels = torch.tensor([3, 3, 5]), torch.tensor([1, 2, 3])

    def through(loss):
        return torch.autograd.grad(loss, table)[0]

    expected = through(functional.cross_entropy(functional.embedding(ids, table) @ table.T, labels))
    found = through(linear_cross_entropy(functional.embedding(ids, table), table, None, labels, 3.0))
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
