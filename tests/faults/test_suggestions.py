"""Unknown names are answered by similar names, and wrong calls by the arguments of the function: in one sentence."""

import copy
import inspect
import pickle
import warnings

import numpy as np
import pytest

import agp
from agp.errors import check_call, count_of, join_words, name_remedy, similar_names, there_are, unknown_name_message

RNG = np.random.default_rng(0)
X = RNG.normal(size=(20, 2))
Y = np.sin(X[:, 0])
MODEL = agp.GPR.from_data(X, Y, kernel=agp.RBF(1.0, 1.0))
K = agp.kernels


def answer(call, error):
    """The message of the error that a call raises, which is one sentence."""
    with pytest.raises(error) as caught:
        call()
    said = str(caught.value)
    assert type(caught.value) is error
    assert "\n" not in said
    return said


# -- unknown names ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "known", "similar"),
    [
        ("rbff", ["rbf", "linear"], ["rbf"]),
        ("RBF", ["rbf", "rbff"], ["rbf"]),
        ("yeo_Johnson", ["log", "yeo-johnson"], ["yeo-johnson"]),
        ("Sound Level", ["sound_level", "sound"], ["sound_level"]),
        ("matern", ["matern12", "matern32", "linear"], ["matern32", "matern12"]),
        ("lengthscales", ["lengthscale", "lengthscale_unit"], ["lengthscale"]),
        ("parts.0.width", ["parts.0.lengthscale", "parts.0.variance"], []),
        ("cubic", ["rbf", "linear"], []),
        ("1", [0, 1], [1]),
        (1, ["0", "1"], ["1"]),
        (2, ["0", "1"], []),
        (None, ["none"], []),
    ],
)
def test_similar_names_are_found(given, known, similar):
    assert similar_names(given, known) == similar


def test_many_names_are_not_all_listed():
    said = name_remedy("x", [f"column{i}" for i in range(40)], "its columns are")
    assert said.startswith("its columns are column0, column1,")
    assert said.endswith("column29, ...")
    assert unknown_name_message("kernel", "rbff", ["rbf"]) == "unknown kernel 'rbff'; did you mean 'rbf'?"
    assert unknown_name_message("kernel", "cubic", ["rbf"]) == "unknown kernel 'cubic'; choose from rbf."


NAMES = {
    "attribute": (lambda: agp.GPRegresor, AttributeError, "did you mean 'GPRegressor'?"),
    "subpackage": (lambda: agp.estimatros, AttributeError, "did you mean 'estimators'?"),
    "no such attribute": (lambda: agp.zzzzz, AttributeError, "module 'agp' has no attribute 'zzzzz'."),
    "backend": (lambda: agp.to_backend(X, "nunpy"), agp.errors.BackendError, "did you mean 'numpy'?"),
    "backends": (lambda: agp.get_backend(["numpy"]), agp.errors.BackendError, "unknown backend ['numpy']; choose"),
    "posterior": (lambda: agp.SVGP.from_data(X, Y, posterior="whitend"), ValueError, "did you mean 'Whitened'?"),
    "inducing": (lambda: agp.SVGP.from_data(X, Y, inducing="kmean"), ValueError, "did you mean 'kmeans'?"),
    "loss": (lambda: agp.CaGP.from_data(X, Y, loss="projcted"), ValueError, "did you mean 'projected'?"),
    "method": (lambda: agp.fit_regression(X, Y, method="sgprr"), ValueError, "did you mean 'sgpr'?"),
    "leaf": (lambda: agp.recipe(MODEL, 5, frozen="lengthscal"), ValueError, "did you mean 'lengthscale'?"),
    "leaves": (lambda: agp.flatten(MODEL, frozen="kernal.*"), ValueError, "did you mean 'kernel.*'?"),
    "summary": (lambda: agp.summary(MODEL, frozen="noise_varianc"), ValueError, "did you mean 'noise_variance'?"),
    "prior": (
        lambda: agp.GPR.from_data(X, Y, priors={"kernel.lenghtscale": agp.priors.Gamma(2.0, 1.0)}),
        ValueError,
        "did you mean 'kernel.lengthscale'?",
    ),
    "name of a kernel": (lambda: agp.GPR.from_data(X, Y, kernel="rbf"), TypeError, "; write RBF()"),
    "name of a likelihood": (lambda: agp.GPR.from_data(X, Y, likelihood="gausian"), TypeError, "write Gaussian()"),
}  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_unknown_names_are_answered_by_similar_ones(name):
    call, error, says = NAMES[name]
    assert says in answer(call, error)


