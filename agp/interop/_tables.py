"""Repairs of pandas data frames that other libraries pass to the adapters."""

from typing import Any

import numpy as np


def without_infinities(table: Any) -> Any:
    """Return a pandas data frame [N, D] whose infinite numbers are missing cells. Its other cells are unchanged."""
    infinite = [name for name in table.select_dtypes("floating") if np.isinf(table[name].to_numpy(dtype=float)).any()]
    if not infinite:
        return table
    return table.assign(**{name: table[name].replace([np.inf, -np.inf], np.nan) for name in infinite})
