"""The public names of models: few, the same on every model, and told apart from the protocol of models."""

import copy
import inspect
import pickle

import numpy as np
import pytest
from helpers import toy_data

import agp
from agp import (
    CGGP,
    GPR,
    NNGP,
    SGPR,
    SOLVEGP,
    SOLVEGPR,
    SVGP,
    TNNGP,
    TSVGP,
    TVGP,
    VIF,
    CaGP,
    DeepGP,
    Ensemble,
    GPRMixture,
    models,
    tree,
)
from agp.bounds import Batch
from agp.models import Model, SiteModel, Variational, WithNeighbours
from agp.predictors import Predictor
from agp.updates import SiteStep

X, Y = toy_data(24)
TWO = np.concatenate([Y, Y * Y], axis=1)

PREDICTIONS = {"predict", "predict_mean", "predict_covariance", "gradient", "quantile", "interval"}
PREDICTIONS |= {"sample", "sample_functions", "log_density", "mean_log_density"}
SHARED = PREDICTIONS | {"predictor", "bound", "priors", "outputs"}
"""What `Model` lists; `stochastic` is declared there and set by its subclasses, as `from_data` is."""
PARTS = {"kernel", "inducing", "posterior", "mean_function"}
SETTINGS = {"rank", "probes", "tolerance", "prediction_tolerance", "max_iterations", "lanczos_steps"}
KNOWN = {"weights", "offset", "noise"}
NEAR = {"neighbours", "predict_mean_along", "renew_neighbours", "sets"}
MERGED = {"seed", "squares"}
OWN = {
    Model: set(),
    Variational: set(),
    SiteModel: {"with_gaussian_sites"},
    SVGP: set(),
    SOLVEGP: {"groups", "structured_posterior"},
    DeepGP: {"convolutional", "prediction_samples"},
    Ensemble: {"likelihood", "spread"},
    GPR: KNOWN | {"leave_one_out"},
    NNGP: KNOWN | NEAR | MERGED | {"among", "leave_one_out"},
    VIF: KNOWN | NEAR | MERGED | {"jitter", "posterior_rows"},
    GPRMixture: {
        "X",
        "y",
        "kernel_shares",
        "leave_one_out",
        "level",
        "likelihood",
        "mode",
        "noise",
        "setting",
        "weights",
    },
    CGGP: KNOWN | SETTINGS,
    SGPR: KNOWN | {"jitter", "to_svgp", "upper_bound"},
    SOLVEGPR: KNOWN | {"jitter", "sizes", "second", "tight", "to_solve", "upper_bound"},
    TSVGP: {"jitter", "to_svgp", "to_tied", "with_gaussian_sites"},
    TVGP: {"leave_one_out", "with_gaussian_sites"},
    TNNGP: NEAR | {"as_regression", "leave_one_out", "with_gaussian_sites"},
    CaGP: KNOWN | {"capped", "loss", "uncertainty"},
}
"""What each class lists besides the common names: settings, and what its method alone has."""
CLASSES = [x for x in vars(models).values() if inspect.isclass(x) and issubclass(x, Model) and x is not WithNeighbours]


def listed(x):
    return {name for name in dir(x) if not name.startswith("_")}


def built(model_class, **options):
    if not issubclass(model_class, (GPR, CGGP, NNGP, TVGP, TNNGP, CaGP)):
        options = {"num_inducing": 5} | options
    return model_class.from_data(X, options.pop("y", Y), **options)


def test_a_model_lists_twenty_names_at_the_most():
    assert len(listed(SVGP)) <= 20


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_what_a_class_lists_beyond_the_common_names(cls):
    assert listed(cls) - SHARED - PARTS - {"stochastic", "from_data"} == OWN[cls]
    assert listed(cls) >= SHARED
    fields = {field.name for field in tree._fields.FIELDS.get(cls, ())}
    if cls not in (Model, Variational, SiteModel, Ensemble, GPRMixture):
        assert PARTS | {"stochastic", "from_data"} <= listed(cls) | fields


