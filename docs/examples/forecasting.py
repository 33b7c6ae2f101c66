"""Compare forecasts of monthly series by GPRegressor, with a date column, and by exponential smoothing (ETS).

Each series is cut at several origins. A model is trained on all months before an origin, and forecasts the next three
years. ETS has an additive error, trend and season. The trend is damped if this improves the AIC. The script needs
statsmodels:

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
    """Load monthly means of carbon dioxide at Mauna Loa in ppm, with 5 missing months interpolated."""
    from statsmodels.datasets import co2

    return co2.load_pandas().data["co2"].resample("MS").mean().interpolate()


def sea_surface():
    """Load the sea-surface temperature off Peru (Nino 1+2) in degrees Celsius."""
    from statsmodels.datasets import elnino

    table = elnino.load_pandas().data.set_index("YEAR")
    months = pd.date_range(f"{int(table.index[0])}-01", periods=table.size, freq="MS")
    return pd.Series(table.to_numpy().ravel(), months).dropna()


def by_gp(kernel):
    """Return a forecasting function that uses a Gaussian process with a column of dates."""

    def forecast(past, months):
        model = GPRegressor(kernel=kernel, random_state=0).fit(past.index.to_frame(name="month"), past.to_numpy())
        return model.predict(months.to_frame(name="month"), return_std=True)

    return forecast


def by_smoothing(past, months):
    """Forecast by exponential smoothing, with the intervals that statsmodels computes."""
    from statsmodels.tsa.exponential_smoothing.ets import ETSModel

    settings = {"error": "add", "trend": "add", "seasonal": "add", "seasonal_periods": 12}
    fits = [ETSModel(past.asfreq("MS"), damped_trend=damped, **settings).fit(disp=False) for damped in (False, True)]
    best = min(fits, key=lambda fit: fit.aic)
    found = best.get_prediction(start=months[0], end=months[-1]).summary_frame(alpha=0.05)
    return found["mean"].to_numpy(), (found["pi_upper"] - found["pi_lower"]).to_numpy() / (2.0 * Z)


def scores(y, mean, deviation):
    """Return RMSE, NLPD, CRPS, interval score and the coverage of 95 % intervals, for normal forecasts."""
    z = (y - mean) / deviation
    crps = deviation * (z * (2.0 * norm.cdf(z) - 1.0) + 2.0 * norm.pdf(z) - np.pi**-0.5)
    beyond = np.maximum(np.abs(z) - Z, 0.0)
    interval = deviation * (2.0 * Z + 40.0 * beyond)  # the width, plus 2 / 0.05 times the distance outside
    return {
        "RMSE": metrics.rmse(mean, y),
        "NLPD": -float(np.mean(norm.logpdf(y, mean, deviation))),
        "CRPS": float(np.mean(crps)),
        "interval score": float(np.mean(interval)),
        "inside 95 %": 100.0 * metrics.coverage(mean, deviation**2, y),
    }


MODELS = {
    "GP, default kernel": by_gp("auto"),
    "GP, composite kernel": by_gp(KERNEL),
    "GP, trend by RBF": by_gp(SMOOTH),
    "ETS": by_smoothing,
}


def main():
    """Print a table of averages over the origins, and with --each the scores of each origin."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--origins", type=int, default=5)
    parser.add_argument("--months", type=int, default=36)
    parser.add_argument("--each", action="store_true", help="also print the scores of each origin")
    a = parser.parse_args()
    warnings.simplefilter("ignore")  # convergence warnings of statsmodels
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