def test_tools_find_no_private_names():
    assert not hasattr(agp, "__wrapped__")
    with pytest.raises(AttributeError, match="no attribute '__wrapped__'$"):
        agp.__wrapped__  # noqa: B018


# -- kernels as text --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("rbff", "unknown kernel 'rbff'; did you mean 'rbf'?"),
        ("white + liner*rbf", "unknown kernel 'liner' in 'white + liner*rbf'; did you mean 'linear'?"),
        ("sesonal(365)", "unknown kernel 'sesonal' in 'sesonal(365)'; did you mean 'seasonal'?"),
        ("κ", "unknown kernel 'κ'; choose from auto, rbf,"),
        ("", "is an empty text; write the name of a kernel"),
        ("  ", "is an empty text; write the name of a kernel"),
        ("rbf+", "ends with '+'; write the name of a kernel"),
        ("+rbf", "has '+' at its beginning, where a kernel should be; leave it out"),
        ("rbf**", "has '*' after '*', where a kernel should be"),
        ("2*rbf", "has the number 2 where a kernel should be; leave the number out, because variances are learned"),
        ("rbf(1.2.3)", "has '1.2.3' in parentheses after 'rbf'; write one positive number there, the lengthscale"),
        ("rbf(-1)", "has '-1' in parentheses after 'rbf'; write one positive number"),
        ("rbf(", "has nothing in parentheses after 'rbf', which are not closed; write one positive number"),
        ("seasonal(a)", "has 'a' in parentheses after 'seasonal'; write one positive number there, the period"),
        ("linear(3)", "has the number 3 after 'linear'; leave out the parentheses, because only rbf,"),
        ("(rbf+linear)*white", "has parentheses around kernels; write out the products"),
        ("rbf linear", "has 'linear' after 'rbf'; join kernels by + or *"),
        ("rbf-linear", "has '-linear' after 'rbf'; join kernels by + or *"),
        ("rbf × linear", "has '× linear' after 'rbf'; join kernels by + or *"),
        ("rbf.of(0)", "has '.of(0)' after 'rbf'; columns are written as in 'rbf.on(width, height)'"),
        ("auto + rbf", "combines 'auto' with other kernels; write 'auto' alone"),
    ],
)
def test_the_wrong_part_of_a_text_is_named(text, says):
    assert says in answer(lambda: K.kernel_or_auto(text), ValueError)


@pytest.mark.parametrize("given", [3, None, agp.RBF, ["rbf"]])
def test_what_is_no_kernel_is_refused(given):
    assert "but must be 'auto', a text such as 'rbf*linear', or an" in answer(
        lambda: K.kernel_or_auto(given), TypeError
    )


COMBINED = {
    "warped": (lambda: K.Warped("rbf"), "kernel is 'rbf', but must be an instance of agp's Kernel; write RBF()"),
    "on the sphere": (lambda: K.OnSphere(agp.RBF), "kernel is the class RBF, but must be an instance"),
    "of a class": (lambda: K.ActiveDims(agp.RBF, (0,)), "kernel is the class RBF, but must be an instance"),
    "scaled": (lambda: K.Scaled(2.0, "matern32"), "kernel is 'matern32', but must be .*; write Matern32()"),
    "sum": (lambda: K.Sum(("rbf",)), "parts[0] is 'rbf', but must be an instance"),
    "list": (lambda: K.Product([agp.RBF()]), "but must be a tuple of kernels"),
    "plus a class": (lambda: agp.RBF() + agp.Linear, "the other term of a sum is the class Linear, but"),
    "plus a text": (lambda: agp.RBF() + "linear", "a sum is 'linear', but must be .*; write Linear()"),
    "plus a number": (lambda: agp.RBF() + 1.0, "of a sum is 1.0, but must be a kernel; write Constant(1.0)"),
    "times a class": (lambda: agp.RBF() * agp.Linear, "the other factor of a product is the class Linear"),
    "column": (lambda: agp.RBF().on(0.5), "a column is 0.5, but must be a whole number or a name"),
    "on a class": (lambda: agp.RBF.from_data(X, 1.0), "on a class, but needs an instance; write RBF().from"),
    "likelihood": (lambda: agp.StudentT.from_data(1.0), "needs an instance; write Gaussian().from_data(variance)."),
    "mean": (lambda: agp.ConstantMean.from_data(X, 0.0, 1.0), "needs an instance; write ConstantMean()"),
}  # fmt: skip


