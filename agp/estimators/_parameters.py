"""Parameters of estimators, and of kernels, likelihoods and means among them: ``kernel__parts__0__lengthscale``.

The name of a leaf, a setting or a part of a kernel is its path, with two underscores in place of each dot.
"""

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from sklearn.base import BaseEstimator

from agp import tree
from agp.checks import check_instance
from agp.errors import name_remedy, quote
from agp.kernels import Kernel
from agp.likelihoods import Likelihood
from agp.means import Mean

PARTS = (Kernel, Likelihood, Mean)
"""The types of parameters that have parameters of their own."""
KINDS = {"kernel": Kernel, "likelihood": Likelihood, "mean_function": Mean}


def part_parameters(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters of the kernel, likelihood and mean among the parameters of an estimator, by name."""
    found = {}
    for own, value in given.items():
        if isinstance(value, PARTS):
            found |= {f"{own}__{path.replace('.', '__')}": x for path, x in _arguments_of(value).items()}
    return found


def _arguments_of(part: Any) -> dict[str, Any]:
    """Return the nested parts, the leaves and the settings of a part, by path.

    Units of leaves are left out, and parts that follow others.
    """
    found: dict[str, Any] = {}
    followers = tuple(tree.tied_parts(part))
    for path, node in tree.nodes(part, object).items():
        if path in followers or path.startswith(tuple(f"{other}." for other in followers)):
            continue
        own = {tree.join_path(path, name): x for name, x in tree.arguments(node).items()}
        found |= ({path: node} if path else {}) | own
    return found


def resolve_parameters(estimator: BaseEstimator, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return new values of the estimator's own parameters, given values of these and of parameters of their parts.

    Parts are copied, never changed.

    Raises
    ------
    TypeError
        If a part of a kernel would be replaced by something else.
    ValueError
        If the estimator has no parameter of a name.
    """
    known = estimator.get_params(deep=False)
    own: dict[str, Any] = {}
    nested: dict[str, dict[str, Any]] = defaultdict(dict)
    for name, value in given.items():
        head, _, inner = name.partition("__")
        if head not in known:
            remedy = name_remedy(head, known, "its parameters are")
            raise ValueError(f"Invalid parameter {quote(head)} for {type(estimator).__name__}; {remedy}")
        if inner:
            nested[head][inner] = value
        else:
            own[head] = value
    for head, values in nested.items():
        own[head] = _with_arguments(head, (known | own)[head], values)
    return own


def _with_arguments(own: str, part: Any, new: Mapping[str, Any]) -> Any:
    """Return a copy of a kernel or likelihood, which is the parameter `own`, with new arguments by nested name."""
    for inner, value in sorted(new.items(), key=lambda item: item[0].count("__")):  # parts before their leaves
        name = quote(f"{own}__{inner}")
        if not isinstance(part, PARTS):
            example = " such as kernel=agp.RBF()" if own == "kernel" else ""
            objects = f", or pass an object{example}, which has some" if own in KINDS else ""
            raise ValueError(
                f"Invalid parameter {name}: {own} is {part!r:.60}, which has no parameters to set; set {own} to a new "
                f"value{objects}."
            )
        known = {path.replace(".", "__"): path for path in _arguments_of(part)}
        if inner not in known:
            remedy = name_remedy(f"{own}__{inner}", [f"{own}__{one}" for one in known], "its parameters are")
            raise ValueError(f"Invalid parameter {name} for {type(part).__name__}; {remedy}")
        part = tree.equalise(_with_argument(part, known[inner], value, f"{own}__{inner}"))
    return part


def _with_argument(part: Any, path: str, value: Any, name: str) -> Any:
    """Return a copy of a part with a new value at a path, which is that of a nested part, a leaf or a setting."""
    nodes = tree.nodes(part, object)
    if path in nodes:
        kind = next((one for one in PARTS if isinstance(nodes[path], one)), type(nodes[path]))
        check_instance(name, value, kind)
        return tree.replace(part, {path: value})
    at, _, field = path.rpartition(".")
    node = tree.with_argument(nodes[at], field, value)
    return tree.replace(part, {at: node}) if at else node
