"""What the mathematics may use: the standard and nothing else; and what inverse-free methods may never use."""

import ast
import functools
import importlib
import importlib.util
import inspect
import pkgutil
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import scipy.linalg
from helpers import JAX, NUMPY, STRICT, TORCH, Place, assert_close, named, problem, toy_data, with_leaves
from solvers import Forbidden

import agp
from agp import tree
from agp.backend import known_backends, to_numpy
from agp.errors import NotPositiveDefiniteError
from agp.gradient import GradientMode, value_and_gradient
from agp.inducing import kmeans
from agp.kernels import RBF
from agp.likelihoods import (
    Bernoulli,
    Beta,
    Exponential,
    Gamma,
    Gaussian,
    LatentNoiseGaussian,
    NegativeBinomial,
    Ordinal,
    Poisson,
    RobustMax,
    Softmax,
    StudentT,
)
from agp.models import GPR, SOLVEGP, SVGP, DeepGP
from agp.posteriors import (
    DualInverseFree,
    FullSiteRelaxed,
    InverseFree,
    Relaxed,
    RelaxedOrthogonal,
    RelaxedUnion,
    Whitened,
)
from agp.training import train

PACKAGE = Path(agp.__file__).parent
PACKAGES = (
    "actions",
    "kernels",
    "likelihoods",
    "inducing",
    "posteriors",
    "processes",
    "bounds",
    "updates",
    "linalg",
    "models",
)
ON_THE_HOST = ("_choose.py", "_greedy.py", "_rows.py")
"""What chooses inducing inputs among the rows of the data, on the host."""
FILES = sorted(path for package in PACKAGES for path in (PACKAGE / package).glob("*.py"))
MODULES = [path for path in FILES if path.parent.name != "inducing" or path.name not in ON_THE_HOST]


def _imports(source: ast.AST) -> set[str]:
    """The dotted names of everything that a module imports, at its top and inside functions."""
    found = set()
    for node in ast.walk(source):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return found


# -- the source -------------------------------------------------------------------------------------------------------


def test_all_packages_are_there():
    assert all((PACKAGE / package / "__init__.py").exists() for package in PACKAGES)
    assert len(MODULES) > 20


@pytest.mark.slow
def test_mathematics_names_no_array_library():
    allowed = {
        "agp",
        "math",
        "abc",
        "collections",
        "contextlib",
        "contextvars",
        "dataclasses",
        "fnmatch",
        "functools",
        "inspect",
        "itertools",
        "numbers",
    }
    allowed |= {"typing", "warnings", "weakref", "itertools", "enum", "operator"}
    allowed |= {"difflib", "re", "textwrap"}  # for the documentation of constructors
    for path in MODULES:
        assert {name.split(".")[0] for name in _imports(ast.parse(path.read_text()))} <= allowed, path


@pytest.mark.slow
def test_mathematics_asks_for_no_backend_by_name():
    names = {status.name for status in known_backends()} | {"jax", "cupy"}
    for path in MODULES:
        nodes = [*ast.walk(ast.parse(path.read_text()))]
        docstrings = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
        text = [n for n in nodes if isinstance(n, ast.Constant) and id(n) not in docstrings]
        assert not [n.value for n in text if isinstance(n.value, str) and n.value in names], path
        called = [n for n in nodes if isinstance(n, ast.Name) and n.id in ("get_backend", "known_backends")]
        assert not called, path


@pytest.mark.slow
def test_mathematics_asks_for_no_name_of_a_backend():
    for path in MODULES:
        nodes = ast.walk(ast.parse(path.read_text()))
        compared = [side for n in nodes if isinstance(n, ast.Compare) for side in _sides(n)]
        assert not [side for side in compared if isinstance(side, ast.Attribute) and side.attr == "name"], path


def _sides(node: ast.Compare) -> list[ast.expr]:
    return [node.left, *node.comparators]


# -- public names -----------------------------------------------------------------------------------------------------


def _public_modules() -> list[str]:
    found = [info.name for info in pkgutil.walk_packages(agp.__path__, "agp.")]
    return ["agp", *(name for name in found if not any(part.startswith("_") for part in name.split(".")))]