@pytest.mark.parametrize("name", COMBINED)
def test_parts_that_are_names_or_classes_are_refused_at_once(name):
    call, says = COMBINED[name]
    said = answer(call, TypeError)
    assert all(part in said for part in says.split(" .*; "))


def test_other_operands_decide_for_themselves():
    class Other:
        def __radd__(self, kernel):
            return "added"

    assert agp.RBF() + Other() == "added"
    with pytest.raises(TypeError, match="unsupported operand"):
        agp.RBF() + object()


# -- wrong calls ------------------------------------------------------------------------------------------------------

CALLS = {
    "fit": (lambda: agp.fit(MODEL, X, Y, max_step=3), "fit() has no argument 'max_step'; did you mean 'max_steps'?"),
    "no data": (lambda: agp.fit(MODEL), "fit() needs X and y; write fit(model, X, y)."),
    "nothing": (lambda: agp.fit(), "fit() needs model, X and y; write fit(model, X, y)."),
    "too many": (lambda: agp.fit(MODEL, X, Y, 3), "by position (model, X and y), but got 4; pass"),
    "by name": (lambda: agp.fit(MODEL, X=X, y=Y), "fit() takes X by position; write fit(model, X, y)."),
    "method": (lambda: MODEL.predict(X, observe=True), "GPR.predict() has no argument 'observe'; did you mean 'obs"),
    "no inputs": (lambda: MODEL.predict(), "GPR.predict() needs X; write GPR.predict(X)."),
    "by position": (lambda: MODEL.predict(X, True), "takes at most 1 argument by position (X), but got 2"),
    "no targets": (lambda: agp.GPR.from_data(X), "GPR.from_data() needs y; write GPR.from_data(X, y)."),
    "from data": (lambda: agp.SVGP.from_data(X, Y, num_inducin=3), "has no argument 'num_inducin'; did you mean"),
    "kernel": (lambda: agp.RBF(lengthscales=2), "RBF() has no argument 'lengthscales'; did you mean 'lengthscale'?"),
    "likelihood": (lambda: agp.Gaussian(varience=1.0), "Gaussian() has no argument 'varience'; did you mean"),
    "unlike": (lambda: agp.RBF(foo=2), "RBF() has no argument 'foo'; its arguments are variance, lengthscale,"),
    "classes": (lambda: agp.Ordinal(), "Ordinal() needs classes; write Ordinal(classes)."),
    "model": (lambda: agp.GPR(X, Y), "GPR() needs X and y; GPR.from_data(X, y) builds one."),
    "regression": (lambda: agp.fit_regression(X), "fit_regression() needs y; write fit_regression(X, y)."),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_wrong_calls_name_the_argument(name):
    call, says = CALLS[name]
    assert answer(call, TypeError).startswith(says) or says in answer(call, TypeError)


@pytest.mark.parametrize(
    "function",
    [
        *(getattr(agp.metrics, name) for name in agp.metrics.__all__ if name != "Reliability"),
        *(agp.fit, agp.fit_growing, agp.load, agp.recipe, agp.save, agp.summary, agp.train, agp.value_and_gradient),
        agp.selection.select_kernel,
        agp.inspection.partial_dependence,
        agp.inspection.permutation_importance,
        agp.inspection.kernel_relevance,
    ],
    ids=lambda function: function.__name__,
)
def test_public_functions_name_arguments_that_they_lack(function):
    if any(one.kind is one.VAR_KEYWORD for one in inspect.signature(function).parameters.values()):
        return
    said = answer(lambda: function(no_such_name=3), TypeError)
    assert said.startswith(f"{function.__name__}() has no argument 'no_such_name'; ")


def test_all_kinds_of_wrong_calls_are_told():
    def f(a, /, b, *, c, d=1):
        return a, b, c, d

    signature = inspect.signature(f)
    check_call("f", signature, (1, 2), {"c": 3})
    for args, kwargs, says in (
        ((1, 2), {"c": 3, "b": 4}, "f() has the argument 'b' both by position and by name; leave one out."),
        ((1,), {}, "f() needs b and c; write f(a, b, c=...)."),
        (
            (1, 2, 3),
            {"c": 3},
            "f() takes at most 2 arguments by position (a and b), but got 3; pass the others by name, such as c.",
        ),
        ((1, 2), {"a": 1, "c": 3}, "f() takes a by position; write f(a, b, c=...)."),
    ):
        assert answer(lambda a=args, k=kwargs: check_call("f", signature, a, k), TypeError) == says
    nothing = inspect.signature(lambda: None)
    assert "takes no argument by position" in answer(lambda: check_call("g", nothing, (1,), {}), TypeError)
    assert "it takes no arguments by name" in answer(lambda: check_call("g", nothing, (), {"x": 1}), TypeError)


def test_errors_within_a_call_stay_what_they_are():
    with pytest.raises(TypeError, match="X is a list, not an array"):
        agp.GPR.from_data(X.tolist(), Y)


def test_signatures_and_copies_of_decorated_classes_stay():
    pytest.importorskip("sklearn")
    assert list(inspect.signature(agp.RBF).parameters)[:2] == ["variance", "lengthscale"]
    assert "kernel" in inspect.signature(agp.GPRegressor).parameters
    again = pickle.loads(pickle.dumps(copy.deepcopy(agp.GPRegressor(kernel="rbf"))))
    assert again.kernel == "rbf"


# -- estimators -------------------------------------------------------------------------------------------------------


def estimators():
    pytest.importorskip("sklearn")
    return agp.GPRegressor, agp.GPClassifier


@pytest.mark.parametrize(
    ("parameters", "says"),
    [
        ({"kernal": "rbf"}, "GPRegressor() has no argument 'kernal'; did you mean 'kernel'?"),
        ({"max_step": 3}, "GPRegressor() has no argument 'max_step'; did you mean 'max_steps'?"),
        ({"foo": 3}, "GPRegressor() has no argument 'foo'; its arguments are method, kernel,"),
    ],
)
def test_unknown_parameters_are_told(parameters, says):
    GPRegressor, _ = estimators()
    assert answer(lambda: GPRegressor(**parameters), TypeError).startswith(says)
    assert answer(lambda: GPRegressor("rbf"), TypeError).startswith("GPRegressor() takes no argument by position")
    assert answer(lambda: GPRegressor().fit(X), TypeError) == "GPRegressor.fit() needs y; write GPRegressor.fit(X, y)."


@pytest.mark.parametrize(
    ("parameters", "says"),
    [
        ({"kernal": "rbf"}, "Invalid parameter 'kernal' for GPRegressor; did you mean 'kernel'?"),
        ({"kernal__lengthscale": 2.0}, "Invalid parameter 'kernal' for GPRegressor; did you mean 'kernel'?"),
        ({"foo": 3}, "Invalid parameter 'foo' for GPRegressor; its parameters are backend, batch_size,"),
        ({"kernel__lengthscale": 2.0}, "Invalid parameter 'kernel__lengthscale': kernel is 'auto', which has no"),
    ],
)
def test_unknown_names_in_set_params_are_told(parameters, says):
    GPRegressor, _ = estimators()
    model = GPRegressor()
    assert answer(lambda: model.set_params(**parameters), ValueError).startswith(says)
    assert model.set_params(kernel="rbf") is model
    assert model.kernel == "rbf"


OF_SVGP = "the methods of SVGP are msvgp, wsvgp, lsvgp, rsvgp, asvgp and qsvgp."


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"likelihood": "gausian"}, "likelihood is 'gausian'; did you mean 'gaussian'?"),
        ({"missing": "imput"}, "missing is 'imput', but must be 'refuse' or 'impute'; did you mean 'impute'?"),
        ({"target_transform": "yeo_johnson"}, "target_transform is 'yeo_johnson'; did you mean 'yeo-johnson'?"),
        ({"method": "sgpp"}, "unknown method 'sgpp'; did you mean 'sgpr'"),
        ({"method": "svgp"}, f"unknown method 'svgp'; {OF_SVGP}"),
        ({"method": "SVGP"}, f"unknown method 'SVGP'; {OF_SVGP}"),
        ({"method": "Deep-GP"}, "unknown method 'Deep-GP'; the methods of DeepGP are deep-msvgp, deep-wsvgp, "),
        ({"method": "CaGP"}, "unknown method 'CaGP'; the methods of CaGP are cagp-opt and cagp-cg."),
        ({"method": "SOLVEGPR"}, "unknown method 'SOLVEGPR'; the method of SOLVEGPR is solve-collapsed."),
        ({"method": "GPR"}, "unknown method 'GPR'; did you mean 'gpr'?"),
        ({"outputs": "seperate"}, "unknown outputs 'seperate'; did you mean 'separate'?"),
    ],
)
def test_unknown_values_of_parameters_are_told(given, says):
    GPRegressor, _ = estimators()
    assert answer(lambda: GPRegressor(**given).fit(X, Y), ValueError).startswith(says)


