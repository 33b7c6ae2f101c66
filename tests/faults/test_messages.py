"""What a new user gets wrong, and what agp answers: the culprit, its value and the remedy, in one sentence."""

import re
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from helpers import as_arrays

import agp
from agp import metrics
from agp.cli import main
from agp.errors import DISTRIBUTION, BackendError, NotPositiveDefiniteError
from agp.kernels import Kernel
from agp.likelihoods import Bernoulli, Beta, NegativeBinomial, Ordinal, RobustMax, StudentT
from agp.updates import Adam, InverseUpdate

RNG = np.random.default_rng(0)
X = RNG.normal(size=(20, 2))
Y = np.sin(X[:, :1]) + 0.1 * RNG.normal(size=(20, 1))


def built(**options):
    return agp.SVGP.from_data(X, Y, **({"num_inducing": 4, "posterior": "whitened"} | options))


def foreign(module, name):
    """An object of a class of that name and module, of a library that need not be installed."""
    return type(name, (), {"__module__": module})()


@agp.tree.model
class Upright(Kernel):
    """A kernel whose author left the pullbacks for later."""

    variance: agp.backend.Array = agp.tree.param(agp.tree.POSITIVE, default=None)

    def __call__(self, X, Z=None, /):
        B = agp.backend_of(X)
        r2 = B.xp.sum((X[:, None, :] - (X if Z is None else Z)[None, :, :]) ** 2, axis=-1)
        return self.variance * B.xp.exp(-0.5 * r2), None

    def diag(self, X, /):
        return self.variance * agp.backend_of(X).xp.ones_like(X[:, 0]), None

    def from_data(self, X, variance, /):
        return agp.tree.with_defaults(self, variance=variance)

    def check(self, width, /):
        """There is nothing to check."""


@agp.tree.model
class Negative(Kernel):
    """A kernel with the wrong sign."""

    def __call__(self, X, Z=None, /):
        K, pull = agp.RBF(1.0, 1.0)(X) if Z is None else agp.RBF(1.0, 1.0)(X, Z)
        return -K, lambda bar: (None, *pull(-bar)[1:])

    def diag(self, X, /):
        return -agp.backend_of(X).xp.ones_like(X[:, 0]), lambda _: (None, None)

    def from_data(self, X, variance, /):
        return self

    def check(self, width, /):
        """There is nothing to check."""


class Mistake(NamedTuple):
    """A call, the error, and what its message must contain."""

    call: Callable[[], object]
    error: type[BaseException]
    says: str


FRAME = foreign("pandas.core.frame", "DataFrame")

