import pytest
import torch

from stemma.network.dropout import Dropout, dropout_mask


@pytest.mark.parametrize("rate", [0.1, 0.3, 0.5, 0.9, 0.999])
@pytest.mark.parametrize("count", [1001, 1004])
def test_the_dropped_fraction_is_p_and_the_mean_is_preserved(rate, count):
    """Although few random bits decide per element, both are exact over many samples."""
    torch.manual_seed(0)
    masks = torch.stack([dropout_mask(torch.Size([count]), rate, torch.float64) for _ in range(500)])
    fractions = (masks == 0).double().mean(1)
    assert abs(fractions.mean().item() - rate) < 4 * fractions.std().item() / 500**0.5 + 1 / 65536
    means = masks.mean(1)
    assert abs(means.mean().item() - 1) < 4 * means.std().item() / 500**0.5 + 1e-4
    assert all(len(mask.unique()) <= 2 for mask in masks)  # 0 and one scale


@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_neighbouring_elements_are_dropped_independently(rate):
    """Several elements share one random integer."""
    torch.manual_seed(1)
    is_kept = (dropout_mask(torch.Size([400_000]), rate, torch.float32) > 0).float()
    is_kept -= is_kept.mean()
    for distance in range(1, 10):
        covariance = (is_kept[distance:] * is_kept[:-distance]).mean().item()
        assert abs(covariance) < 5 * rate * (1 - rate) / 400_000**0.5


def test_dropout_is_the_identity_in_eval_mode_or_with_p_zero():
    x = torch.randn(3, 5)
    assert Dropout(0.5).eval()(x) is x
    assert Dropout(0.0).train()(x) is x


def test_the_gradient_has_the_same_mask_as_the_output():
    torch.manual_seed(2)
    x = torch.ones(1000, requires_grad=True)
    y = Dropout(0.4).train()(x)
    y.sum().backward()
    assert torch.equal(x.grad, y.detach())
    assert 500 < (y > 0).sum() < 700


def test_the_seed_determines_the_mask():
    layer, x = Dropout(0.5).train(), torch.ones(64)
    torch.manual_seed(3)
    first = layer(x)
    torch.manual_seed(3)
    assert torch.equal(layer(x), first)
    assert not torch.equal(layer(x), first)


def test_dropout_preserves_shape_and_dtype():
    x = torch.ones(2, 3, 5, dtype=torch.bfloat16)
    y = Dropout(0.2).train()(x)
    assert y.shape == x.shape and y.dtype == x.dtype
