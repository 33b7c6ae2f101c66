"""Columns that tell nothing do not make predictions worse."""

import numpy as np
import pytest

pd = pytest.importorskip("pandas", reason="data frames are those of pandas")
pytest.importorskip("sklearn", reason="estimators need scikit-learn")

from agp import GPRegressor  # noqa: E402

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
