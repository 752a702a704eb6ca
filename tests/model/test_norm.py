"""RMSNorm's own backward pass against autograd's."""

import pytest
import torch

from model.norm import RMSNorm


@pytest.mark.parametrize(("dtype", "relative"), [(torch.float32, 1e-5), (torch.bfloat16, 2e-2)])
@pytest.mark.parametrize("shape", [(3, 5, 16), (2, 7, 4, 8)])
def test_same_numbers_and_gradients_as_the_formula_under_autograd(shape, dtype, relative):
    norm = RMSNorm(shape[-1], 1e-6)
    torch.nn.init.normal_(norm.weight, 1.0, 0.3)
    x = torch.randn(shape).to(dtype).requires_grad_()
    x32 = x.float()
    expected = norm.weight * (x32 * torch.rsqrt(x32.pow(2).mean(-1, keepdim=True) + 1e-6)).to(dtype)
    found = norm(x)
    assert torch.equal(found, expected)
    with torch.no_grad():
        assert torch.equal(norm(x), expected)
    gradient = torch.randn(found.shape).to(found.dtype)
    theirs = torch.autograd.grad(expected, (x, norm.weight), gradient)
    ours = torch.autograd.grad(found, (x, norm.weight), gradient)
    for a, b in zip(ours, theirs, strict=True):
        assert a.dtype == b.dtype
        assert (a - b).norm() < relative * b.norm()
