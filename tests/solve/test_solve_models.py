"""SOLVE-GP from data: no second group, inputs that both groups share, what is refused, and units."""

import math
from functools import partial

import numpy as np
import pytest
from helpers import assert_close, inducing_inputs, named, process, toy_data, with_leaves

from agp import RBF, SGPR, SOLVEGP, SOLVEGPR, SVGP, to_backend, train, tree, value_and_gradient
from agp.posteriors import Marginal, PriorSpread, Relaxed, RelaxedOrthogonal, RelaxedUnion, Whitened
from agp.training import recipe
from agp.updates import Adam

FORMS = {
    "whitened": {},
    "marginal": {"posterior": Marginal},
    "odvgp": {"second": PriorSpread},
    "relaxed-orthogonal": {"posterior": RelaxedOrthogonal},
    "relaxed-union": {"posterior": RelaxedUnion},
}
COLLAPSED = {"optimal": {}, "free": {"second": Whitened}, "tight": {"tight": True}}
EMPTY = {
    "number": lambda X: {"num_inducing": 6, "num_orthogonal": 0},
    "array": lambda X: {"Z": X[:6, :], "O": X[:0, :]},
}

X, Y = toy_data()
Z, O = X[:5], X[5:8]  # noqa: E741


# -- no second group --------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(("posterior", "empty"), [(Whitened, "number"), (Marginal, "array")])
def test_an_empty_second_group_is_svgp(posterior, empty, backend):
    X, y = (backend.array(x) for x in toy_data(outputs=2))
    groups = EMPTY[empty](X)
    # a given variance: both outputs are as large as the kernel says
    model = SOLVEGP.from_data(X, y, posterior=posterior, kernel=RBF(1.0), **groups)
    ordinary = {"Z": groups["Z"]} if "Z" in groups else {"num_inducing": 6}
    expected = SVGP.from_data(X, y, posterior=posterior, kernel=RBF(1.0), **ordinary)
    updates = [Adam(0.01)]
    model, expected = (train(m, X, y, steps=4, batch_size=10, updates=updates).model for m in (model, expected))
    assert backend.numpy(inducing_inputs(model)).shape == (6, 2)
    for mine, theirs in [
        (model.bound(X, y)[0], expected.bound(X, y)[0]),
        *zip(model.predict(X), expected.predict(X), strict=True),
        (process(model).posterior.parts[0].mean, process(expected).posterior.mean),
        (process(model).posterior.parts[0].scale, process(expected).posterior.scale),
    ]:
        assert_close(backend.numpy(mine), backend.numpy(theirs), 1e-9)


@pytest.mark.parametrize("empty", EMPTY.values(), ids=EMPTY)
@pytest.mark.parametrize("second", [None, Whitened, PriorSpread])
def test_an_empty_second_group_is_sgpr(second, empty):
    X, y = toy_data(outputs=2)
    groups = empty(X)
    model = SOLVEGPR.from_data(X, y, second=second, **groups)
    expected = SGPR.from_data(X, y, **({"Z": groups["Z"]} if "Z" in groups else {"num_inducing": 6}))
    (value, gradient), (other, theirs) = (value_and_gradient(m, X, y) for m in (model, expected))
    assert float(value) == pytest.approx(float(other), rel=1e-10)
    assert gradient.keys() == theirs.keys()
    for name, x in theirs.items():
        assert_close(gradient[name], x, 1e-8, name)
    for x, z in zip(model.predict(X), expected.predict(X), strict=True):
        assert_close(x, z, 1e-8)


@pytest.mark.parametrize("posterior", [RelaxedOrthogonal, RelaxedUnion])
def test_inverse_free_forms_refuse_an_empty_second_group(posterior):
    with pytest.raises(ValueError, match=r"needs 2 groups .* for one group, use Relaxed"):
        SOLVEGP.from_data(*toy_data(), posterior=posterior, num_inducing=6, num_orthogonal=0)


# -- shared inputs ----------------------------------------------------------------------------------------------------


def shared(X, all_of_them):
    """Z and O with inputs in common: one, or all."""
    return {"Z": X[:6, :], "O": X[:6, :] if all_of_them else X[5:10, :]}


