"""What `defaults.py` is made of: tables, sides, cells in processes of their own, and the page."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "peers"))  # models and scores that are there already