def test_methods_of_a_class_are_told_everywhere(capsys):
    pytest.importorskip("pandas")
    from agp.cli import main
    from agp.methods import build

    _, GPClassifier = estimators()
    says = answer(lambda: GPClassifier(method="svgp").fit(X, Y > 0.0), ValueError)
    assert says == f"unknown method 'svgp'; {OF_SVGP}"
    with pytest.raises(ValueError, match=OF_SVGP):
        build("svgp", X, Y, likelihood=agp.Gaussian(), kernel="rbf")
    for call in (["fit", "t.csv", "--target", "y", "--out", "m"], ["compare", "t.csv", "--target", "y"]):
        with pytest.raises(SystemExit):
            main([*call, "--method", "svgp"])
        assert f"argument --method: unknown method 'svgp'; {OF_SVGP}"[:-1] in capsys.readouterr().err


def test_columns_of_tables_are_suggested():
    GPRegressor, _ = estimators()
    pd = pytest.importorskip("pandas")
    table = pd.DataFrame({"age": X[:, 0], "width": X[:, 1]})
    for parameters in ({"keep": ["agee"]}, {"noise_by": "agee"}, {"kernel": agp.RBF().on(("agee",))}):
        assert "did you mean 'age'?" in answer(lambda p=parameters: GPRegressor(**p).fit(table, Y), ValueError)


