"""The table that `agp compare` reads if none is named."""

from pathlib import Path

import numpy as np

from agp.errors import require

ROWS = 1000
TARGET = "height"


def write_example(folder: str) -> str:
    """Write `ROWS` heights of a valley from matplotlib's sample data to a table in a folder, and return its path."""
    book = require("matplotlib.cbook", "the example table comes with", "plot")
    with book.get_sample_data("jacksboro_fault_dem.npz") as file:
        heights = np.asarray(file["elevation"], dtype=float)
    south, east = np.indices(heights.shape)
    rows = np.random.default_rng(0).permutation(heights.size)[:ROWS]
    columns = [x.ravel()[rows] for x in (east, south, heights)]
    path = Path(folder) / "elevation.csv"
    np.savetxt(path, np.stack(columns, axis=1), fmt="%g", delimiter=",", header=f"east,south,{TARGET}", comments="")
    return str(path)
