"""The effects and importance of table columns in a trained model or estimator.

`agp.plot` draws the effects. `permutation_importance` requires the extra ``sklearn``.
"""

from agp.inspection._components import ComponentSamples, components, sample_components
from agp.inspection._effects import Effect, partial_dependence
from agp.inspection._levels import LevelCorrelations, level_correlations
from agp.inspection._relevance import (
    KernelRelevance,
    Lengthscale,
    PermutationImportance,
    kernel_relevance,
    permutation_importance,
)
from agp.inspection._shares import VarianceShares, variance_shares
from agp.inspection._subject import inducing_inputs

__all__ = [
    "ComponentSamples",
    "Effect",
    "KernelRelevance",
    "Lengthscale",
    "LevelCorrelations",
    "PermutationImportance",
    "VarianceShares",
    "components",
    "inducing_inputs",
    "kernel_relevance",
    "level_correlations",
    "partial_dependence",
    "permutation_importance",
    "sample_components",
    "variance_shares",
]

# for other subpackages
from agp.inspection._effects import average_prediction, frequent_levels
from agp.inspection._subject import Z95, Host, Predicted, Subject, host, subject_of
from agp.inspection._table import ArrayTable, Table, as_table, column_names, fill_missing_objects, in_days, like_values
