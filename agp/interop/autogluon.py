# pyright: reportMissingImports=false
"""`AGPModel`, the estimators of agp as a model of AutoGluon, and their entry for the benchmark TabArena.

The module requires the extra ``autogluon``. `tabarena_info` also requires the package ``tabarena``.
"""

import time
from typing import Any, ClassVar

import numpy as np
from threadpoolctl import threadpool_limits

from agp import __version__
from agp.errors import missing_package_message

try:
    from autogluon.common.space import Categorical
    from autogluon.core.models import AbstractModel
    from autogluon.core.utils.exceptions import TimeLimitExceeded
except ImportError as error:
    raise ImportError(
        f"agp.interop.autogluon needs {missing_package_message('autogluon.tabular', 'autogluon')}."
    ) from error

from agp.estimators import GPClassifier, GPRegressor
from agp.interop._tables import without_infinities

__all__ = ["AGPModel", "tabarena_info"]

TRAINING_FRACTION = 0.8
"""The fraction of AutoGluon's time limit that training may take. The rest is for the posterior after training."""
MIN_COMPARISON_SECONDS = 60.0
"""The time limit below which classifiers use an RBF kernel, because `max_seconds` does not limit their comparison."""
FIXED_MEMORY = 300_000_000
"""The memory that a process with agp takes for small data, in bytes."""
MAX_COLUMNS = {"regression": 4096, "quantile": 4096, "binary": 1000, "multiclass": 1000}
"""The default limit of the number M of inducing inputs for each problem type."""
MATRICES = 5
"""The number of matrices [N, M] of float64 for which training needs memory."""


class AGPModel(AbstractModel):
    """A model of AutoGluon that trains `agp.estimators.GPRegressor` or `agp.estimators.GPClassifier`.

    Pass the class to AutoGluon as a key of `hyperparameters`. The values are parameters of the estimator, such as
    ``{"kernel": "matern52"}``. The default parameters are those of the estimator, except for ``missing="impute"``.

    - The problem types are "regression", "binary", "multiclass" and "quantile". The quantiles are those of the
      predictive distribution of `GPRegressor`, so they never cross.
    - Columns of text, categories and dates arrive as AutoGluon converts them. Counts of words are not used. Infinite
      numbers are treated as missing cells.
    - Weights of rows are divided by their mean.
    - Training ends after 80 % of AutoGluon's time limit. If the limit is below 60 seconds, classifiers use an RBF
      kernel without a comparison of kernels.
    - Training uses as many threads as AutoGluon provides CPUs. The seed is ``random_state``, by default 0, or the seed
      that AutoGluon sets.
    - AutoGluon stores models with pickle. The attribute `model` is the estimator; store it with `agp.save` for a file
      without code.

    Raises
    ------
    autogluon.core.utils.exceptions.TimeLimitExceeded
        If the time limit ends before training starts.

    Examples
    --------
    >>> from autogluon.tabular import TabularPredictor
    >>> from agp.interop.autogluon import AGPModel
    >>> predictor = TabularPredictor(label="y").fit(table, hyperparameters={AGPModel: {}}, num_bag_folds=5)
    >>> predictor.leaderboard()
    """

    model: Any
    ag_key = "AGP"
    ag_name = "AGP"
    seed_name = "random_state"
    default_resources_physical_cores_only = True
    _supported_problem_types: ClassVar = ["regression", "binary", "multiclass", "quantile"]
    _default_auxiliary_params_extra: ClassVar = {"ignored_type_group_special": ["text_ngram", "text_as_category"]}

    def _set_default_params(self) -> None:
        self._set_default_param_value("missing", "impute")

    def _preprocess(self, X: Any, **kwargs: Any) -> Any:
        return without_infinities(super()._preprocess(X, **kwargs))

    def _fit(
        self,
        X: Any,
        y: Any,
        time_limit: float | None = None,
        num_cpus: Any = None,
        sample_weight: Any = None,
        **_: Any,
    ) -> None:
        """Train on a pandas data frame X [N, D] and a series y [N]."""
        start = time.monotonic()
        X = self.preprocess(X, y=y)
        settings = self._get_model_params()
        classifies = self.problem_type in ("binary", "multiclass")
        if time_limit is not None:
            left = TRAINING_FRACTION * time_limit - (time.monotonic() - start)
            if left <= 0.0:
                raise TimeLimitExceeded
            settings["max_seconds"] = min(left, settings.get("max_seconds") or left)
            if classifies and time_limit < MIN_COMPARISON_SECONDS and settings.get("kernel", "auto") == "auto":
                settings["kernel"] = "rbf"
        weights = None if sample_weight is None else np.asarray(sample_weight, dtype=float)
        estimator = (GPClassifier if classifies else GPRegressor)(**settings)
        with threadpool_limits(num_cpus if isinstance(num_cpus, int) else None):
            self.model = estimator.fit(X, y, sample_weight=None if weights is None else weights / weights.mean())

    def _predict_proba(self, X: Any, **kwargs: Any) -> Any:
        """Return means [N], probabilities [N] or [N, C], or quantiles [N, Q] for a pandas data frame X [N, D]."""
        X = self.preprocess(X, **kwargs)
        if self.problem_type == "regression":
            return self.model.predict(X)
        if self.problem_type == "quantile":
            return self.model.predict_quantiles(X, list(self.quantile_levels))
        found = np.zeros((len(X), max(2, self.num_classes or 2)))
        found[:, np.asarray(self.model.classes_, dtype=int)] = self.model.predict_proba(X)  # a fold may lack a class
        return self._convert_proba_to_unified_form(found)

    def _more_tags(self) -> dict[str, Any]:
        return {"can_refit_full": True}

    @classmethod
    def _estimate_memory_usage_static(
        cls, *, X: Any, problem_type: str = "regression", num_classes: int | None = 1, **_: Any
    ) -> int:
        """Return an upper limit of the peak memory of training, in bytes."""
        rows, functions = X.shape[0], num_classes if num_classes is not None and problem_type == "multiclass" else 1
        return FIXED_MEMORY + 8 * MATRICES * rows * min(rows, MAX_COLUMNS[problem_type]) * functions