@pytest.mark.parametrize("form", FORMS)
def test_groups_that_share_all_inputs_stay_finite(form, backend):
    X, y = (backend.array(x) for x in toy_data())
    model = SOLVEGP.from_data(X, y, **shared(X, True), **FORMS[form])
    value, gradient = value_and_gradient(model, X, y)
    for x in (value, *gradient.values(), *model.predict(X)):
        assert np.isfinite(backend.numpy(x)).all()


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("all_of_them", [False, True], ids=["one", "all"])
@pytest.mark.parametrize("form", FORMS)
def test_groups_that_share_inputs_train(form, all_of_them, dtype):
    X, y = (x.astype(dtype) for x in toy_data())
    model = SOLVEGP.from_data(X, y, **shared(X, all_of_them), **FORMS[form])
    before = float(model.bound(X, y)[0])
    result = train(model, X, y, steps=6, batch_size=15, updates=recipe(model, 6, rate=0.05))
    values = [*result.model.predict(X), result.model.predict_covariance(X[:4, :]), *named(result.model).values()]
    for x in values:
        assert np.isfinite(x).all()
    assert not result.repairs
    if form != "marginal":  # whose steps are in units of f, where what is left over is of the order of the jitter
        assert float(result.model.bound(X, y)[0]) > before


@pytest.mark.parametrize("settings", COLLAPSED.values(), ids=COLLAPSED)
def test_collapsed_groups_that_share_all_inputs_stay_finite(settings, backend):
    X, y = (backend.array(x) for x in toy_data())
    model = SOLVEGPR.from_data(X, y, **shared(X, True), **settings)
    value, gradient = value_and_gradient(model, X, y)
    for x in (value, *gradient.values(), *model.predict(X)):
        assert np.isfinite(backend.numpy(x)).all()


def test_a_second_group_that_repeats_the_first_adds_nothing():
    together, alone = SOLVEGPR.from_data(X, Y, Z=Z, O=Z), SGPR.from_data(X, Y, Z=Z)
    assert float(together.bound(X, Y)[0]) == pytest.approx(float(alone.bound(X, Y)[0]), rel=1e-4)


# -- bad input --------------------------------------------------------------------------------------------------------

REFUSED = {
    "O alone": ({"O": O}, ValueError, "O is given without Z"),
    "Z alone": ({"Z": Z}, ValueError, "Z is given without O"),
    "columns of O": ({"Z": Z, "O": O[:, :1]}, ValueError, r"O has shape \(3, 1\), and Z has \(5, 2\)"),
    "columns of an empty O": ({"Z": Z, "O": np.zeros((0, 3))}, ValueError, r"O has shape \(0, 3\), and Z has \(5, 2\)"),
    "columns of both": ({"Z": Z[:, :1], "O": O[:, :1]}, ValueError, "Z has 1 column, but X has 2 columns"),
    "a vector O": ({"Z": Z, "O": O[:, 0]}, ValueError, r"O has shape \(3,\)"),
    "an empty Z": ({"Z": Z[:0], "O": O}, ValueError, r"Z has shape \(0, 2\), but must not be empty"),
    "NaN in O": ({"Z": Z, "O": math.nan * O}, ValueError, "O has 6 NaN or infinite entries"),
    "precision of O": ({"Z": Z, "O": O.astype(np.float32)}, TypeError, "O has dtype float32, X has float64"),
    "a list": ({"Z": Z, "O": O.tolist()}, TypeError, "O is a list, not an array of a known library"),
    "more than rows": ({"num_inducing": 20, "num_orthogonal": 11}, ValueError, "is 31, but there are only 30 rows"),
    "more given than rows": ({"Z": X, "O": O}, ValueError, "Z has 33 rows, but X has 30"),
    "no first group": ({"num_inducing": 0}, ValueError, "num_inducing is 0, but must be a whole number of at least 1"),
    "less than none": ({"num_orthogonal": -1}, ValueError, "num_orthogonal is -1, but must be a whole number of at "),
    "a second of another kind": ({"second": Relaxed}, TypeError, "second is Relaxed, but must be a posterior class"),
    "a second that is no class": ({"second": 3}, TypeError, "second is 3, but must be a posterior class for a single"),
}
REFUSED_POSTERIORS = {
    "not for groups": ({"posterior": Relaxed}, TypeError, "posterior is Relaxed, but must be a posterior class"),
    "no class": ({"posterior": 3}, TypeError, "posterior is 3, but must be a class"),
    "no name": ({"posterior": "whitend"}, ValueError, "unknown posterior 'whitend'; did you mean 'Whitened'"),
    "a second beside both": ({"posterior": RelaxedUnion, "second": Whitened}, ValueError, "is for both groups"),
}