@pytest.mark.parametrize("level", [1, 0, 95, -0.5, "a", None, float("nan"), True, np.asarray([0.5])])
def test_levels_are_named_as_the_user_gave_them(level):
    GPRegressor, _ = estimators()
    said = f"level is {level!r}, but must be more than 0 and less than 1; write 95 % as 0.95."
    assert answer(lambda: MODEL.predictor().interval(X, level), ValueError) == said
    model = GPRegressor(method="gpr", kernel="rbf", max_steps=1)
    with pytest.warns(agp.errors.ConvergenceWarning):
        model.fit(X, Y)
    assert answer(lambda: model.predict_interval(X, level), ValueError) == said
    assert "level is [0.5], but must be one probability" in answer(lambda: model.predict_interval(X, [0.5]), TypeError)
    for quantiles in ("a", 0.5, None):
        said = f"quantiles is {quantiles!r}, but must be a tuple of probabilities, such as (0.05, 0.95)."
        assert answer(lambda q=quantiles: model.predict_quantiles(X, q), TypeError) == said
    np.testing.assert_array_equal(model.predict_interval(X, np.asarray(0.5)), model.predict_interval(X, 0.5))


@pytest.mark.parametrize(("labels", "label"), [(np.full(20, x), x) for x in (7, -1, 2.0, "True")])
def test_labels_that_boolean_classes_lack_are_refused(labels, label):
    _, GPClassifier = estimators()
    model = GPClassifier().partial_fit(X, X[:, 0] > 0.0)
    said = f"y has the label {label!r} in row 0, but the classes are False, True; correct it, or give all labels to"
    assert answer(lambda: model.partial_fit(X, labels), ValueError).startswith(said)
    assert answer(lambda: model.log_density(X, labels), ValueError).startswith(said)
    for same in ((X[:, 0] > 0.0).astype(int), (X[:, 0] > 0.0).astype(float)):
        model.partial_fit(X, same)
    assert "classes is 3, but must be a list" in answer(lambda: GPClassifier().partial_fit(X, labels, 3), TypeError)


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        ((None, Y), TypeError, "X is None, but must be a data frame or an array with rows and columns."),
        (("abc", Y), TypeError, "X is 'abc', but must be a data frame or an array"),
        ((X[:, 0], Y), ValueError, "X has shape (20,), but must have rows and columns. Reshape"),
        ((X, "abc"), TypeError, "y is 'abc', but must be an array or a list with one entry for each row of X."),
        ((X, 3), TypeError, "y is 3, but must be an array"),
        ((X, Y[:3]), ValueError, "X has 20 rows, but y has 3; pass one entry for each row."),
        ((X, Y, 1.0), TypeError, "sample_weight is 1.0, but must be an array"),
        ((X, Y, Y[:3] ** 2), ValueError, "X has 20 rows, but sample_weight has 3; pass one"),
    ],
)  # fmt: skip
def test_rows_that_are_none_are_refused(arguments, error, says):
    GPRegressor, _ = estimators()
    assert answer(lambda: GPRegressor().fit(*arguments), error).startswith(says)