def _defined(source: ast.Module, is_package: bool) -> set[str]:
    functions = (ast.FunctionDef, ast.ClassDef)
    names = {n.name for n in source.body if isinstance(n, functions)}
    aliases = [n for n in source.body if isinstance(n, ast.AnnAssign) and "TypeAlias" in ast.unparse(n.annotation)]
    names |= {n.target.id for n in aliases if isinstance(n.target, ast.Name)}
    if is_package:
        own = [n for n in source.body if isinstance(n, ast.ImportFrom) and (n.module or "").startswith("agp")]
        names |= {a.asname or a.name for n in own for a in n.names}
    return {name for name in names if not name.startswith("_")}


ROOT = PACKAGE.parent
FOR_PACKAGES = "\n# for other subpackages\n"
"""What a package hands on below this line, other packages alone need; what stands above it is public."""


@functools.cache
def _uses() -> dict[Path, tuple[set[str], str]]:
    """The dotted names that each file imports of the library, and its text."""
    files = [path for folder in ("agp", "backends", "tests") for path in (ROOT / folder).rglob("*.py")]
    files += (ROOT / "asv_benchmarks" / "break_even_parts").glob("*.py")  # measures internal functions
    return {path: (_imports(ast.parse(text := path.read_text(encoding="utf-8"))), text) for path in files}


STORED = {
    *("DiagonalState", "DualInverses", "InverseFreeFactor", "LikelihoodFactor", "NaturalState", "OrthogonalState"),
    *("RelaxedFactor", "RelaxedGroupsFactor", "ExactFactor", "DatumSitesFactor", "IterativeFactor", "ProjectedFactor"),
    *("NearFactor", "SettingsFactor"),
}
"""The classes in files of predictors, which `agp.io` finds by name in `agp.posteriors` and `agp.processes`."""


def _is_used(package: str, name: str) -> bool:
    """Whether anything outside of the package asks for a name of it."""
    outside = [found for path, found in _uses().items() if path.relative_to(ROOT).parts[:2] not in _own(package)]
    dotted = f"{package.rpartition('.')[2]}.{name}"
    return any(f"{package}.{name}" in imports or dotted in text for imports, text in outside)


def _own(package: str) -> set[tuple[str, ...]]:
    folder, _, name = package.partition(".")
    return {(folder, name), (folder, f"{name}.py")}


def _imported(name: str) -> ModuleType:
    if name.startswith("agp.interop."):
        library = name.rpartition(".")[2]
        pytest.importorskip(library, reason=f"{library} is not installed: not executed")
    return importlib.import_module(name)


@pytest.mark.slow
@pytest.mark.sample(5)
@pytest.mark.parametrize("name", [name for name in _public_modules() if name != "agp"])
def test_what_a_package_defines_is_public_or_needed_by_another(name):
    module = _imported(name)
    assert module.__file__ is not None
    path = Path(module.__file__)
    above, _, below = path.read_text(encoding="utf-8").partition(FOR_PACKAGES)
    is_package = path.name == "__init__.py"
    shown, handed_on = (_defined(ast.parse(text), is_package) for text in (above, below))
    public = vars(module).get("__all__", [])
    assert len(set(public)) == len(public)
    assert all(hasattr(module, each) for each in public)
    assert not handed_on & set(public)
    if is_package and public:
        assert sorted(shown - {*public}) == []
    others = sorted((shown | handed_on) - {*public, *STORED})
    assert [each for each in others if not _is_used(name, each)] == []


@pytest.mark.parametrize("name", _public_modules())
def test_everything_public_has_a_docstring(name):
    module = _imported(name)
    assert module.__doc__
    missing = []
    for public in vars(module).get("__all__", []):
        value = getattr(module, public)
        if inspect.isfunction(value) or inspect.isclass(value):
            missing += _undocumented(public, value)
    assert not missing


def _undocumented(name: str, value) -> list[str]:
    text = inspect.getdoc(value)
    missing = [] if text and not text.startswith(f"{name}(") else [name]
    if inspect.isclass(value):
        own = [(n, m) for n, m in vars(value).items() if not n.startswith("_") and inspect.isroutine(m)]
        missing += [f"{name}.{n}" for n, _ in own if not inspect.getdoc(getattr(value, n))]
    return missing


# -- array-api-strict, on a device that is not the default ------------------------------------------------------------


def _strict(**flags):
    import array_api_strict

    return array_api_strict.ArrayAPIStrictFlags(**flags)


