"""Columns that tell nothing do not make predictions worse."""

import numpy as np
import pytest

pd = pytest.importorskip("pandas", reason="data frames are those of pandas")
pytest.importorskip("sklearn", reason="estimators need scikit-learn")

from agp import GPRegressor  # noqa: E402
from agp.inspection import kernel_relevance  # noqa: E402

ROWS, NEW = 300, 500


def table(seed):
    rng = np.random.default_rng(seed)
    N = ROWS + NEW
    frame = pd.DataFrame({"area": rng.uniform(40.0, 200.0, N), "age": rng.uniform(0.0, 60.0, N)})
    price = 2.0 * frame["area"] * (1.0 + 0.3 * np.cos(frame["age"] / 10.0)) * np.exp(0.1 * rng.standard_normal(N))
    levels = {"street": 60, "agent": 12, "colour": 4}
    useless = {name: rng.integers(0, count, N).astype(str) + name for name, count in levels.items()}
    return frame, frame.assign(**{name: np.char.add("n", x) for name, x in useless.items()}), price


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_useless_categories_cost_less_than_the_noise(seed):
    few, many, price = table(seed)
    found = []
    for frame in (few, many):
        model = GPRegressor(random_state=0).fit(frame[:ROWS], price[:ROWS])
        assert model.transform_ is not None  # the noise is proportional to the price
        found.append(model.log_density(frame[ROWS:], price[ROWS:]))
    assert np.mean(found[1]) > np.mean(found[0]) - 0.05


def test_columns_that_are_not_used_are_named_and_do_not_change_predictions():
    rng = np.random.default_rng(1)
    frame = pd.DataFrame(rng.uniform(size=(250, 12)), columns=[f"c{d}" for d in range(12)])
    y = np.sin(6.0 * frame["c0"]) + 2.0 * frame["c1"] + 0.3 * rng.standard_normal(250)
    model = GPRegressor().fit(frame, y)
    unused = model.facts()["not used"].split(", ")
    assert len(unused) > 3
    assert not {"c0", "c1"} & {*unused}
    np.testing.assert_array_equal(model.predict(frame.assign(**dict.fromkeys(unused, 5.0))), model.predict(frame))
    shares = kernel_relevance(model)
    assert [name for name, share in zip(shares.names, shares.mean, strict=True) if share == 0.0] == unused
    assert "not used" not in GPRegressor(kernel="rbf").fit(frame, y).facts()
