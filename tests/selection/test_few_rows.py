"""Few rows: error bars that hold, signals that are found, and noise that is not believed."""

import warnings

import numpy as np
import pytest

import agp
from agp.errors import NoSignalWarning
from agp.kernels import RBF, Matern52
from agp.models import GPR, GPRMixture
from agp.selection import fit_regression
from agp.selection._given import Data
from agp.selection._signal import beats_permutations, left_out_baseline, predicts_left_out

GRID = np.linspace(-2.0, 2.0, 101)[:, None]


def curve(x):
    return np.sin(5.0 * x) * (1.0 - np.tanh(x**2))


def test_clear_curve_through_twenty_rows_is_found():
    """A curve that the evidence of the best hyperparameters explains by only four nats, with four hyperparameters."""
    x = np.linspace(-2.0, 2.0, 20)[:, None]
    for seed in range(3, 6):
        y = curve(x) + 0.1 * np.random.default_rng(seed).standard_normal(x.shape)
        found = fit_regression(x, y)
        assert found.learned
        assert np.sqrt(np.mean((found.model.predict(GRID).mean - curve(GRID)) ** 2)) <= 0.13


def test_rows_without_noise():
    x = np.asarray([[1.0], [3.0], [5.0], [6.0], [7.0], [8.0]])
    y = x * np.sin(x)
    usual = fit_regression(x, y)
    assert np.max(np.abs(usual.model.predict(x).mean - y)) <= 0.4 * np.std(y)
    exact = fit_regression(x, y, likelihood=agp.Gaussian(0.0))
    assert exact.learned
    np.testing.assert_allclose(exact.model.predict(x).mean, y, atol=1e-6)
    between = exact.model.predict(np.asarray([[2.0], [4.0]]), observed=True).variance
    assert np.all(between > 1e-2 * np.var(y))


@pytest.mark.parametrize("rows", [2, 3])
def test_two_and_three_rows_of_noise_are_not_believed(rows):
    inside = []
    for seed in range(12):
        rng = np.random.default_rng(seed)
        X, y = rng.uniform(0.0, 10.0, (rows, 1)), 7.0 + 3.0 * rng.standard_normal((rows, 1))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", NoSignalWarning)
            model = fit_regression(X, y).model
        low, high = model.interval(rng.uniform(0.0, 10.0, (200, 1)), 0.9)
        new = 7.0 + 3.0 * rng.standard_normal((200, 1))
        inside.append(np.mean((new > low) & (new < high)))
    assert np.mean(inside) > 0.7  # with one setting, no interval contained any of them


def test_two_rows_have_wide_error_bars():
    X, y = np.asarray([[0.0], [10.0]]), np.asarray([[3.2], [7.7]])
    with pytest.warns(NoSignalWarning, match="two rows cannot tell whether the inputs predict the targets"):
        model = fit_regression(X, y).model
    assert np.sqrt(float(model.predict(np.asarray([[50.0]]), observed=True).variance[0, 0])) > 3.0


def test_noise_is_said_and_the_mean_predicted():
    rng = np.random.default_rng(5)
    X, y = rng.standard_normal((60, 3)), 4.0 + rng.standard_normal((60, 1))
    for how in ("auto", "mode"):
        with pytest.warns(NoSignalWarning, match="held back are predicted no better than by the mean of the targets"):
            found = fit_regression(X, y, hyperparameters=how)
        assert not found.learned
        assert np.all(np.abs(found.model.predict(X).mean - y.mean()) < 0.3)


def test_named_kernel_is_never_dropped():
    rng = np.random.default_rng(5)
    X, y = rng.standard_normal((60, 3)), 4.0 + rng.standard_normal((60, 1))
    for how in ("mode", "mixture"):
        with pytest.warns(NoSignalWarning, match="held back are predicted no better"):
            model = fit_regression(X, y, kernel=Matern52(), hyperparameters=how).model
        assert isinstance(model, GPR if how == "mode" else GPRMixture)
        assert isinstance(model.kernel, Matern52)
        assert model.X.shape == X.shape


def test_what_is_integrated_over():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((120, 2))
    y = np.sin(2.0 * X[:, :1]) + 0.1 * rng.standard_normal((120, 1))
    small = fit_regression(X[:50], y[:50])
    assert isinstance(small.model, GPRMixture)
    assert [one.kernel for one in small.candidates] == ["matern52 + linear", "constant"]
    assert [stage.name for stage in small.stages] == ["integrate"]
    assert "averaged over" in small.message
    larger = fit_regression(X, y)
    assert [one.kernel for one in larger.candidates] == ["matern52 + linear", "rbf + linear", "constant"]
    assert larger.kernel in ("matern52 + linear", "rbf + linear")
    assert isinstance(fit_regression(X[:50], y[:50], hyperparameters="mode").model, GPR)
    assert isinstance(fit_regression(X[:50], y[:50], max_seconds=1.9).model, GPR)
    named = fit_regression(X[:50], y[:50], kernel=RBF(), priors={"kernel.lengthscale": agp.priors.Gamma(2.0, 1.0)})
    assert isinstance(named.model.kernel, RBF)
    many = np.concatenate([X[:50]] * 20, axis=1)
    assert isinstance(fit_regression(many, y[:50]).model, GPR)


