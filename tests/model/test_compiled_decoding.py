"""The products of compiled decoding are those of a linear layer; tests/model/test_compile.py compares whole answers."""

import pytest
import torch

from model.compiled_decoding import FewRows


@pytest.mark.parametrize("shape", [(1, 1, 24), (1, 24), (4, 1, 24), (2, 3, 24), (40, 24)])
@pytest.mark.parametrize("bias", [True, False])
def test_products_of_few_rows_are_those_of_a_linear_layer(shape, bias):
    layer, x = torch.nn.Linear(24, 40, bias=bias), torch.randn(shape)
    with torch.no_grad(), FewRows():
        product = layer(x)
    torch.testing.assert_close(product, layer(x), rtol=1e-5, atol=1e-5)