def test_the_predictions_are_those_of_predictors():
    assert listed(Predictor) >= PREDICTIONS


# -- kernel, inducing, posterior and mean_function --------------------------------------------------------------------

ONE_PROCESS = [cls for cls in OWN if cls not in (Model, Variational, SiteModel, DeepGP, Ensemble, GPRMixture)]


@pytest.mark.parametrize("cls", ONE_PROCESS, ids=lambda cls: cls.__name__)
def test_every_model_of_one_process_answers_to_the_same_names(cls):
    model = built(cls)
    assert isinstance(model.kernel, agp.kernels.Kernel)
    assert isinstance(model.mean_function, agp.means.Mean)
    assert (model.inducing is None) == (cls in (GPR, CGGP, NNGP, TVGP, TNNGP, CaGP))
    assert (model.posterior is None) == (cls not in (SVGP, SOLVEGP, CaGP))
    if "process" in vars(model):
        assert all(getattr(model, name) is getattr(model.process, name) for name in PARTS)


def test_of_a_mixture_they_are_those_of_what_is_mixed_and_its_own_mean():
    model = built(SVGP, y=TWO)
    assert isinstance(model.process, agp.processes.LinearMixing)
    assert all(getattr(model, name) is getattr(model.process.process, name) for name in PARTS - {"mean_function"})
    assert model.mean_function is model.process.mean_function


SEVERAL = {
    "deep": (lambda: built(DeepGP), r"model\.process\.layers\[0\]"),
    "separate": (lambda: built(SVGP, y=TWO, outputs="separate"), r"model\.process\.parts\[0\]"),
    "mixed": (lambda: built(SVGP, y=TWO, outputs="coregionalised"), r"model\.process\.process\.parts\[0\]"),
}


@pytest.mark.parametrize("case", SEVERAL)
def test_several_say_where_they_are(case):
    build, place = SEVERAL[case]
    model = build()
    for name in PARTS - ({"mean_function"} if case == "mixed" else set()):
        with pytest.raises(
            AttributeError, match=rf"2 processes, each with its own {name}; use {place}\.{name}"
        ) as said:
            getattr(model, name)
        assert said.value.name == name
        assert not hasattr(model, name)


def test_a_process_of_ones_own_is_named():
    known = agp.SVGP(
        agp.processes.FixedMap(agp.means.LinearMean(np.eye(3), np.zeros(3))), agp.Gaussian(np.asarray(0.1))
    )
    with pytest.raises(AttributeError, match=r"SVGP has no kernel, .* a FixedMap; see model\.process"):
        _ = known.kernel


@pytest.mark.parametrize("cls", [*ONE_PROCESS, DeepGP], ids=lambda cls: cls.__name__)
def test_the_names_are_neither_leaves_nor_parts_of_files(cls, tmp_path):
    model = built(cls)
    paths = list(tree.leaves(model))
    assert len(set(map(id, tree.leaves(model).values()))) == len(paths)
    agp.save(model, tmp_path / "m.safetensors")
    for again in (pickle.loads(pickle.dumps(model)), copy.deepcopy(model), agp.load(tmp_path / "m.safetensors")):
        assert type(again) is cls
        assert list(tree.leaves(again)) == paths
        np.testing.assert_array_equal(again.predict(X).mean, model.predict(X).mean)


def test_an_unknown_name_is_an_attribute_error():
    model = built(SVGP)
    with pytest.raises(AttributeError, match="'SVGP' object has no attribute 'lengthscale'"):
        _ = model.lengthscale
    assert not hasattr(model, "__array__")


def test_a_batch_is_what_an_update_takes():
    model = built(TSVGP)
    update = SiteStep(1.0)
    moved, again = (
        update(model, batch, update.init(model))[0].site_shift for batch in (Batch(X, Y), model._batch(X, Y))
    )
    np.testing.assert_array_equal(moved, again)
