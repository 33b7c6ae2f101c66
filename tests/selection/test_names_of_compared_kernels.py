"""What the names of parameters mean if the kernel is chosen: limits, densities and frozen parameters of its parts."""

import numpy as np
import pytest

import agp
from agp import GPClassifier, GPRegressor, tree
from agp.kernels import Linear, Seasonal, Stationary
from agp.priors import Between, Fixed, LogNormal
from agp.selection._given import KERNELS, Columns, by_compared_kernel

pd = pytest.importorskip("pandas")

MONTHS, RNG = 96, np.random.default_rng(3)
YEARS, TEMP = np.arange(MONTHS) / 12.0, 12.0 + RNG.normal(0.0, 3.0, MONTHS)
TABLE = pd.DataFrame({"month": pd.date_range("2010-01-01", periods=MONTHS, freq="MS"), "temp": TEMP})
Y = 50.0 + 0.8 * YEARS + 5.0 * np.sin(2.0 * np.pi * YEARS) + 0.4 * (TEMP - 12.0) + RNG.normal(0.0, 0.5, MONTHS)
SPAN = Between(500.0, 3000.0)


def parts_of(found):
    """Return the kernel at its mode, and what the paths of the parts of seasons begin with."""
    model = found.model_
    kernel = (model.mode if hasattr(model, "mode") else model).kernel
    products = tree.nodes(kernel, agp.kernels.Product)
    seasons = [path for path, one in products.items() if any(isinstance(part, Seasonal) for part in one.parts)]
    return kernel, tuple(f"{path}." for path in seasons)


def lengthscales(found, column):
    """Return the lengthscales of a column in the compared kernels, without those of seasons."""
    kernel, seasons = parts_of(found)
    values = []
    for path, node in tree.nodes(kernel, Stationary).items():
        columns = agp.kernels._active_dims.input_columns(kernel, path, 2)
        if type(node) in KERNELS.values() and not path.startswith(seasons or "none") and column in columns:
            values.append(float(np.ravel(node.lengthscale)[columns.index(column)]))
    return values


def seasonal_lengthscales(found):
    kernel, _ = parts_of(found)
    return [float(np.ravel(node.lengthscale)[0]) for node in tree.nodes(kernel, Seasonal).values()]


ENTRIES = ["kernel.lengthscale[{}]", "kernel*lengthscale[{}]", "*kernel.lengthscale[{}]", "kernel.*lengthscale[{}]"]


@pytest.mark.parametrize("hyperparameters", ["mode", "mixture"])
@pytest.mark.parametrize("pattern", ENTRIES)
@pytest.mark.parametrize(("column", "limit"), [(0, SPAN), (1, Between(1.0, 5.0))])
def test_an_entry_is_the_lengthscale_of_a_column(hyperparameters, pattern, column, limit):
    priors = {pattern.format(column): limit}
    found = GPRegressor(priors=priors, hyperparameters=hyperparameters, random_state=0).fit(TABLE, Y)
    inside = lengthscales(found, column)
    assert inside
    assert all(limit.low - 1e-9 <= x <= limit.high + 1e-9 for x in inside)
    assert "seasonal" in found.kernel_
    assert all(x < 100.0 for x in seasonal_lengthscales(found))


@pytest.mark.parametrize("hyperparameters", ["mode", "mixture"])
@pytest.mark.parametrize("pattern", ["kernel.lengthscale", "*kernel.lengthscale", "kernel*lengthscale", "*lengthscale"])
@pytest.mark.parametrize("limit", [Between(20.0, 3000.0), LogNormal(np.log(1000.0), 0.3)], ids=["limit", "density"])
def test_short_names_leave_seasons_alone(hyperparameters, pattern, limit):
    found = GPRegressor(priors={pattern: limit}, hyperparameters=hyperparameters, random_state=0).fit(TABLE, Y)
    assert "seasonal" in found.kernel_
    assert all(0.1 < x < 10.0 for x in seasonal_lengthscales(found))
    inside = [x for column in range(2) for x in lengthscales(found, column)]
    assert inside
    assert all(19.9 < x < 3000.1 for x in inside)


@pytest.mark.parametrize("hyperparameters", ["mode", "mixture"])
@pytest.mark.parametrize("pattern", ENTRIES[:2])
def test_entries_can_be_frozen_and_have_densities(hyperparameters, pattern):
    options = {"hyperparameters": hyperparameters, "random_state": 0}
    assert "seasonal" in GPRegressor(frozen=[pattern.format(0)], **options).fit(TABLE, Y).kernel_
    tight = GPRegressor(priors={pattern.format(1): LogNormal(np.log(7.0), 0.01)}, **options).fit(TABLE, Y)
    np.testing.assert_allclose(lengthscales(tight, 1), 7.0, rtol=0.05)