MISTAKES = {
    # -- data -----------------------------------------------------------------------------------------------------
    "data frame": Mistake(
        lambda: agp.SVGP.from_data(FRAME, Y), TypeError, "X is a pandas DataFrame, not .*or X.to_numpy(dtype=float)"
    ),
    "series as y": Mistake(
        lambda: agp.GPR.from_data(X, foreign("pandas", "Series")), TypeError, "y is a pandas Series.*y.to_numpy(dtype="
    ),
    "data frame to predict": Mistake(
        lambda: built().predict(FRAME), TypeError, "X is a pandas DataFrame, not .*or X.to_numpy(dtype=float)"
    ),
    "data frame to a gradient": Mistake(
        lambda: agp.value_and_gradient(built(), FRAME, Y), TypeError, "X is a pandas DataFrame, not"
    ),
    "data frame to move": Mistake(
        lambda: agp.to_backend(FRAME, "numpy"), TypeError, "x is a pandas DataFrame, not .*, or x.to_numpy("
    ),
    "polars frame": Mistake(
        lambda: agp.GPR.from_data(foreign("polars.dataframe.frame", "DataFrame"), Y),
        TypeError,
        "X is a polars DataFrame, not .*, or X.to_numpy().astype(float)",
    ),
    "list": Mistake(
        lambda: agp.GPR.from_data(X.tolist(), Y), TypeError, "X is a list, not .*; pass numpy.asarray(X, dtype=float)"
    ),
    "integers": Mistake(
        lambda: agp.GPR.from_data(X.astype(int), Y),
        TypeError,
        'X has dtype int64, but must be .*; pass X.astype("float64")',
    ),
    "booleans": Mistake(
        lambda: agp.GPR.from_data(X, Y[:, 0] > 0),
        TypeError,
        'y has dtype bool, but must be .*; pass y.astype("float64")',
    ),
    "another width": Mistake(
        lambda: built().predict(X[:, :1]), ValueError, "X has 1 column, but the model was built for 2"
    ),
    # -- parts ----------------------------------------------------------------------------------------------------
    "instance of a posterior": Mistake(
        lambda: built(posterior=agp.posteriors.Whitened()),
        TypeError,
        "Whitened() needs mean and scale; pass the class itself with posterior=Whitened",
    ),
    "constructor for from_data": Mistake(
        lambda: agp.SVGP(agp.RBF(), agp.Gaussian(), agp.posteriors.Whitened, X),
        TypeError,
        "SVGP() takes at most 3 arguments by position (process, likelihood and priors), but got 4; "
        "SVGP.from_data(X, y) builds one",
    ),
    "kernel for a process": Mistake(
        lambda: agp.SVGP(agp.RBF(), agp.Gaussian()), TypeError, "must be a process .*; build a process with from_data"
    ),
    "arguments of a kernel": Mistake(
        lambda: agp.RBF(1.0, 1.0, 1.0),
        TypeError,
        "RBF() takes at most 2 arguments by position (variance and lengthscale), but got 3; pass the others by name",
    ),
    "kernel without values": Mistake(
        lambda: agp.RBF()(X),
        TypeError,
        "RBF lacks values of variance and lengthscale; give numbers when you construct it, or call "
        "kernel.from_data(X, variance)",
    ),
    "kernel with one value": Mistake(
        lambda: agp.RBF(1.0)(X, X), TypeError, "RBF lacks values of lengthscale; give numbers"
    ),
    "diagonal without values": Mistake(
        lambda: (2.0 * agp.Matern32()).diag(X), TypeError, "Scaled lacks values of kernel.variance and"
    ),
    "mean without values": Mistake(lambda: agp.ConstantMean()(X), TypeError, "ConstantMean lacks values of value"),
    "no pullback": Mistake(
        lambda: agp.train(built(kernel=Upright()), X, Y, steps=1),
        TypeError,
        "Upright.__call__ returned no pullback, and numpy has no automatic differentiation; return a pullback, or "
        "convert the model and the data to an array library that has it",
    ),
    "negative variance": Mistake(
        lambda: agp.linalg.cholesky(-np.eye(3)),
        NotPositiveDefiniteError,
        "3 x 3 covariance matrix is not positive definite. The kernel returned a negative variance (-1)",
    ),
    "negative kernel": Mistake(
        lambda: agp.GPR.from_data(X, Y, kernel=Negative(), likelihood=agp.Gaussian(1e-3)).bound(X, Y),
        NotPositiveDefiniteError,
        "The kernel returned a negative variance (-0.999)",
    ),
    # -- training -------------------------------------------------------------------------------------------------
    "autodiff on NumPy": Mistake(
        lambda: agp.value_and_gradient(built(), X, Y, gradient="autodiff"),
        BackendError,
        "backend 'numpy' has no automatic differentiation; use gradient='closed-form'",
    ),
    "class to train": Mistake(
        lambda: agp.train(agp.SVGP, X, Y, steps=1),
        TypeError,
        "model is the class SVGP; build a model with SVGP",
    ),
    "class to fit": Mistake(lambda: agp.fit_lbfgs(agp.GPR, X, Y), TypeError, "build a model with GPR.from_data(X, y)"),
    "class to differentiate": Mistake(
        lambda: agp.value_and_gradient(agp.GPR, X, Y), TypeError, "model is the class GPR; build a model with"
    ),
    "class to a recipe": Mistake(
        lambda: agp.recipe(agp.GPR, 5), TypeError, "model is the class GPR; build a model with"
    ),
    "result to train": Mistake(
        lambda: agp.train(agp.train(built(), X, Y, steps=1), X, Y, steps=1),
        TypeError,
        "model has the class Result, which is not a model; pass its attribute .model",
    ),
    "kernel to train": Mistake(
        lambda: agp.train(agp.RBF(), X, Y, steps=1),
        TypeError,
        "model has the class RBF, which is not a model; build",
    ),
    "class for an update": Mistake(
        lambda: agp.train(built(), X, Y, steps=1, updates=[Adam(), InverseUpdate]),
        TypeError,
        "updates[1] is a class; write InverseUpdate()",
    ),
    "function for an update": Mistake(
        lambda: agp.train(built(), X, Y, steps=1, updates=[Adam(), print]),
        TypeError,
        "updates[1] is .*, which has no method `init`; pass an object with",
    ),
    "lambda for an update": Mistake(
        lambda: agp.train(built(), X, Y, steps=1, updates=[lambda model, batch, state: (model, state, {})]),
        TypeError,
        "updates[0] is .*, which has no method `init`; pass an object with",
    ),
    "function for an update of fit": Mistake(
        lambda: agp.fit(built(), X, Y, updates=[len]),
        TypeError,
        "updates[0] is .*, which has no method `init`; pass an object with",
    ),
    "frozen by no name": Mistake(
        lambda: agp.train(built(), X, Y, steps=1, updates=[Adam(frozen="kernels.*")]),
        ValueError,
        "no parameter matches 'kernels.*'; did you mean 'kernel.*'?",
    ),
    "part of q(u) frozen": Mistake(
        lambda: agp.recipe(built(posterior="marginal"), 5, frozen="posterior.mean")[0].init(
            built(posterior="marginal")
        ),
        ValueError,
        "process.posterior.mean is frozen, but .*; freeze both process.posterior.mean and .*, or neither of",
    ),
    # -- moving ---------------------------------------------------------------------------------------------------
    "misspelt dtype": Mistake(
        lambda: agp.to_backend(X, "numpy", dtype="flaot32"),
        ValueError,
        "dtype is 'flaot32', but must be 'float64' or 'float32'",
    ),
    "integer dtype": Mistake(
        lambda: agp.to_backend(X, "numpy", dtype=np.int64), ValueError, "but must be 'float64' or 'float32'"
    ),
    "no such device": Mistake(
        lambda: agp.to_backend(X, "numpy", device="cuda"), ValueError, "NumPy has no device 'cuda'; use 'cpu'"
    ),
}
MISTAKES |= {
    f"quadrature of {name}": Mistake(
        lambda likelihood=likelihood, y=y: agp.SVGP.from_data(X, y, likelihood=likelihood, num_inducing=4),
        ValueError,
        "points is 400, but Gauss-Hermite weights are finite only up to 370",
    )
    for name, likelihood, y in (
        ("StudentT", StudentT(points=400), Y),
        ("Bernoulli", Bernoulli(link="logit", points=400), (Y > 0) * 1.0),
        ("NegativeBinomial", NegativeBinomial(points=400), np.round(Y * Y)),
        ("Beta", Beta(points=400), 0.1 + 0.8 * (Y > 0)),
        ("Ordinal", Ordinal(3, points=400), (Y > 0) * 1.0),
        ("RobustMax", RobustMax(2, points=400), (Y > 0) * 1.0),
    )
}


