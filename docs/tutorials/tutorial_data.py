"""Data of the tutorials, from a file or a package, or synthetic data if these are missing."""

import os
from pathlib import Path
from typing import NamedTuple

import numpy as np

__all__ = ["Months", "Rows", "Tracks", "concrete", "gravity", "gravity_along_tracks", "monthly_co2"]


class Rows(NamedTuple):
    """Training rows, test rows and their source."""

    X: np.ndarray
    """Inputs [N, D]."""
    y: np.ndarray
    """Targets [N, 1]."""
    X_test: np.ndarray
    """Inputs of the test rows [T, D]."""
    y_test: np.ndarray
    """Targets of the test rows [T, 1]."""
    columns: list[str]
    """Names and units of the columns of X."""
    source: str
    """A description of the source of the rows."""


class Months(NamedTuple):
    """A monthly series and its source."""

    first_days: np.ndarray
    """The first day of each month [N], as datetime64."""
    values: np.ndarray
    """Monthly means [N]; months without a measurement are left out."""
    source: str
    """A description of the source of the series."""


class Tracks(NamedTuple):
    """Measurements along the tracks of a satellite."""

    longitude: np.ndarray
    """Longitudes [N] in degrees, from -180 to 180."""
    latitude: np.ndarray
    """Latitudes [N] in degrees."""
    anomaly: np.ndarray
    """Gravity anomalies [N] in mGal, with noise."""
    revolution: np.ndarray
    """The number [N] of the revolution about the Earth."""


CONCRETE = [
    "cement [kg/m3]",
    "slag [kg/m3]",
    "fly ash [kg/m3]",
    "water [kg/m3]",
    "superplasticiser [kg/m3]",
    "coarse aggregate [kg/m3]",
    "fine aggregate [kg/m3]",
    "age [days]",
]