@pytest.mark.filterwarnings("ignore::agp.errors.NoSignalWarning")
def test_classifiers_and_categories_have_entries_of_columns():
    table = pd.DataFrame({"first": TEMP, "level": RNG.permutation(np.repeat(["a", "b"], MONTHS // 2)), "last": YEARS})
    limits = {"kernel.lengthscale[0]": Between(20.0, 30.0), "kernel.lengthscale[1]": Between(5.0, 6.0)}
    labels = np.where(np.median(Y) < Y, "up", "down")
    for found in (GPRegressor(priors=limits).fit(table, Y), GPClassifier(priors=limits).fit(table, labels)):
        assert found.model_columns() == ["first", "last", "level"]
        nodes = tree.nodes(found.model_, Stationary).values()
        some = [np.asarray(node.lengthscale) for node in nodes if type(node) in KERNELS.values()]
        assert some
        for x in some:
            assert np.all((x[..., 0] >= 20.0 - 1e-9) & (x[..., 0] <= 30.0 + 1e-9))
            assert np.all((x[..., 1] >= 5.0 - 1e-9) & (x[..., 1] <= 6.0 + 1e-9))
    with pytest.raises(ValueError, match=r"'kernel.lengthscale\[2\]' names column 2, which contains levels"):
        GPRegressor(priors={"kernel.lengthscale[2]": SPAN}).fit(table, Y)


@pytest.mark.parametrize("prior", [SPAN, LogNormal(0.0, 1.0)], ids=["limit", "density"])
@pytest.mark.parametrize("kind", [GPRegressor, GPClassifier])
def test_entries_that_no_column_has_are_refused(kind, prior):
    y = Y if kind is GPRegressor else np.median(Y) < Y
    with pytest.raises(ValueError, match=r"'kernel.lengthscale\[2\]' names an entry of kernel.lengthscale.*2 columns"):
        kind(priors={"kernel.lengthscale[2]": prior}).fit(TABLE, y)


def test_patterns_that_name_a_part_do_not_match_parts_of_seasons():
    season = Seasonal(period=365.25) * agp.RBF(lengthscale=100.0)
    kernel = agp.RBF() + Linear() + season.on((0,)) + agp.Matern32(lengthscale=50.0).on((0,))
    fixed = [("kernel.lengthscale", Fixed()), ("kernel.lengthscale[1]", SPAN), ("kernel.lengthscale[0]", SPAN)]
    names = [[name for name, _ in by_compared_kernel([pair], kernel, Columns(2))] for pair in fixed]
    assert names == [
        ["^kernel.parts.0.lengthscale", "kernel.parts.3.kernel.lengthscale"],
        ["^kernel.parts.0.lengthscale[1]"],
        ["^kernel.parts.0.lengthscale[0]", "kernel.parts.3.kernel.lengthscale"],
    ]
    for pattern in names[0]:
        model = agp.GPR.from_data(np.ones((9, 2)) * np.arange(9.0)[:, None], np.sin(np.arange(9.0)), kernel=kernel)
        assert sum(tree.matches(name, pattern) for name in tree.leaves(model)) == 1


def test_a_narrowed_kernel_has_the_entries_of_its_columns():
    narrow = agp.RBF().on((1,))
    for d, expected in ((0, []), (1, ["kernel.kernel.lengthscale[0]"])):
        found = by_compared_kernel([(f"kernel.lengthscale[{d}]", SPAN)], narrow, Columns(2))
        assert [name for name, _ in found] == expected


@pytest.mark.parametrize("hyperparameters", ["mode", "mixture"])
@pytest.mark.parametrize("prior", [Between(360.0, 370.0), LogNormal(5.9, 0.01)], ids=["limit", "density"])
def test_the_period_of_a_season_is_a_constant(hyperparameters, prior):
    said = (
        r"no parameter matches 'kernel\*period': kernel.*period is a constant, .*the period of agp.Periodic is trained"
    )
    for kernel in ("auto", "seasonal(365.25).on(month) * rbf.on(month) + rbf"):
        with pytest.raises(ValueError, match=said):
            GPRegressor(kernel=kernel, priors={"kernel*period": prior}, hyperparameters=hyperparameters).fit(TABLE, Y)


def test_limits_and_priors_with_equal_targets():
    for pattern in ("kernel.lengthscale", "kernel*lengthscale", "kernel.lengthscale[0]"):
        for prior in (SPAN, LogNormal(7.0, 0.1)):
            with pytest.warns(UserWarning, match="all targets are the same"):
                GPRegressor(priors={pattern: prior}).fit(TABLE, np.ones(MONTHS))


def test_a_limit_of_lengthscales_holds_without_warps_and_turned_axes():
    rng = np.random.default_rng(0)
    X = np.column_stack([np.exp(1.5 * rng.standard_normal(260)), rng.standard_normal(260)])
    y = np.log(X[:, 0]) + np.sin(3.0 * (X[:, 1] + np.log(X[:, 0]))) + 0.05 * rng.standard_normal(260)
    found = agp.fit_regression(X, y, priors={"kernel.lengthscale": Between(0.5, 1.0)})
    assert "warped" not in found.kernel
    assert "metric" not in found.kernel
