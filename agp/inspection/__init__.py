"""What a trained model or estimator says about a table, as numbers: predictions along a line, the effect of a column.

`agp.plot` draws these numbers; nothing here needs an extra.
"""

from agp.inspection._effects import Effect, average_prediction, partial_dependence
from agp.inspection._inducing import inducing_inputs
from agp.inspection._subject import Z95, Host, Predicted, Subject, host, subject_of
from agp.inspection._table import ArrayTable, Table, as_table, column_names

__all__ = [
    "Z95",
    "ArrayTable",
    "Effect",
    "Host",
    "Predicted",
    "Subject",
    "Table",
    "as_table",
    "average_prediction",
    "column_names",
    "host",
    "inducing_inputs",
    "partial_dependence",
    "subject_of",
]