MODELS = {
    "relaxed": lambda X, y: SVGP.from_data(X, y, posterior=Relaxed, num_inducing=8),
    "whitened": lambda X, y: SVGP.from_data(X, y, posterior=Whitened, num_inducing=8),
    "bernoulli": lambda X, y: SVGP.from_data(X, 1.0 * _sign(y), likelihood=Bernoulli(), num_inducing=8),
    "exact": lambda X, y: GPR.from_data(X, y),
    "solve": lambda X, y: SOLVEGP.from_data(X, y, num_inducing=5, num_orthogonal=3),
    "solve-relaxed": lambda X, y: SOLVEGP.from_data(X, y, posterior=RelaxedOrthogonal, num_inducing=5),
}


def _sign(y):
    B = agp.backend_of(y)
    return B.xp.astype(y > 0.0, y.dtype)


def _data(place, dtype="float64", outputs=2):
    X, y = toy_data(outputs=outputs)
    return place.array(X, dtype), place.array(y, dtype)


def _train_and_predict(kind, X, y, steps=5):
    model = MODELS[kind](X, y)
    targets = _sign(y) if kind == "bernoulli" else y
    batch_size = None if kind == "exact" else 10
    result = train(model, X, targets, steps=steps, batch_size=batch_size)
    return result.model, result.trace


@pytest.mark.slow
@pytest.mark.parametrize("kind", MODELS)
def test_training_and_prediction_under_strict(kind, backend):
    X, y = _data(backend)
    model, trace = _train_and_predict(kind, X, y)
    Xs = X[:4, :]
    outputs = [*model.predict(Xs), *model.predict(Xs, observed=True), model.predict_mean(Xs)]
    for leaf in tree.describe(model):
        backend.check(leaf.value)
    for x in outputs:
        assert backend.numpy(x).shape == (4, 2)
        assert np.isfinite(to_numpy(x)).all()
    assert backend.numpy(model.predict_covariance(Xs)).shape == (2, 4, 4)
    targets = _sign(y) if kind == "bernoulli" else y
    assert backend.numpy(model.log_density(Xs, targets[:4, :])).shape == (4,)
    assert len(trace["bound"]) == 5
    host_model, host_trace = _train_and_predict(kind, *_data(NUMPY))
    np.testing.assert_allclose(trace["bound"], host_trace["bound"], rtol=1e-9)
    for name, value in named(host_model).items():
        assert_close(to_numpy(named(model)[name]), value, 1e-8, name)


@pytest.mark.parametrize("posterior", ["whitened", "relaxed"])
@pytest.mark.parametrize("likelihood", ["gaussian", "bernoulli", "bernoulli-squash"])
@pytest.mark.usefixtures("stale_factors")
def test_no_shape_depends_on_data(posterior, likelihood):
    # what a compiler must be able to trace: no masks as indices, no shapes from values
    model, X, y = problem("sum-ard", posterior, likelihood, outputs=2)
    here, X, y = STRICT.move(model), STRICT.array(X), STRICT.array(y)
    with _strict(boolean_indexing=False, data_dependent_shapes=False):
        value, gradient = value_and_gradient(here, X, y)
        prediction = here.predict(X)
    for x in (value, *gradient.values(), *prediction):
        STRICT.check(x)


@pytest.mark.slow
@pytest.mark.parametrize("kind", MODELS)
def test_whole_runs_with_no_shape_that_depends_on_data(kind):
    with _strict(boolean_indexing=False, data_dependent_shapes=False):
        model, trace = _train_and_predict(kind, *_data(STRICT))
    assert np.isfinite(trace["bound"]).all()
    STRICT.check(named(model)["kernel.variance"])


@pytest.mark.slow
@pytest.mark.parametrize("kind", MODELS)
def test_float32_on_a_device_without_float64(kind):
    place = Place("array_api_strict", "no_float64")
    X, y = _data(place, "float32")
    model, trace = _train_and_predict(kind, X, y)
    for leaf in tree.describe(model):
        place.check(leaf.value, "float32")
    for x in (*model.predict(X), model.predict_mean(X), model.predict_covariance(X[:3, :])):
        assert np.isfinite(place.numpy(x, "float32")).all()
    _, expected = _train_and_predict(kind, *_data(NUMPY))
    # five steps in single precision, from a jitter of 1e-4 rather than 1e-6
    np.testing.assert_allclose(trace["bound"], expected["bound"], rtol=3e-2)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_inducing_inputs_are_put_where_the_data_are(dtype, backend):
    X, _ = _data(backend, dtype)
    Z = kmeans(X, 6, seed=1)
    assert backend.numpy(Z, dtype).shape == (6, 2)
    assert_close(to_numpy(Z), kmeans(toy_data()[0], 6, seed=1), 1e-5)