@pytest.mark.parametrize("build", [SOLVEGP.from_data, SOLVEGPR.from_data], ids=["solve", "collapsed"])
@pytest.mark.parametrize("case", REFUSED.values(), ids=REFUSED)
def test_bad_groups_are_one_clear_error(case, build):
    options, error, message = case
    with pytest.raises(error, match=message):
        build(X, Y, **options)


@pytest.mark.parametrize("case", REFUSED_POSTERIORS.values(), ids=REFUSED_POSTERIORS)
def test_posteriors_that_are_not_for_groups_are_one_clear_error(case):
    options, error, message = case
    with pytest.raises(error, match=message):
        SOLVEGP.from_data(X, Y, **({"num_inducing": 4} | options))


def test_groups_in_another_library_are_one_clear_error():
    pytest.importorskip("torch")
    with pytest.raises(TypeError, match="O is a torch array, but X is a numpy array"):
        SOLVEGP.from_data(X, Y, Z=Z, O=to_backend(O, "torch"))


def test_names_stand_for_classes():
    model = SOLVEGP.from_data(X, Y, posterior="marginal", second="prior-spread", num_inducing=4)
    assert [type(part) for part in process(model).posterior.parts] == [Marginal, PriorSpread]
    assert isinstance(SOLVEGPR.from_data(X, Y, second="Whitened", num_inducing=4).second, Whitened)


def test_a_function_may_start_q():
    start = partial(RelaxedUnion.from_prior, preconditioned=False)
    model = SOLVEGP.from_data(X, Y, posterior=start, num_inducing=5, num_orthogonal=2)
    assert (process(model).posterior.sizes, process(model).posterior.preconditioned) == ((5, 2), False)
    assert [len(group) for group in model.groups] == [5, 2]


# -- training ---------------------------------------------------------------------------------------------------------


def raw_leaves_differ(build):
    """By how much at most raw leaves change with the units of the targets."""
    here, there = (tree.unconstrain(build(c * Y)) for c in (1.0, 7e3))
    assert here.keys() == there.keys()
    return max(np.max(np.abs(here[name] - there[name]), initial=0.0) for name in here)


@pytest.mark.parametrize("form", FORMS)
def test_raw_leaves_have_no_dimension(form):
    assert raw_leaves_differ(lambda y: SOLVEGP.from_data(X, y, num_inducing=5, **FORMS[form])) < 1e-9


def test_the_raw_leaves_of_a_free_second_group_have_no_dimension():
    assert raw_leaves_differ(lambda y: SOLVEGPR.from_data(X, y, second=Marginal, num_inducing=5)) < 1e-9


def test_the_plain_mean_of_an_inverse_free_form_has_the_inverse_unit():
    start = partial(RelaxedOrthogonal.from_prior, preconditioned=False)
    posterior = process(SOLVEGP.from_data(X, 7.0 * Y / Y.std(), posterior=start, num_inducing=5)).posterior
    assert float(posterior.mean_unit) == pytest.approx(1.0 / 7.0)
    assert float(posterior.site_unit) == pytest.approx(49.0)


@pytest.mark.long
@pytest.mark.parametrize("form", FORMS)
def test_every_form_comes_close_to_the_collapsed_bound(form):
    options = FORMS[form] | {"num_inducing": 6, "num_orthogonal": 4}
    model = SOLVEGP.from_data(X, Y, **options)
    fitted = train(model, X, Y, steps=400, updates=recipe(model, 400, rate=0.05)).model
    collapsed = SOLVEGPR.from_data(X, Y, num_inducing=6, num_orthogonal=4)
    leaves = named(collapsed)
    best = with_leaves(collapsed, {name: x for name, x in named(fitted).items() if name in leaves})
    assert float(fitted.bound(X, Y)[0]) > float(best.bound(X, Y)[0]) - 0.2 * len(X)
