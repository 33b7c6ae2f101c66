"""Parts of `defaults.py`: tables, the sides of the comparison, the process of a cell, and the page."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "compare" / "peers"))  # for its models