# -- inverse-free means it --------------------------------------------------------------------------------------------

INVERSE_FREE = {
    "relaxed": Relaxed,
    "relaxed-root": functools.partial(Relaxed.from_prior, preconditioned="root"),
    "relaxed-full-site": FullSiteRelaxed,
    "inverse-free": InverseFree,
    "dual": DualInverseFree,
    "relaxed-orthogonal": RelaxedOrthogonal,
    "relaxed-union": RelaxedUnion,
}
ANY_LIKELIHOOD = {
    "student-t": (StudentT(), lambda y: y),
    "poisson": (Poisson(), lambda y: np.rint(np.exp(y))),
    "gamma": (Gamma(), lambda y: np.exp(y)),
    "exponential": (Exponential(), lambda y: np.exp(y)),
    "negative-binomial": (NegativeBinomial(), lambda y: np.rint(np.exp(y))),
    "beta": (Beta(), lambda y: 1.0 / (1.0 + np.exp(-y))),
    "ordinal": (Ordinal(3), lambda y: np.clip(np.rint(y + 1.0), 0.0, 2.0)),
    "latent-noise": (LatentNoiseGaussian(), lambda y: y),
    "softmax": (Softmax(3), lambda y: np.clip(np.rint(y[:, :1] + 1.0), 0.0, 2.0)),
    "robustmax": (RobustMax(3), lambda y: np.clip(np.rint(y[:, :1] + 1.0), 0.0, 2.0)),
    "known-noise": (Gaussian(), lambda y: y),
    "exposed": (Poisson(), lambda y: np.rint(np.exp(y))),
}
KNOWN = {"known-noise": ("weights", "noise"), "exposed": ("weights", "offset")}
"""What is known of the rows, by the name of the likelihood."""


def _run_without_solvers(place, model, X, y, mode: GradientMode = "closed-form", **known):
    """Train with the recipe and predict all there is to predict."""
    updates = agp.recipe(model, 12, rate=0.05, gradient=mode)
    result = train(model, X, y, steps=12, batch_size=10, updates=updates, **known)
    model = result.model
    known.pop("weights", None)
    outputs = [*model.predict(X), *model.predict(X, observed=True, **known), model.predict_mean(X)]
    outputs += [model.log_density(X, y, **known), *([] if isinstance(model, DeepGP) else [model.predict_covariance(X)])]
    for x in outputs:
        assert np.isfinite(place.numpy(x)).all()
    assert max(result.trace["inverse_steps"]) > 0
    assert max(result.trace["residual"]) < 5e-3


def _run_relaxed(place, forbid, likelihood=None, mode: GradientMode = "closed-form", posterior=Relaxed):
    """Lengthscales are chosen from the data by factorisations on the host; from then on there is none."""
    X, y = _data(place)
    targets = y if likelihood is None else _sign(y)
    model = SVGP.from_data(X, targets, posterior=posterior, likelihood=likelihood, num_inducing=8)
    forbid()
    _run_without_solvers(place, model, X, targets, mode)


@pytest.mark.slow
@pytest.mark.sample(2)
@pytest.mark.parametrize("posterior", INVERSE_FREE.values(), ids=INVERSE_FREE)
@pytest.mark.parametrize("likelihood", [None, Bernoulli()], ids=["gaussian", "bernoulli"])
def test_inverse_free_methods_run_where_every_solver_raises(likelihood, posterior, backend, forbid_solvers):
    _run_relaxed(backend, forbid_solvers, likelihood, posterior=posterior)


@pytest.mark.slow
@pytest.mark.sample(3)
@pytest.mark.parametrize("posterior", INVERSE_FREE.values(), ids=INVERSE_FREE)
def test_with_given_lengthscales_inverse_free_methods_start_where_every_solver_raises(posterior, backend, no_solvers):
    X, y = _data(backend)
    settings: dict = {"posterior": posterior, "num_inducing": 8}
    model = SVGP.from_data(X, y, kernel=RBF(lengthscale=1.0), **settings)
    _run_without_solvers(backend, model, X, y)
    with pytest.raises(Forbidden):  # the choice of missing ones is outside the promise
        SVGP.from_data(X, y, **settings)


LAYERS = {
    "relaxed": (Relaxed, Relaxed),
    "inverse-free": (InverseFree, InverseFree),
    "relaxed-orthogonal": (RelaxedOrthogonal, RelaxedOrthogonal),
    "mixed": (InverseFree, RelaxedOrthogonal, Relaxed),
}