def pattern(text):
    """A text in which ``.*`` is a pattern, and nothing else is."""
    return re.escape(text).replace(r"\.\*", ".*")


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_answered_by_its_remedy(name):
    call, error, says = MISTAKES[name]
    with pytest.raises(error, match=pattern(says)) as caught:
        call()
    assert type(caught.value) is error


# -- on torch ---------------------------------------------------------------------------------------------------------


def torch_mistakes(torch):
    Xt, yt = (agp.to_backend(x, "torch") for x in (X, Y))
    return {
        "integers": (lambda: agp.GPR.from_data(Xt.to(torch.int64), yt), TypeError, "pass X.to(torch.float64)"),
        "unknown device": (
            lambda: agp.to_backend(X, "torch", device="gpu"), ValueError, "torch has no device 'gpu' here; use one of"
        ),
    }  # fmt: skip


@pytest.mark.parametrize("name", ["integers", "unknown device"])
def test_a_mistake_on_torch_is_answered_by_its_remedy(name):
    call, error, says = torch_mistakes(pytest.importorskip("torch"))[name]
    with pytest.raises(error, match=pattern(says)):
        call()


def test_a_device_that_is_not_there_is_answered_by_those_that_are():
    torch = pytest.importorskip("torch")
    missing = f"cuda:{torch.cuda.device_count()}"
    with pytest.raises(ValueError, match=f"torch has no device '{missing}' here; use one of cpu"):
        agp.to_backend(X, "torch", device=missing)