def test_names_of_columns_are_of_one_type():
    GPRegressor, _ = estimators()
    pd = pytest.importorskip("pandas")
    for names, says in (
        (["a", 0], "X has columns named 'a' and 0, of different types; write X.columns = X.columns.astype(str)."),
        ([b"a", "b"], "X has columns named 'b' and b'a', of different types"),
        ([None, "b"], "X has a column without a name ("),
        ([None, float("nan")], "X has a column without a name ("),
    ):
        table = pd.DataFrame(dict(zip(names, X.T, strict=True)))
        assert answer(lambda t=table: GPRegressor().fit(t, Y), TypeError).startswith(says)


@pytest.mark.parametrize(
    ("names", "given", "says"),
    [
        ([2000, 2001], [2000, "2001s"], "X has no column 2001, with which the model was trained; add it."),
        (
            ["width", "age"],
            ["width", "ages"],
            "X has no column 'age', with which the model was trained; rename 'ages' ",
        ),
        (["width", "age"], ["width", None], "X has no column 'age', with which the model was trained; add it."),
    ],
)
def test_columns_that_are_renamed_are_told(names, given, says):
    GPRegressor, _ = estimators()
    pd = pytest.importorskip("pandas")
    model = GPRegressor(method="gpr", kernel="rbf", max_steps=1)
    with pytest.warns(agp.errors.ConvergenceWarning):
        model.fit(pd.DataFrame(dict(zip(names, X.T, strict=True))), Y)
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        model.predict(pd.DataFrame(dict(zip(given, X.T, strict=True))))
    assert str(caught.value).startswith(says)


# -- parts of Python numbers, and results -----------------------------------------------------------------------------


def test_models_of_numbers_are_models_of_arrays():
    parts = {"kernel": agp.RBF(variance=1.0, lengthscale=[2.0, 1.0]), "likelihood": agp.Gaussian(0.1)}
    parts["mean_function"] = agp.ConstantMean(0.0)
    one, two = agp.GPR(**parts, X=X, y=Y[:, None]), agp.GPR.from_data(X, Y, **parts)
    np.testing.assert_allclose(one.predict(X).mean, two.predict(X).mean)
    agp.train(one, X, Y, steps=2)
    assert isinstance(one.kernel.variance, np.ndarray)
    assert "X is a list, not an array" in answer(lambda: agp.GPR(**parts, X=X.tolist(), y=Y.tolist()), TypeError)
    assert "kernel is the class RBF" in answer(lambda: agp.GPR(agp.RBF, agp.Gaussian(0.1), X=X, y=Y), TypeError)


