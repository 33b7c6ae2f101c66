"""Kernels from text."""

import pytest

from agp.kernels import RBF, Linear, Periodic, Product, Sum, White, parse_kernel


def test_kernels_are_sums_of_products():
    kernel = parse_kernel("rbf*linear + white")
    product, white = kernel.parts
    assert isinstance(kernel, Sum)
    assert isinstance(white, White)
    assert [type(part) for part in product.parts] == [RBF, Linear]
    assert isinstance(product, Product)
    assert isinstance(parse_kernel("periodic"), Periodic)
    season = parse_kernel("matern32(3e3) + seasonal( 365.25 )*rbf")
    assert season.parts[0].lengthscale == 3000.0
    assert season.parts[1].parts[0].period == 365.25
    with pytest.raises(ValueError, match="the kernel 'linear\\(2\\)' has the number 2 after 'linear'"):
        parse_kernel("linear(2)")
