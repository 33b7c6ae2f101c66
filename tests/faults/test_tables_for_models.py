"""Models and predictors refuse tables, and name the conversion that keeps the units of dates."""

import numpy as np
import pandas as pd
import pytest

import agp

X = np.linspace(0.0, 5.0, 12)[:, None]
Y = np.sin(X)
MODEL = agp.GPR.from_data(X, Y)
PREDICTOR = MODEL.predictor()
FRAME = pd.DataFrame({"month": pd.date_range("2001-01-01", periods=12, freq="MS")})

CALLS = {
    "predict": PREDICTOR.predict,
    "predict_mean": PREDICTOR.predict_mean,
    "gradient": PREDICTOR.gradient,
    "components": PREDICTOR.components,
    "sample_components": PREDICTOR.sample_components,
    "predict_covariance": PREDICTOR.predict_covariance,
    "sample": PREDICTOR.sample,
    "functions": PREDICTOR.sample_functions(2),
    "interval": lambda x: PREDICTOR.interval(x, 0.9),
    "quantile": lambda x: PREDICTOR.quantile(x, (0.5,)),
    "condition_on": lambda x: PREDICTOR.condition_on(x, Y),
    "log_density": lambda x: PREDICTOR.log_density(x, Y),
    "mean_log_density": lambda x: PREDICTOR.mean_log_density(x, Y),
    "log_probabilities": lambda x: PREDICTOR.log_probabilities(x, 3),
    "cdf": lambda x: PREDICTOR.cdf(x, Y),
    "pit": lambda x: PREDICTOR.pit(x, Y),
    "crps": lambda x: PREDICTOR.crps(x, Y),
    "of a model": MODEL.predict,
    "bound": lambda x: MODEL.bound(x, Y),
    "from_data": lambda x: agp.GPR.from_data(x, Y),
    "fit": lambda x: agp.fit(MODEL, x, Y),
    "fit_regression": lambda x: agp.fit_regression(x, Y),
    "value_and_gradient": lambda x: agp.value_and_gradient(MODEL, x, Y),
    "mean function": MODEL.mean_function,
    "kernel": lambda x: agp.RBF(1.0, 1.0)(x),
    "inspection.components": lambda x: agp.inspection.components(MODEL, x),
    "inspection.sample_components": lambda x: agp.inspection.sample_components(MODEL, x),
    "variance_shares": lambda x: agp.inspection.variance_shares(MODEL, x),
    "partial_dependence": lambda x: agp.inspection.partial_dependence(MODEL, x),
    "kernel_relevance": lambda x: agp.inspection.kernel_relevance(MODEL, x, Y),
    "permutation_importance": lambda x: agp.inspection.permutation_importance(MODEL, x, Y),
}


@pytest.mark.parametrize("kind", ["pandas", "polars"])
@pytest.mark.parametrize("name", CALLS)
def test_messages_name_the_conversion_of_an_estimator(name, kind):
    table = FRAME if kind == "pandas" else pytest.importorskip("polars").from_pandas(FRAME)
    with pytest.raises(
        TypeError, match=rf"(X|x) is a {kind} DataFrame, not .*; pass model_inputs\(table\) of the GPReg"
    ):
        CALLS[name](table)


def test_columns_of_dates_are_not_converted_to_nanoseconds():
    for column in (FRAME["month"], pd.DatetimeIndex(FRAME["month"])):
        with pytest.raises(TypeError, match=r"pass model_inputs\(table\) .* if all cells are numbers"):
            PREDICTOR.predict(column)
    with pytest.raises(TypeError, match=r"y is a pandas Series, not .*; pass y.to_numpy\(dtype=float\)\.$"):
        agp.GPR.from_data(X, pd.Series(Y[:, 0]))
