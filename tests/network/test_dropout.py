import pytest
import torch

from stemma.network.dropout import Dropout, keep_mask


@pytest.mark.parametrize("rate", [0.1, 0.3, 0.5, 0.9])
@pytest.mark.parametrize("count", [200_001, 200_004])
def test_the_share_dropped_and_the_scale_of_the_rest(rate, count):
    torch.manual_seed(0)
    mask = keep_mask(torch.Size([count]), rate, torch.float32)
    dropped = (mask == 0).float().mean().item()
    assert abs(dropped - rate) < 4 * (rate * (1 - rate) / count) ** 0.5 + 1 / 65536
    assert torch.unique(mask[mask > 0]).tolist() == pytest.approx([1 / (1 - rate)], rel=1e-3)


@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_neighbours_are_independent(rate):
    """Four elements come from one word of random bits."""
    torch.manual_seed(1)
    kept = (keep_mask(torch.Size([400_000]), rate, torch.float32) > 0).float() - (1 - rate)
    for distance in (1, 2, 3, 4):
        together = (kept[distance:] * kept[:-distance]).mean().item()
        assert abs(together) < 5 * rate * (1 - rate) / 400_000**0.5


def test_the_mean_is_exact_at_a_rate_that_16_bits_round():
    rate = 1.5 / 65536
    mask = keep_mask(torch.Size([65536 * 8]), rate, torch.float64)
    scale = mask.max().item()
    kept = 1 - round(rate * 65536) / 65536
    assert scale * kept == pytest.approx(1.0, abs=1e-12)


def test_nothing_happens_outside_training_or_at_rate_zero():
    x = torch.randn(3, 5)
    assert Dropout(0.5).eval()(x) is x
    assert Dropout(0.0).train()(x) is x


def test_gradients_go_where_values_went():
    torch.manual_seed(2)
    x = torch.ones(1000, requires_grad=True)
    y = Dropout(0.4).train()(x)
    y.sum().backward()
    assert torch.equal(x.grad, y.detach())
    assert 500 < (y > 0).sum() < 700


def test_the_seed_decides():
    layer, x = Dropout(0.5).train(), torch.ones(64)
    torch.manual_seed(3)
    one = layer(x)
    torch.manual_seed(3)
    assert torch.equal(layer(x), one)
    assert not torch.equal(layer(x), one)


def test_shape_and_type_stay():
    x = torch.ones(2, 3, 5, dtype=torch.bfloat16)
    y = Dropout(0.2).train()(x)
    assert y.shape == x.shape and y.dtype == x.dtype
