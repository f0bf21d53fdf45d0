import pytest
import torch
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from stemma.network.bf16_linear import ROW_MULTIPLE, linear
from stemma.network.linear_cross_entropy import linear_cross_entropy


class ProductRows(TorchDispatchMode):
    """Records the number of rows of every matrix product in bf16."""

    def __init__(self):
        super().__init__()
        self.rows = set()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function.overloadpacket in (torch.ops.aten.mm, torch.ops.aten.addmm):
            matrices = [arg for arg in args if isinstance(arg, torch.Tensor) and arg.dim() == 2]
            assert all(matrix.dtype == torch.bfloat16 for matrix in matrices)
            self.rows |= {matrices[0].shape[0], matrices[0].shape[1]}
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("shape", [(1, 8), (70, 8), (5, 13, 8), (ROW_MULTIPLE, 8), (0, 8)])
@pytest.mark.parametrize("has_bias", [True, False])
@pytest.mark.parametrize("input_dtype", [torch.float32, torch.bfloat16])
def test_values_and_gradients_are_those_of_a_linear_layer(shape, has_bias, input_dtype):
    generator = torch.Generator().manual_seed(0)
    values = [torch.randn(shape, generator=generator), torch.randn(12, 8, generator=generator),
              torch.randn(12, generator=generator)]
    weights = torch.randn(*shape[:-1], 12, generator=generator)
    results = []
    for function in (linear, functional.linear):
        x, weight, bias = (value.clone().requires_grad_() for value in values)
        with torch.autocast("cpu", torch.bfloat16):
            y = function(x.to(input_dtype), weight, bias if has_bias else None)
        assert y.dtype == torch.bfloat16
        (y.float() * weights).sum().backward()
        results.append([y.float(), x.grad, weight.grad, *([bias.grad] if has_bias else [])])
        assert weight.grad.dtype == torch.float32
    for rounded, expected in zip(*results, strict=True):
        assert (rounded - expected).norm() <= 0.01 * expected.norm()


def test_fp32_is_left_alone():
    x, weight = torch.randn(7, 8), torch.randn(12, 8)
    torch.testing.assert_close(linear(x, weight, None), functional.linear(x, weight), rtol=0, atol=0)


def test_frozen_weights_and_inputs_get_no_gradient():
    x, weight = torch.randn(7, 8), torch.randn(12, 8)
    with torch.autocast("cpu", torch.bfloat16):
        linear(x.requires_grad_(), weight, None).sum().backward()
        assert x.grad is not None and weight.grad is None
        linear(x.detach(), weight.requires_grad_(), None).sum().backward()
    assert weight.grad is not None


def test_numbers_of_rows_that_differ_a_little_share_their_products():
    """The point of it: oneDNN compiles a kernel for each shape."""
    seen = []
    for rows in (ROW_MULTIPLE + 1, ROW_MULTIPLE + 7, 2 * ROW_MULTIPLE - 1):
        x, weight = torch.randn(rows, 8, requires_grad=True), torch.randn(12, 8, requires_grad=True)
        labels = torch.zeros(rows, dtype=torch.long)
        with ProductRows() as products, torch.autocast("cpu", torch.bfloat16):
            linear(x, weight, None).sum().backward()
            linear_cross_entropy(x, weight, None, labels, 1.0).backward()
        seen.append(products.rows)
    assert seen[0] == seen[1] == seen[2] == {2 * ROW_MULTIPLE, 8, 12}
