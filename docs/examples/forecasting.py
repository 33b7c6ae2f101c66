"""Forecasts of monthly series: GPRegressor on a date column, and exponential smoothing (ETS) of statsmodels.

Each series is cut at several origins. Models see all months before one, and forecast the next three years. ETS has
additive errors, trend and seasons; whether the trend is damped is chosen by the AIC. It needs statsmodels:

    python docs/examples/forecasting.py
"""

import argparse
import time
import warnings

import numpy as np
import pandas as pd
from scipy.stats import norm

from agp import metrics
from agp.estimators import GPRegressor

KERNEL = "linear + matern32 + seasonal(365.25) * rbf + matern12"
SMOOTH = "linear + rbf + seasonal(365.25) * rbf + matern12"
Z = norm.ppf(0.975)


def co2():
    """Carbon dioxide at Mauna Loa in ppm: monthly means of the weeks; 5 months without any are interpolated."""
    from statsmodels.datasets import co2

    return co2.load_pandas().data["co2"].resample("MS").mean().interpolate()


def sea_surface():
    """The temperature of the sea surface off Peru (Nino 1+2) in degrees Celsius."""
    from statsmodels.datasets import elnino

    table = elnino.load_pandas().data.set_index("YEAR")
    months = pd.date_range(f"{int(table.index[0])}-01", periods=table.size, freq="MS")
    return pd.Series(table.to_numpy().ravel(), months).dropna()


def by_gp(kernel):
    """A forecast by a Gaussian process, whose time is a column of dates."""

    def forecast(past, months):
        model = GPRegressor(kernel=kernel, random_state=0).fit(past.index.to_frame(name="month"), past.to_numpy())
        return model.predict(months.to_frame(name="month"), return_std=True)

    return forecast


def by_smoothing(past, months):
    """A forecast by exponential smoothing, with the intervals of its own formula."""
    from statsmodels.tsa.exponential_smoothing.ets import ETSModel

    settings = {"error": "add", "trend": "add", "seasonal": "add", "seasonal_periods": 12}
    fits = [ETSModel(past.asfreq("MS"), damped_trend=damped, **settings).fit(disp=False) for damped in (False, True)]
    best = min(fits, key=lambda fit: fit.aic)
    found = best.get_prediction(start=months[0], end=months[-1]).summary_frame(alpha=0.05)
    return found["mean"].to_numpy(), (found["pi_upper"] - found["pi_lower"]).to_numpy() / (2.0 * Z)


def scores(y, mean, deviation):
    """RMSE, NLPD, CRPS and interval score of normal forecasts, and the share of 95 % intervals that hold."""
    z = (y - mean) / deviation
    crps = deviation * (z * (2.0 * norm.cdf(z) - 1.0) + 2.0 * norm.pdf(z) - np.pi**-0.5)
    beyond = np.maximum(np.abs(z) - Z, 0.0)
    interval = deviation * (2.0 * Z + 40.0 * beyond)  # its width, and 2 / 0.05 for each unit outside
    return {
        "RMSE": metrics.rmse(mean, y),
        "NLPD": -float(np.mean(norm.logpdf(y, mean, deviation))),
        "CRPS": float(np.mean(crps)),
        "interval score": float(np.mean(interval)),
        "inside 95 %": 100.0 * metrics.coverage(mean, deviation**2, y),
    }


MODELS = {
    "GP, default kernel": by_gp("auto"),
    "GP, kernel of parts": by_gp(KERNEL),
    "GP, trend by RBF": by_gp(SMOOTH),
    "ETS": by_smoothing,
}


def main():
    """Print a table of averages over the origins, and with --each all of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--origins", type=int, default=5)
    parser.add_argument("--months", type=int, default=36)
    parser.add_argument("--each", action="store_true", help="print the scores of each origin, too")
    a = parser.parse_args()
    warnings.simplefilter("ignore")  # statsmodels' of convergence
    for series in (co2(), sea_surface()):
        found = {name: [] for name in MODELS}
        for origin in range(len(series) - a.origins * a.months, len(series), a.months):
            past, future = series[:origin], series[origin : origin + a.months]
            for name, forecast in MODELS.items():
                began = time.perf_counter()
                mean, deviation = forecast(past, future.index)
                seconds = time.perf_counter() - began
                found[name].append(scores(future.to_numpy(), mean, deviation) | {"seconds": seconds})
                if a.each:
                    print(f"{future.index[0]:%Y-%m} {name:20}", *(f"{x:8.3f}" for x in found[name][-1].values()))
        print(f"\n| {series.name or 'sea surface'} |", *(f"{what} |" for what in found["ETS"][0]))
        print("|---|" + "---|" * len(found["ETS"][0]))
        for name, runs in found.items():
            averages = pd.DataFrame(runs).mean()
            print(f"| {name} |", *(f"{x:.0f} % |" if "%" in what else f"{x:.2f} |" for what, x in averages.items()))


if __name__ == "__main__":
    main()