def test_many_columns_of_zeros_and_ones_share_a_factor():
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 25, 60)
    X = np.concatenate([np.eye(25)[codes], rng.standard_normal((60, 2))], axis=1)
    y = 0.3 * rng.standard_normal((25, 1))[codes] + np.sin(2.0 * X[:, -1:]) + 0.1 * rng.standard_normal((60, 1))
    model = fit_regression(X, y).model
    assert isinstance(model, GPRMixture)
    scales = model.settings[0].kernel.parts[0].lengthscale
    ratios = scales / scales[:1]
    np.testing.assert_allclose(ratios[:, :25], np.broadcast_to(ratios[:, :1], (len(ratios), 25)), rtol=1e-9)
    assert not np.allclose(ratios[:, 25], ratios[:, 0])


@pytest.mark.parametrize("pattern", ["kernel.lengthscale", "kernel.*lengthscale"])
def test_priors_of_the_user_replace_the_weak_ones(pattern):
    rng = np.random.default_rng(0)
    X = rng.uniform(-2.0, 2.0, (20, 1))
    y = np.sin(2.0 * X) + 0.1 * rng.standard_normal((20, 1))
    model = fit_regression(X, y, priors={pattern: agp.priors.LogNormal(np.log(3.0), 0.01)}).model
    np.testing.assert_allclose(model.settings[0].kernel.parts[0].lengthscale, 3.0, rtol=0.1)
    with pytest.raises(ValueError, match=r"no parameter matches 'kernel\..*lengthscales'"):
        fit_regression(X, y, priors={"kernel.lengthscales": agp.priors.LogNormal(0.0, 1.0)})


def test_weights_are_repetitions():
    rng = np.random.default_rng(1)
    X = rng.uniform(-2.0, 2.0, (25, 1))
    y = curve(X) + 0.2 * rng.standard_normal(X.shape)
    counts = rng.integers(1, 4, 25)
    targets = np.repeat(y, counts, axis=0) + 0.2 * rng.standard_normal((counts.sum(), 1))
    ends = np.cumsum(counts)
    means = np.stack([part.mean(axis=0) for part in np.split(targets, ends[:-1])])
    whole = fit_regression(np.repeat(X, counts, axis=0), targets).model.predict(GRID).mean
    merged = fit_regression(X, means, weights=counts / counts.mean()).model.predict(GRID).mean
    assert np.sqrt(np.mean((whole - merged) ** 2)) < 0.1


def test_checkpoint_gives_the_same_numbers(tmp_path):
    rng = np.random.default_rng(2)
    X = rng.uniform(-2.0, 2.0, (30, 2))
    y = curve(X[:, :1]) + 0.1 * rng.standard_normal((30, 1))
    path = tmp_path / "c.safetensors"
    first, again = (fit_regression(X, y, checkpoint=path).model.predict(X) for _ in range(2))
    np.testing.assert_array_equal(first.mean, again.mean)
    with pytest.raises(ValueError, match="hyperparameters"):
        fit_regression(X, y, checkpoint=path, hyperparameters="mode")


def test_wrong_choices():
    X, y = np.zeros((4, 1)) + np.arange(4.0)[:, None], np.arange(4.0)[:, None]
    with pytest.raises(ValueError, match="hyperparameters is 'best', but must be 'auto', 'mode' or 'mixture'"):
        fit_regression(X, y, hyperparameters="best")
    with pytest.raises(ValueError, match="the method 'sgpr' uses one setting"):
        fit_regression(X, y, hyperparameters="mixture", method="sgpr")
    many = np.linspace(0.0, 1.0, 1001)[:, None]
    with pytest.raises(ValueError, match="at most 1,000 rows in memory, not 1,001 rows"):
        fit_regression(many, many, hyperparameters="mixture")


def test_baseline_of_left_out_rows_is_student_t():
    from scipy import stats

    y = np.random.default_rng(0).standard_normal((7, 1))
    logs = []
    for n in range(7):
        rest = np.delete(y[:, 0], n)
        logs.append(stats.t.logpdf(y[n, 0], 5, rest.mean(), rest.std(ddof=1) * np.sqrt(1.0 + 1.0 / 6.0)))
    assert np.isclose(left_out_baseline(Data(None, y)), np.mean(logs))
    assert left_out_baseline(Data(None, y[:2])) == np.inf
    assert predicts_left_out(np.mean(logs) + 0.3, Data(y, y))
    assert not predicts_left_out(np.mean(logs) + 0.28, Data(y, y))


def test_permutations_stop_at_the_first_larger_evidence():
    tried = []

    def train(y):
        tried.append(y)
        return float(y[0, 0])

    y = np.arange(20.0)[:, None]
    assert not beats_permutations(train, y, 0)
    assert 2 <= len(tried) <= 4
    assert beats_permutations(lambda values: float(np.array_equal(values, y)), y, 0)