def test_likelihoods_of_numbers_predict():
    mu, var = np.zeros((3, 1)), np.ones((3, 1))
    np.testing.assert_allclose(agp.Gaussian(0.5).predict(mu, var).variance, 1.5)
    np.testing.assert_allclose(agp.Ordinal(3, edges=[-1.0, 1.0]).predict(mu, var).mean, 1.0)
    for likelihood in (agp.Ordinal(3), agp.Gaussian(), agp.StudentT()):
        said = answer(lambda one=likelihood: one.predict(mu, var), TypeError)
        assert "give numbers when you construct it, or call likelihood.from_data(variance)" in said


def test_weights_of_an_ensemble_may_be_a_tuple():
    several = agp.Ensemble((MODEL, MODEL), (0.5, 0.5))
    np.testing.assert_allclose(several.predict(X).mean, MODEL.predict(X).mean)
    assert several.weights.shape == (2,)


def test_columns_name_the_entries_of_a_list():
    for lengthscale in ([1.0, 20.0], (1.0, 20.0), np.asarray([1.0, 20.0])):
        said = agp.summary(agp.RBF(1.0, lengthscale), columns=("age", "height"))
        assert "age: 1 " in said
        assert "height: 20" in said
    assert "columns is 'age', but must be a list" in answer(lambda: agp.summary(MODEL, columns="age"), TypeError)


def test_results_are_short():
    results = (agp.train(MODEL, X, Y, steps=200), agp.fit_lbfgs(MODEL, X, Y), agp.fit(MODEL, X, Y))
    for result in results:
        assert len(repr(result)) < 800
        assert repr(result).startswith(f"{type(result).__name__}(model=GPR(kernel=RBF(")
    assert "trace={'bound': [200 entries]" in repr(results[0])


def test_fit_classification_chooses_the_likelihood():
    inputs = RNG.normal(size=(80, 2))
    labels = (inputs[:, 0] > 0.0) * 1.0
    two = agp.fit_classification(inputs, labels, kernel=agp.RBF()).model
    assert (type(two.likelihood), two.likelihood.link) == (agp.Bernoulli, "logit")
    three = agp.fit_classification(inputs, labels + (inputs[:, 0] > 1.0), kernel=agp.RBF()).model
    assert (type(three.likelihood), three.likelihood.classes) == (agp.Softmax, 3)
    assert "write Bernoulli()" in answer(
        lambda: agp.fit_classification(inputs, labels, likelihood="bernouli"), TypeError
    )


# -- scales -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", [agp.GPR, agp.SVGP, agp.CaGP])
@pytest.mark.parametrize(
    ("factor", "says"),
    [
        (1e300, "so its variance exceeds the maximum of float64; remove wrong values, or divide y by a constant."),
        (1e-200, "so its variance is below the smallest number of float64; multiply y by a constant."),
        (1e-310, "so its variance is below the smallest number of float64"),
    ],
)
def test_targets_without_a_variance_are_refused(model, factor, says):
    assert says in answer(lambda: model.from_data(X, factor * Y), ValueError)
    outlier = np.where(np.arange(20) == 3, 1e300, Y)
    assert "y has values up to 1e+300" in answer(lambda: model.from_data(X, outlier), ValueError)
    model.from_data(X, np.full(20, 1e-300))  # equal targets have no scale
    model.from_data(X, np.zeros(20))


def test_inputs_of_any_scale_have_lengthscales():
    expected = agp.RBF().from_data(X, 1.0).lengthscale
    for factor in (1e-300, 1e-200, 1e200, 1e300):
        np.testing.assert_allclose(agp.RBF().from_data(factor * X, 1.0).lengthscale, factor * expected, rtol=1e-12)
    said = answer(lambda: agp.Linear().from_data(np.stack([Y, 1e200 * Y], axis=1), 1.0), ValueError)
    assert said.startswith("column 1 of X has values whose squares exceed the maximum of float64; divide it by")


