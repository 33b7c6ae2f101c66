"""Reports of numerical repairs, from any function, compiled or not, to one warning of the public function called.

Code that repairs something calls `report` with arrays. `report` also works while a function is traced. Plug-ins collect
the reports of each traced function, such as a branch, a loop or a compiled step. The arrays of these reports become
additional results of the function, and are reported again outside the function. A `Tally` reads the reports at the end
of a public function, or in the training loop.
"""

from agp.backend import collect_reports
from agp.repairs._reports import Kind, Report, Tally, pack_reports, propagate_reports, report, sum_reports

__all__ = ["Kind", "Report", "Tally", "collect_reports", "pack_reports", "propagate_reports", "report", "sum_reports"]

# for other subpackages
from agp.repairs._derived import derive_pullbacks, derived_pullback, value_of
from agp.repairs._public import at_inputs, on_instance, public, with_values
from agp.repairs._reports import fetch_reports, outside
from agp.repairs._speculation import speculate
