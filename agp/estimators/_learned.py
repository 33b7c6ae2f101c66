"""What training leaves in an estimator, for checkers of types: the classes say what each attribute is."""

from typing import Any

import numpy as np
import numpy.typing as npt

from agp.models import Model

__all__ = ["Learned"]


class Learned:
    """The attributes that `fit` and `partial_fit` set; which of them are there depends on the training.

    They stand in a class by themselves because the fields of an estimator are its parameters.
    """

    model_: Model
    method_: str
    bound_: float
    history_: dict[str, list[float]]
    converged_: bool
    learned_: bool
    n_iter_: int
    n_rows_seen_: int
    n_features_in_: int
    feature_names_in_: npt.NDArray[np.object_]
    columns_: Any
    growth_: dict[str, list[float]]
    growth_reason_: str
    kernel_: str
    candidates_: dict[str, list[Any]]
    classes_: Any
    order_: npt.NDArray[np.int64]
