"""The base class of what summaries call the parts of a model."""

from typing import ClassVar


class Part:
    """Base class of kernels, inducing variables, actions, posteriors, mean functions and likelihoods."""

    _is_counted: ClassVar[bool] = False
    """Whether the part has a number of elements, `count`."""
    _is_kernel: ClassVar[bool] = False
    """Whether vectors of leaves may have an entry for each input column."""
    _reads_inputs: ClassVar[bool] = False
    """Whether the part is a function of the input columns, and no kernel."""

    def _columns_within(self, columns: tuple[str, ...], /) -> tuple[str, ...]:
        """Return the names of the columns that nested parts see, given those that this part sees."""
        return columns