def tabarena_info() -> Any:
    """Return the entry of `AGPModel` in the registry of TabArena, a ``tabarena.models.ModelInfo``.

    The field `search_space` is a generator of configurations, which a bundle of experiments takes together with a
    number of random configurations. The first configuration has the default parameters. The random configurations
    differ in their kernel and in the number of inducing inputs.

    Raises
    ------
    ImportError
        If the package ``tabarena`` is not installed.

    Examples
    --------
    >>> from agp.interop.autogluon import tabarena_info
    >>> from tabarena.benchmark.experiment import TabArenaV0pt1ExperimentBundle
    >>> from tabarena.models import register_model_info
    >>> info = tabarena_info()
    >>> register_model_info(info)
    >>> experiments = TabArenaV0pt1ExperimentBundle(models=[(info.search_space, 0)]).build_experiments()
    """
    try:
        from tabarena.models import MethodMetadata, ModelInfo
        from tabarena.utils.config_utils import ConfigGenerator
    except ImportError as error:
        raise ImportError("tabarena_info needs tabarena, which is not installed: pip install tabarena.") from error
    metadata = MethodMetadata.config(
        method=AGPModel.ag_name,
        suite=f"agp-{__version__}",
        ag_key=AGPModel.ag_key,
        config_default=f"{AGPModel.ag_name}_c1_default_BAG_L1",
        compute="cpu",
        is_bag=True,
        verified=False,
    )
    search = {
        "kernel": Categorical("auto", "rbf", "matern12", "matern32", "matern52", "rq", "matern52 + linear"),
        "num_inducing": Categorical(None, 256, 512, 1024),
    }
    return ModelInfo(
        model_cls=AGPModel,
        search_space=ConfigGenerator(search_space=search, model_cls=AGPModel, manual_configs=[{}]),
        method_metadata=metadata,
        pip_extra=("array-gp[autogluon]",),
    )
