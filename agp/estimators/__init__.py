"""Gaussian processes that follow scikit-learn's conventions: `GPRegressor` and `GPClassifier`.

The estimators accept lists, arrays of any library, data frames with text and missing cells, and text labels. The
subpackage requires the extra ``sklearn``.
"""

from agp.errors import missing_package_message as _not_installed

try:
    import narwhals as _narwhals
    import sklearn as _sklearn
except ImportError as error:
    _msg = f"agp.estimators needs {_not_installed(f'{error.name}', 'sklearn')}."
    raise ImportError(_msg) from error

from agp.estimators._classifier import GPClassifier
from agp.estimators._files import register as _register
from agp.estimators._regressor import GPRegressor

__all__ = ["GPClassifier", "GPRegressor"]

_register()