@pytest.mark.long
@pytest.mark.parametrize("posterior", LAYERS.values(), ids=LAYERS)
def test_deep_models_run_where_every_solver_raises(posterior, available, no_solvers):
    for place in (NUMPY, TORCH, STRICT):
        X, y = _data(available(place))
        model = DeepGP.from_data(X, y, posterior=posterior, layers=len(posterior), num_inducing=8)
        _run_without_solvers(place, model, X, y)


def test_deep_models_run_on_jax_where_every_solver_raises(available, no_solvers):
    X, y = _data(available(JAX))
    model = DeepGP.from_data(X, y, posterior=(InverseFree, Relaxed), layers=2, num_inducing=8)
    _run_without_solvers(JAX, model, X, y, "autodiff")


def test_deep_layers_that_factorise_need_a_solver(no_solvers):
    X, y = _data(NUMPY)
    with pytest.raises(Forbidden):
        DeepGP.from_data(X, y, posterior=(Relaxed, Whitened), num_inducing=8).bound(X, y)


@pytest.mark.slow
@pytest.mark.parametrize("posterior", INVERSE_FREE.values(), ids=INVERSE_FREE)
@pytest.mark.parametrize("likelihood", ANY_LIKELIHOOD)
def test_inverse_free_methods_run_with_any_likelihood_where_every_solver_raises(likelihood, posterior, forbid_solvers):
    X, y = _data(NUMPY)
    instance, targets = ANY_LIKELIHOOD[likelihood]
    known = dict.fromkeys(KNOWN.get(likelihood, ()), 0.1 + X[:, 0] ** 2)
    model = SVGP.from_data(X, targets(y), posterior=posterior, likelihood=instance, num_inducing=8, **known)
    forbid_solvers()
    _run_without_solvers(NUMPY, model, X, targets(y), **known)


@pytest.mark.slow
@pytest.mark.parametrize("posterior", INVERSE_FREE.values(), ids=INVERSE_FREE)
@pytest.mark.parametrize("place", [TORCH, JAX], ids=["torch", "jax"])
def test_inverse_free_autodiff_runs_where_every_solver_raises(place, posterior, forbid_solvers):
    pytest.importorskip(place.name, reason=f"{place.name} is not installed: not executed")
    _run_relaxed(place, forbid_solvers, mode="autodiff", posterior=posterior)


@pytest.mark.slow
@pytest.mark.sample(1)
@pytest.mark.parametrize("posterior", INVERSE_FREE.values(), ids=INVERSE_FREE)
@pytest.mark.parametrize("likelihood", [None, Bernoulli()], ids=["gaussian", "bernoulli"])
def test_inverse_free_methods_run_without_the_linear_algebra_extension(likelihood, posterior):
    with _strict(enabled_extensions=()):
        _run_relaxed(STRICT, lambda: None, likelihood, posterior=posterior)


def test_whitened_needs_a_solver(backend, forbid_solvers):
    X, y = _data(backend)
    model = SVGP.from_data(X, y, posterior=Whitened, num_inducing=8)
    forbid_solvers()
    with pytest.raises(Forbidden):
        model.bound(X, y)
    with pytest.raises(Forbidden):
        model.predict(X)


def test_whitened_needs_the_linear_algebra_extension():
    X, y = _data(STRICT)
    model = SVGP.from_data(X, y, posterior=Whitened, num_inducing=8)
    with _strict(enabled_extensions=()), pytest.raises((AttributeError, RuntimeError)):
        model.bound(X, y)


def test_solvers_do_raise(no_solvers):
    with pytest.raises(Forbidden):
        scipy.linalg.solve_triangular(np.eye(2), np.eye(2))
    with pytest.raises(Forbidden):
        np.linalg.inv(np.eye(2))
    for library in filter(importlib.util.find_spec, ("torch", "jax")):
        name = "jax.numpy" if library == "jax" else library
        with pytest.raises(Forbidden):
            importlib.import_module(name).linalg.cholesky(None)


# -- one answer to failure --------------------------------------------------------------------------------------------


def test_a_covariance_of_nan_is_one_error_everywhere(backend):
    X, y = _data(backend)
    model = SVGP.from_data(X, y, posterior=Whitened, num_inducing=8)
    broken = with_leaves(model, {"kernel.variance": backend.array(np.nan)})
    with pytest.raises(NotPositiveDefiniteError, match="NaN or infinite entries"):
        broken.bound(X, y)
