"""Covariance functions and their pullbacks to hyperparameters and inputs."""

from agp.kernels._active_dims import ActiveDims
from agp.kernels._base import Kernel
from agp.kernels._categories import Overlap, RandomEffects
from agp.kernels._centred import Centred, additive
from agp.kernels._composites import Product, Scaled, Sum
from agp.kernels._constant import Constant, White
from agp.kernels._features import Features, Waves, combine_map, features_of
from agp.kernels._jets import Jets
from agp.kernels._level_covariance import LevelCovariance
from agp.kernels._linear import Linear
from agp.kernels._linearisation import Linearisation
from agp.kernels._matern import Matern12, Matern32, Matern52
from agp.kernels._on_sphere import OnSphere
from agp.kernels._parameters import check_number, check_per_column, per_column
from agp.kernels._periodic import Periodic, Seasonal
from agp.kernels._projected import Projected
from agp.kernels._rational_quadratic import RationalQuadratic
from agp.kernels._slopes import WithSlopes, stack_slopes, tag_rows
from agp.kernels._stationary import RBF, Stationary
from agp.kernels._terms import terms_of
from agp.kernels._warped import Warped

__all__ = [
    "RBF",
    "ActiveDims",
    "Centred",
    "Constant",
    "Features",
    "Jets",
    "Kernel",
    "LevelCovariance",
    "Linear",
    "Linearisation",
    "Matern12",
    "Matern32",
    "Matern52",
    "OnSphere",
    "Overlap",
    "Periodic",
    "Product",
    "Projected",
    "RandomEffects",
    "RationalQuadratic",
    "Scaled",
    "Seasonal",
    "Stationary",
    "Sum",
    "Warped",
    "Waves",
    "White",
    "WithSlopes",
    "additive",
    "check_number",
    "check_per_column",
    "features_of",
    "per_column",
    "stack_slopes",
    "tag_rows",
    "terms_of",
]

# for other subpackages
from agp.kernels._active_dims import input_columns
from agp.kernels._by_name import KERNELS, kernel_or_auto, parse_kernel
from agp.kernels._level_covariance import EntriesOfLevels, count_levels, entries_of_levels
from agp.kernels._on_sphere import AXES, place_columns
from agp.kernels._relevance import pair_rows, variance_shares
from agp.kernels._stacks import count_settings
from agp.kernels._terms import columns_of, kernel_text
from agp.kernels._warped import Warp
