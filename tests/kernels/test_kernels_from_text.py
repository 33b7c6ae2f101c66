"""Kernels from text."""

import numpy as np
import pytest

from agp import kernels, tree
from agp.kernels import RBF, Centred, Linear, Periodic, Product, Seasonal, Sum, White, kernel_text, parse_kernel


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


ROUND = [
    "centred(rbf)",
    "centred(rbf).on(age)",
    "linear + matern32 + centred(seasonal(365.25)) * rbf + matern12",
    "constant + centred(rbf).on(age) + centred(matern52).on(dose)",
    "centred(rbf + linear) * matern12",
    "rbf * centred(rbf * seasonal(7))",
    "centred(periodic).on(month)",
    "centred(centred(rbf))",
]


@pytest.mark.parametrize("text", ROUND)
def test_centred_kernels_are_written_as_their_names_are_printed(text):
    found = parse_kernel(text)
    columns = ["age", "dose", "month"]
    assert kernel_text(found).replace("'", "") == text
    numbered = parse_kernel(text)
    assert kernel_text(numbered, columns).replace("'", "") == text


def test_centred_seasons_average_to_zero_over_the_period_and_other_kernels_over_the_rows():
    season = parse_kernel("centred(seasonal(7)) * rbf").parts[0]
    assert isinstance(season, Seasonal)
    assert season.centred
    assert isinstance(parse_kernel("centred( rbf(2) )"), Centred)
    assert parse_kernel("centred( rbf(2) )").kernel.lengthscale == 2.0
    inside = parse_kernel("centred(seasonal(7).on(day))")
    assert inside.kernel.centred
    assert inside.columns == ("day",)
    assert kernels.additive(Seasonal(period=7.0), (0,)).parts[1].kernel.centred


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("centred(rbf", "has parentheses after 'centred' that are not closed"),
        ("centred(rbf + linear * matern12", "has parentheses after 'centred' that are not closed"),
        ("centred()", "has '\\)' where a kernel should be"),
        ("centred", "write a kernel in parentheses, as in 'centred\\(rbf\\)'"),
        ("centred + rbf", "write a kernel in parentheses, as in 'centred\\(rbf\\)'"),
        ("rbf)", "has '\\)' after 'rbf'"),
        ("centred(rbf))", "has '\\)' after 'centred\\(rbf\\)'"),
        ("centred(rbf) linear", "has 'linear' after 'centred\\(rbf\\)'"),
        ("centred(rbf).from(age)", "after 'centred\\(rbf\\)'"),
        ("centred(rfb)", "unknown kernel 'rfb'"),
        ("additive(rbf)", "'constant \\+ centred\\(rbf\\).on\\(width\\) \\+ centred\\(rbf\\).on\\(height\\)'"),
        ("centred(auto)", "combines 'auto'"),
    ],
)
def test_wrong_centred_kernels(text, match):
    with pytest.raises(ValueError, match=match):
        parse_kernel(text, "auto")


def test_linear_functions_in_text_vanish_at_the_mean_of_the_data():
    X = np.asarray([[10000.0, 3.0], [10100.0, 5.0], [10250.0, 4.0]])
    for text in ("linear", "rbf + linear", "linear.on(0)"):
        kernel = parse_kernel(text)
        kernel = kernel.kernel.on(0) if ".on" in text else kernel
        found = next(iter(tree.nodes(kernel.from_data(X, 1.0), Linear).values()))
        width = 1 if ".on" in text else 2
        np.testing.assert_allclose(found.centre, np.mean(X, axis=0)[:width])
    assert Linear().from_data(X, 1.0).centre is None
    given = Linear(centre=[1.0, 2.0], at_mean=True).from_data(X, 1.0)
    np.testing.assert_allclose(given.centre, [1.0, 2.0])