# -- what is accepted -------------------------------------------------------------------------------------------------


def test_short_names_of_posteriors_are_accepted():
    assert type(built(posterior="whitened").process.posterior) is agp.posteriors.Whitened


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_a_kernel_of_numbers_is_evaluated_and_pulled(library):
    pytest.importorskip(library)
    here = agp.to_backend(X, library)
    given, placed = agp.RBF(2.0, [1.0, 0.5]), as_arrays(agp.RBF(2.0, [1.0, 0.5]))
    for call in (lambda k, X: k(X), lambda k, X: k(X, X), lambda k, X: k.diag(X)):
        (K, pull), (expected, pull_expected) = call(given, here), call(placed, X)
        np.testing.assert_allclose(agp.to_numpy(K), expected, rtol=1e-12)
        bar = pull(agp.to_backend(np.ones(expected.shape), library))[0]
        for name, value in agp.tree.leaves(pull_expected(np.ones(expected.shape))[0]).items():
            np.testing.assert_allclose(agp.to_numpy(agp.tree.leaves(bar)[name]), value, rtol=1e-10, atol=1e-12)


def test_a_kernel_without_pullbacks_trains_by_automatic_differentiation():
    pytest.importorskip("torch")
    Xt, yt = (agp.to_backend(x, "torch") for x in (X, Y))
    model = agp.SVGP.from_data(Xt, yt, kernel=Upright(), posterior="whitened", num_inducing=4)
    result = agp.train(model, Xt, yt, steps=3, updates=[Adam(gradient="autodiff")])
    assert not np.allclose(result.model.process.kernel.variance, model.process.kernel.variance)


def test_data_are_accepted_by_keyword():
    model = built()
    expected = agp.train(model, X, Y, steps=3).trace
    assert agp.train(model=model, X=X, y=Y, steps=3).trace == expected
    assert agp.train(model, X=X, y=Y, steps=3, updates=agp.recipe(model=model, steps=3)).trace == expected
    assert agp.fit_lbfgs(model=model, X=X, y=Y, max_iterations=2).steps == 2
    bound, _ = agp.value_and_gradient(model=model, X=X, y=Y, gradient="closed-form")
    assert float(bound) == expected["bound"][0]


FROZEN = ("kernel.*", ["kernel.*"], ("kernel.*",))


@pytest.mark.parametrize("frozen", FROZEN, ids=["text", "list", "tuple"])
def test_one_pattern_or_several_freeze_the_same(frozen):
    model = built()
    assert Adam(frozen=frozen) == Adam(frozen=("kernel.*",))
    for result in (
        agp.train(model, X, Y, steps=2, updates=[Adam(frozen=frozen)]),
        agp.train(model, X, Y, steps=2, updates=agp.recipe(model, 2, frozen=frozen)),
        agp.fit_lbfgs(model, X, Y, max_iterations=2, frozen=frozen),
    ):
        before, after = agp.tree.leaves(model), agp.tree.leaves(result.model)
        moved = {name for name in before if not np.array_equal(before[name], after[name])}
        assert "process.posterior.mean" in moved
        assert not {name for name in moved if ".kernel." in name}


def test_a_recipe_freezes_a_posterior_that_natural_gradients_would_move():
    model = built(posterior="marginal")
    result = agp.train(model, X, Y, steps=2, updates=agp.recipe(model, 2, frozen="posterior.*"))
    before, after = agp.tree.leaves(model), agp.tree.leaves(result.model)
    moved = {name for name in before if not np.array_equal(before[name], after[name])}
    assert "process.kernel.variance" in moved
    assert not {name for name in moved if ".posterior." in name}


@pytest.mark.parametrize("column", [0, np.int64(0), (0,)], ids=["int", "numpy", "tuple"])
def test_one_column_is_accepted(column):
    assert agp.RBF().on(column).columns == (0,)


