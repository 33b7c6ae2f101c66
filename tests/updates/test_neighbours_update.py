"""The update that renews neighbours: when it is due, what it finds, and resumed runs."""

import numpy as np
import pytest
from helpers import toy_data

from agp import GPR, NNGP, TNNGP, VIF, to_numpy, train, tree
from agp.training import recipe
from agp.updates import Adam, NeighboursUpdate

X, Y = toy_data(60)
CASES = {"nngp": (NNGP, {}), "others": (NNGP, {"among": "others"}), "vif": (VIF, {"num_inducing": 6})}
CASES |= {"tnngp": (TNNGP, {})}


def build(case, place=None):
    kind, options = CASES[case]
    rows = (X, Y) if place is None else (place.array(X), place.array(Y))
    model = kind.from_data(*rows, neighbours=8, **options)
    return (model.with_gaussian_sites(rows[1]) if kind is TNNGP else model), rows


def stretched(model):
    """The model with other lengthscales, for which other rows are the nearest."""
    lengthscale = model.kernel.lengthscale * np.array([0.1, 10.0])
    return tree.with_leaves(model, {"kernel.lengthscale": lengthscale})


@pytest.mark.parametrize("case", CASES)
def test_neighbours_are_renewed_when_it_is_due(case):
    model, _ = build(case)
    update, changed = NeighboursUpdate(every=3), stretched(model)
    state, renewed = update.init(model), []
    for _ in range(7):
        found, state, info = update(changed, None, state)
        renewed.append(not np.array_equal(found.sets, model.sets))
        assert info == {}
    assert renewed == [False, False, False, True, False, False, True]


@pytest.mark.parametrize("case", CASES)
def test_what_is_found_is_what_the_model_finds(case):
    changed = stretched(build(case)[0])
    found = NeighboursUpdate(every=1)(changed, None, {"count": np.asarray(1.0)})[0]
    assert np.array_equal(found.sets, changed.renew_neighbours().sets)


@pytest.mark.filterwarnings("ignore::agp.errors.UntouchedWarning")
@pytest.mark.parametrize("case", CASES)
def test_every_library_renews_the_same(case, backend):
    def trained(place):
        model, rows = build(case, place)
        return train(model, *rows, steps=5, updates=[NeighboursUpdate(every=2), Adam(0.3)]).model

    before, after = build(case)[0].sets, to_numpy(trained(backend).sets)
    assert not np.array_equal(after, before)
    model, rows = build(case)
    here = train(model, *rows, steps=5, updates=[NeighboursUpdate(every=2), Adam(0.3)]).model
    assert np.array_equal(after, here.sets)


@pytest.mark.parametrize("case", ["nngp", "others", "tnngp"])
@pytest.mark.filterwarnings("ignore::agp.errors.UntouchedWarning")
def test_a_run_resumes_to_the_same_bits(case, tmp_path):
    model, rows = build(case)
    settings = {"steps": 12, "batch_size": 20, "updates": [NeighboursUpdate(every=4), Adam(0.3)]}
    whole = train(model, *rows, **settings)
    assert not np.array_equal(whole.model.sets, model.sets)
    path = tmp_path / "run"
    train(model, *rows, **settings, checkpoint=path, checkpoint_every=3, callbacks=[lambda seen: seen.step >= 7])
    resumed = train(model, *rows, **settings, checkpoint=path)
    assert resumed.trace == whole.trace
    for name, x in tree.leaves(whole.model).items():
        np.testing.assert_array_equal(tree.leaves(resumed.model)[name], x, err_msg=name)


def test_the_recipe_renews_the_neighbours_of_models_that_store_them():
    model, _ = build("nngp")
    assert any(isinstance(update, NeighboursUpdate) for update in recipe(model, 10))
    alone = NNGP(model.kernel, model.likelihood, X=X, y=Y)
    assert not any(isinstance(update, NeighboursUpdate) for update in recipe(alone, 10))


def test_other_models_are_refused():
    with pytest.raises(TypeError, match="NeighboursUpdate needs a model with neighbours, not GPR"):
        NeighboursUpdate().init(GPR.from_data(X, Y))
    with pytest.raises(ValueError, match="every is 0"):
        NeighboursUpdate(every=0)
