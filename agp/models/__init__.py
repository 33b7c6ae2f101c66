"""Models, with their parameters and predictions. Training is in `agp.training`."""

from agp.models._base import Model
from agp.models._cggp import CGGP
from agp.models._computation_aware import CaGP
from agp.models._deep_gp import DeepGP
from agp.models._ensemble import Ensemble
from agp.models._gpr import GPR
from agp.models._gpr_mixture import GPRMixture
from agp.models._growth import add_inducing
from agp.models._near_regression import NNGP, VIF
from agp.models._near_sites import TNNGP
from agp.models._several_outputs import Coregionalised
from agp.models._sgpr import SGPR
from agp.models._solve import SOLVEGP
from agp.models._solve_regression import SOLVEGPR
from agp.models._svgp import SVGP
from agp.models._tsvgp import TSVGP
from agp.models._tvgp import TVGP
from agp.models._variational import Variational

__all__ = [
    "CGGP",
    "GPR",
    "NNGP",
    "SGPR",
    "SOLVEGP",
    "SOLVEGPR",
    "SVGP",
    "TNNGP",
    "TSVGP",
    "TVGP",
    "VIF",
    "CaGP",
    "Coregionalised",
    "DeepGP",
    "Ensemble",
    "GPRMixture",
    "Model",
    "Variational",
    "add_inducing",
]

# for other subpackages
from agp.models._computation_aware import NUM_ACTIONS
from agp.models._growth import growing_part
from agp.models._neighbours import WithNeighbours
from agp.models._sgpr import collapsed_model, exact_model, shared_covariance
from agp.models._sites import SiteModel
from agp.models._start import ignore_moved, valid_data, warn_of_moved