@pytest.mark.parametrize("library", ["numpy", "torch", "array_api_strict", "jax"])
def test_scores_are_those_of_numpy_on_every_library(library):
    pytest.importorskip(library)
    if library == "jax":
        agp.get_backend("jax").enable_float64()
    mean, var, y, p = X[:, :1], np.full((20, 1), 0.5), Y, 1.0 / (1.0 + np.exp(-X[:, :1]))
    label = (Y > 0.0) * 1.0
    for score, arrays in (
        (metrics.rmse, (mean, y)),
        (metrics.nlpd, (mean[:, 0],)),
        (metrics.coverage, (mean, var, y)),
        (metrics.error_rate, (p, label)),
    ):
        assert score(*(agp.to_backend(x, library) for x in arrays)) == pytest.approx(score(*arrays), rel=1e-12)
    assert metrics.rmse([[1.0]], [[3.0]]) == 2.0


def test_dtypes_are_accepted_as_objects_of_any_library():
    torch = pytest.importorskip("torch")
    for dtype in ("float32", np.float32, np.dtype("float32"), torch.float32):
        for name in ("numpy", "torch"):
            assert str(agp.to_backend(X, name, dtype=dtype).dtype).endswith("float32")
    assert agp.to_backend(((1.0, 2.0), (3.0, 4.0)), "torch").shape == (2, 2)


def test_a_printed_model_shows_values_or_shapes_that_look_like_shapes():
    text = repr(agp.GPR.from_data(X, Y, kernel=agp.RBF(1.5, [1.0, 2.0])))
    assert "RBF(variance=1.5, lengthscale=[1, 2])" in text
    assert "X=float64[20, 2]" in text


# -- checkpoints ------------------------------------------------------------------------------------------------------


def test_a_checkpoint_of_other_precision_names_the_precision(tmp_path):
    path = tmp_path / "run.safetensors"
    agp.train(built(), X, Y, steps=2, checkpoint=path)
    Xs, ys = X.astype("float32"), Y.astype("float32")
    model = agp.SVGP.from_data(Xs, ys, num_inducing=4, posterior="whitened")
    with pytest.raises(ValueError, match="a run with dtype=float64, but this one has dtype=float32; name another file"):
        agp.train(model, Xs, ys, steps=2, checkpoint=path)


@pytest.mark.parametrize("content", [b"garbage", b"\x93NUMPY\x01\x00", b"PK\x03\x04" + bytes(40), b"\x80\x04K\x01."])
def test_no_file_is_answered_by_advice_to_allow_pickles(content, tmp_path):
    path = tmp_path / "run.safetensors"
    path.write_bytes(content)
    with pytest.raises(ValueError, match="is not a checkpoint of agp") as caught:
        agp.train(built(), X, Y, steps=2, checkpoint=path)
    assert "pickle" not in str(caught.value)


# -- extras -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def without(monkeypatch):
    """Make packages impossible to import, as if they were not installed."""

    def hide(*packages):
        for loaded in [name for name in sys.modules if name.startswith("agp.plot")]:
            monkeypatch.delitem(sys.modules, loaded)
        for package in packages:
            for loaded in [name for name in sys.modules if name.startswith(f"{package}.")]:
                monkeypatch.delitem(sys.modules, loaded)
            monkeypatch.setitem(sys.modules, package, None)

    return hide


def test_the_command_line_names_its_extra(without, capsys):
    without("rich")
    assert main(["backends"]) == 2
    err = capsys.readouterr().err
    assert err == 'agp: the command line needs rich, which is not installed: pip install "array-gp[cli]".\n'


def test_pictures_name_their_extra(without):
    without("matplotlib")
    with pytest.raises(ImportError, match=r"agp\.plot needs matplotlib, .*: pip install \"array-gp\[plot\]\"\."):
        import agp.plot  # noqa: F401


def test_a_progress_bar_names_its_extra(without, monkeypatch):
    without("tqdm", "tqdm.auto")
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    with pytest.raises(ImportError, match=r"progress=True needs tqdm, .*: pip install \"array-gp\[cli\]\"\."):
        agp.train(built(), X, Y, steps=1, progress=True)


# -- the name of the distribution -------------------------------------------------------------------------------------

ROOT = Path(agp.__file__).parents[1]
OTHERS = re.compile(
    r"""(?<![\w.\-])agp\[[a-z]|pip3? (un)?install (-\w+ )*["']?agp(?![-\w])|version\(["']agp["']\)"""
    r"""|dependencies = \[.*["']agp["'\[]"""
)
"""Texts that take the name of the import for that of the distribution, which is another project's."""


