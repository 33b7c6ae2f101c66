"""Real data: bundled by installed packages, or from a user's own file. Host NumPy is at home here."""

from agp.data._dataset import Dataset, TaskName, load
from agp.data._sources import BUNDLED, Table, bundled, from_csv, from_npz

__all__ = ["BUNDLED", "Dataset", "Table", "TaskName", "bundled", "from_csv", "from_npz", "load"]