def concrete(seed: int = 0) -> Rows:
    """Return strengths [MPa] of 1,030 concrete mixes: Yeh's data from `concrete.npz`, or synthetic data.

    The final strength of the synthetic mixes follows Abrams' law, 105 MPa / 8 ** (water / binder). The binder is
    cement + 0.7 slag + 0.4 fly ash. Each kilogram of plasticiser replaces 0.6 % of the water. The strength at an age
    in days is the final strength times age / (4 + 0.86 age) (ACI Committee 209). Slag and ash slow this down, by up to
    a factor of two. The noise has a standard deviation of 7 % of the strength, plus independent noise of 1.5 MPa. The
    aggregates have no effect.
    """
    found = _from_file("concrete.npz", CONCRETE, seed)
    if found is not None:
        return found
    rng = np.random.default_rng(seed)
    N = 1030
    cement = rng.uniform(102.0, 540.0, N)
    slag, ash = (np.where(rng.uniform(size=N) < 0.5, 0.0, rng.uniform(20.0, most, N)) for most in (300.0, 200.0))
    water = np.clip(rng.normal(181.0, 21.0, N), 122.0, 247.0)
    plasticiser = np.where(rng.uniform(size=N) < 0.4, 0.0, rng.uniform(2.0, 20.0, N))
    coarse, fine = rng.uniform(801.0, 1145.0, N), rng.uniform(594.0, 992.0, N)
    shares = {3.0: 0.13, 7.0: 0.12, 14.0: 0.06, 28.0: 0.41, 56.0: 0.1, 90.0: 0.1, 180.0: 0.04, 365.0: 0.04}
    age = rng.choice(list(shares), N, p=list(shares.values()))
    binder = cement + 0.7 * slag + 0.4 * ash
    late = 1.0 + (slag + ash) / (cement + slag + ash)
    mature = 105.0 / 8.0 ** (water * (1.0 - 0.006 * plasticiser) / binder)
    strength = mature * age / (4.0 * late + 0.86 * age)
    y = strength * (1.0 + 0.07 * rng.standard_normal(N)) + 1.5 * rng.standard_normal(N)
    X = np.stack([cement, slag, ash, water, plasticiser, coarse, fine, age], axis=1)
    text = f"{N:,} synthetic mixes (concrete.npz was not found)"
    return _split(X, y, rng.permutation(N) < N // 10, CONCRETE, text)


def monthly_co2() -> Months:
    """Return monthly carbon dioxide concentrations [ppm] at Mauna Loa, 1958 to 2001: from statsmodels, or synthetic.

    The synthetic series is the sum of a quadratic trend, a season with two harmonics, and autoregressive noise with
    coefficient 0.9.
    """
    try:
        from statsmodels.datasets import co2
    except ImportError:
        months = np.arange("1958-03", "2002-01", dtype="datetime64[M]")
        years = np.arange(len(months)) / 12.0
        season = 2.8 * np.sin(2.0 * np.pi * years) - 0.8 * np.cos(4.0 * np.pi * years)
        shocks, slow = 0.2 * np.random.default_rng(0).standard_normal(len(months)), np.zeros(len(months))
        for i in range(1, len(months)):
            slow[i] = 0.9 * slow[i - 1] + shocks[i]
        values = 315.0 + 0.8 * years + 0.012 * years**2 + season + slow
        return Months(months.astype("datetime64[s]"), values, "synthetic months (statsmodels is not installed)")
    weeks = co2.load_pandas().data["co2"]
    means = weeks.resample("MS").mean().dropna()
    return Months(means.index.to_numpy(), means.to_numpy(), "monthly means of Mauna Loa's weeks, by statsmodels")


def gravity(longitude: np.ndarray, latitude: np.ndarray) -> np.ndarray:
    """Return synthetic gravity anomalies [N] in mGal at longitudes and latitudes [N] in degrees.

    The anomalies are the sum of 500 waves through the sphere in random directions. Their wavelengths are from 330 to
    20,000 km, and long waves are higher. The standard deviation is about 23 mGal.
    """
    rng = np.random.default_rng(1)
    number = 2.0 * 60.0 ** rng.uniform(size=500)  # radians per radius of the Earth
    directions = rng.standard_normal((500, 3))
    waves = (number / np.linalg.norm(directions, axis=1))[:, None] * directions
    phases, heights = rng.uniform(0.0, 2.0 * np.pi, 500), number**-0.5
    heights *= 20.0 / np.sqrt(0.5 * np.sum(heights**2))
    longitude, latitude = np.deg2rad(longitude), np.deg2rad(latitude)
    flat = np.cos(latitude)
    vectors = np.stack([flat * np.cos(longitude), flat * np.sin(longitude), np.sin(latitude)], axis=1)
    blocks = np.array_split(vectors, 1 + len(vectors) // 10_000)
    return np.concatenate([np.cos(block @ waves.T + phases) @ heights for block in blocks])


def gravity_along_tracks(rows: int, seed: int = 0) -> Tracks:
    """Return synthetic gravity anomalies along the tracks of a satellite in ten days, with noise of 3 mGal.

    The orbit is a circle with a period of 89.5 minutes and an inclination of 96.7 degrees, like that of the satellite
    GOCE, so no track comes nearer to a pole than 6.7 degrees. The Earth turns below it once in 1,436 minutes.
    """
    minutes = np.linspace(0.0, 14_400.0, rows, endpoint=False)
    along, tilt = 2.0 * np.pi * minutes / 89.5, np.deg2rad(96.7)
    latitude = np.rad2deg(np.arcsin(np.sin(tilt) * np.sin(along)))
    turned = np.rad2deg(np.arctan2(np.cos(tilt) * np.sin(along), np.cos(along))) - 360.0 * minutes / 1436.07
    longitude = (turned + 180.0) % 360.0 - 180.0
    noise = 3.0 * np.random.default_rng(seed).standard_normal(rows)
    return Tracks(longitude, latitude, gravity(longitude, latitude) + noise, (minutes // 89.5).astype(int))


def _from_file(name: str, columns: list[str], seed: int) -> Rows | None:
    path = Path(os.environ.get("AGP_DATA", "")) / name
    if "AGP_DATA" not in os.environ or not path.exists():
        return None
    with np.load(path) as file:
        X, y = np.asarray(file["X"], float), np.asarray(file["y"], float)
        masks = file["test_masks"][:, 0] if "test_masks" in file else file.get("test_mask")
    order = np.random.default_rng(seed).permutation(len(X))
    test = np.argsort(order) < len(X) // 10 if masks is None else np.asarray(masks, bool)
    return _split(X[order], y[order], test[order], columns, f"{len(order):,} rows of your file {name}")


def _split(X: np.ndarray, y: np.ndarray, test: np.ndarray, columns: list[str], source: str) -> Rows:
    return Rows(X[~test], y[~test, None], X[test], y[test, None], columns, source)
