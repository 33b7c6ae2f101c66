"""What a trained model or estimator says about a table, as numbers: predictions along a line, the effect of a column.

`agp.plot` draws these numbers; nothing here needs an extra.
"""

from agp.inspection._effects import Effect, partial_dependence
from agp.inspection._inducing import inducing_inputs

__all__ = ["Effect", "inducing_inputs", "partial_dependence"]

# for other rooms
from agp.inspection._effects import average_prediction
from agp.inspection._subject import Z95, Host, Predicted, Subject, host, subject_of
from agp.inspection._table import ArrayTable, Table, as_table, column_names