@pytest.mark.parametrize(
    "text",
    [
        '"agp[torch]"',
        "pip install agp",
        "pip uninstall -y agp",
        'pip install "agp"',
        "version('agp')",
        'dependencies = ["agp", "arrlib"]',
    ],
)
def test_the_wrong_name_would_be_found(text):
    assert OTHERS.search(text)


@pytest.mark.slow
def test_no_message_and_no_page_names_the_distribution_of_another_project():
    texts = [ROOT / name for name in ("README.md", "CHANGELOG.md", "Makefile", "pyproject.toml")]
    for folder in ("agp", "backends", "docs", "asv_benchmarks"):
        texts += [path for path in (ROOT / folder).rglob("*") if path.suffix in {".py", ".md", ".json", ".toml"}]
    wrong = [str(path) for path in texts if "_build" not in path.parts and OTHERS.search(path.read_text("utf-8"))]
    assert not wrong
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert (project["name"], project["version"]) == (DISTRIBUTION, agp.__version__)
    assert f"\nversion: {agp.__version__}\n" in (ROOT / "CITATION.cff").read_text("utf-8")
    assert f"\n## {agp.__version__}" in (ROOT / "CHANGELOG.md").read_text("utf-8")


EXTRAS_IN_CODE = (
    r"""missing_package_message\([^()]*["'](\w+)["']\)""",
    r"""require\("[\w.]+", [^()]*?"(\w+)"(?:, package="[\w-]+")?\)""",
)


def test_messages_name_extras_that_exist():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    code = "".join(path.read_text("utf-8") for path in (ROOT / "agp").rglob("*.py"))
    named = {extra for pattern in EXTRAS_IN_CODE for extra in re.findall(pattern, code)}
    assert {"cli", "plot"} <= named <= set(extras)
    assert {"torch", "jax", "cupy", "array_api_strict"} <= set(extras)  # backends name the extra of their own name


# -- tables -----------------------------------------------------------------------------------------------------------

HEADER, LINE = "frequency,angle,chord,sound", "{0}.5,{0}.25,{0}.125,{0}.75"


@pytest.fixture
def answer(capsys, tmp_path):
    """What the command line says of a text as a table, in one sentence: `agp fit` and `agp compare` alike."""
    pytest.importorskip("pandas", reason="tables need the extra cli")
    pytest.importorskip("sklearn", reason="agp fit needs the extra cli")

    def ask(text, target="sound"):
        path = tmp_path / "airfoil.csv"
        path.write_text(text, encoding="utf-8")
        said = []
        for call in (["fit", str(path), "--out", str(tmp_path / "m")], ["compare", str(path)]):
            assert main([*call, "--target", target]) == 2
            said.append(capsys.readouterr().err)
            assert said[-1].count("\n") == 1
        return said

    return ask


def test_a_bad_cell_of_a_table_is_told_by_line_and_column(answer):
    rows = [LINE.format(i) for i in range(30)]
    rows[17] = "1.0,2.0,wide,3.0"
    for said in answer("\n".join([HEADER, *rows])):
        assert "airfoil.csv: line 19, column 'chord' has 'wide', which is not a number; correct it" in said


def test_a_table_without_a_header_is_told_so(answer):
    for said in answer("\n".join(LINE.format(i) for i in range(5))):
        assert (
            "seems to have no header line: its first line is '0.5,0.25,0.125,0.75'; add a line with the names" in said
        )


def test_semicolons_are_no_mistake_and_other_separators_are_told(answer):
    text = "\n".join([HEADER, *(LINE.format(i) for i in range(5))])
    for said in answer(text.replace(",", ";"), target="noise"):
        assert "it has no column 'noise'; its columns are frequency, angle, chord, sound" in said
    for said in answer(text.replace(",", "&")):
        assert "it has no column 'sound'; its columns are frequency&angle&chord&sound" in said
        assert "Is the separator something other than a comma, a semicolon, a tab or a bar?" in said


def test_missing_targets_of_several_outputs_name_the_option():
    X = np.linspace(0.0, 1.0, 6)[:, None]
    y = np.concatenate([X, X], axis=1)
    y[2, 1] = np.nan
    with pytest.raises(ValueError, match=r"1 NaN .* in row 2; .*likelihood=agp.Gaussian\(missing=True\)"):
        agp.SVGP.from_data(X, y)