@pytest.mark.parametrize("kind", ["array", "table", "tensor"])
def test_inputs_beyond_the_precision_are_named(kind):
    estimators = pytest.importorskip("agp.estimators", reason="scikit-learn is not installed: not executed")
    convert = np.asarray
    if kind == "table":
        pandas = pytest.importorskip("pandas", reason="pandas is not installed: not executed")
        convert = lambda A: pandas.DataFrame(A, columns=["width", "mass"])  # noqa: E731
    elif kind == "tensor":
        convert = pytest.importorskip("torch", reason="torch is not installed: not executed").asarray
    wide = convert(np.where(np.arange(40).reshape(20, 2) == 7, -1e200, X))
    beyond = "in row 3, which is outside the range of float32; use another unit, or float64."
    expected = f"{'column ' + repr('mass') if kind == 'table' else 'column 1 of X'} has -1e+200 {beyond}"
    targets = Y + 0.3 * np.random.default_rng(1).normal(size=20)
    regressor, classifier = (cls(dtype="float32") for cls in (estimators.GPRegressor, estimators.GPClassifier))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert answer(lambda: regressor.fit(wide, Y), ValueError) == expected
        assert answer(lambda: classifier.fit(wide, Y > 0.0), ValueError) == expected
        regressor.fit(convert(X), targets)
        assert answer(lambda: regressor.predict(wide), ValueError) == expected
        if kind == "tensor":
            y = convert(np.where(np.arange(20) == 3, 1e200, Y))
            assert answer(lambda: regressor.fit(convert(X), y), ValueError) == f"y has 1e+200 {beyond}"


def test_projected_losses_are_for_fixed_actions():
    for options in ({}, {"num_actions": 3}, {"support": 10}):
        said = answer(lambda o=options: agp.CaGP.from_data(X, Y, loss="projected", **o), ValueError)
        assert said.startswith("loss is 'projected', but the actions are learned")
    agp.CaGP.from_data(X, Y, loss="projected", policy=agp.actions.ConjugateGradients(3))


# -- words ------------------------------------------------------------------------------------------------------------


def test_one_is_singular():
    assert [count_of(n, "row") for n in (0, 1, 2)] == ["0 rows", "1 row", "2 rows"]
    assert [count_of(2, noun) for noun in ("entry", "axis", "class")] == ["2 entries", "2 axes", "2 classes"]
    assert [there_are(n, "layer") for n in (1, 2)] == ["there is 1 layer", "there are 2 layers"]
    assert [join_words("abc"[:n]) for n in (1, 2, 3)] == ["a", "a and b", "a, b and c"]
    assert "X has 1 column, but" in answer(lambda: MODEL.predict(X[:, :1]), ValueError)
    assert "X has 1 row, but y has 20;" in answer(lambda: agp.GPR.from_data(X[:1], Y), ValueError)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: agp.GPR.from_data(X, Y, priors=3), "priors is 3, but must be a dictionary"),
        (lambda: agp.recipe(MODEL, None), "steps is None, but must be a whole number"),
        (lambda: agp.recipe(MODEL, 5, rate="a"), "rate is 'a', but must be a finite number above zero"),
        (lambda: agp.recipe(MODEL, 5, frozen=3), "a pattern of leaf names is 3, but must be text"),
        (lambda: agp.updates.Adam(groups=None), "groups is None, but must be a dictionary"),
        (lambda: agp.updates.SiteStep("a"), "the rate of a site step is 'a', but must be in (0, 1]"),
        (lambda: agp.train(MODEL, X, Y, steps=1, updates=3), "updates is 3, but must be a list of updates"),
        (lambda: agp.fit_regression(X, Y, categories=3), "categories is 3, but must be a list, such as [0]."),
        (lambda: agp.fit_regression(X, Y, times="a"), "times is 'a', but must be a list, such as [0]."),
        (lambda: agp.NNGP.from_data(X, Y, seed="a"), "seed is 'a', but must be a whole number of at least 0."),
        (lambda: agp.likelihoods.YeoJohnson("a"), "power is 'a', but must be from 0 to 2."),
        (lambda: agp.metrics.reliability(Y, Y, "a"), "bins is 'a', but must be a whole number of at least 1."),
        (lambda: agp.SVGP.from_data(X, Y, likelihood=agp.StudentT(points="a")), "points is 'a', but must be a whole"),
        (lambda: agp.SVGP.from_data(X, Y, jitter="a"), "jitter is 'a', but must be None or a finite number"),
        (lambda: agp.GPR.from_data(None, Y), "X is None, but must be an array"),
    ],
)
def test_values_of_wrong_types_are_told_by_name(call, says):
    with pytest.raises((TypeError, ValueError)) as caught:
        call()
    assert says in str(caught.value)
