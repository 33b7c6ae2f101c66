"""The records of agp's own methods, in the order in which lists show them."""

from collections.abc import Callable
from functools import partial
from typing import Any

from agp import posteriors
from agp.actions import ConjugateGradients
from agp.backend import Array
from agp.methods._record import Method
from agp.models import (
    CGGP,
    GPR,
    NNGP,
    NUM_ACTIONS,
    SGPR,
    SOLVEGP,
    SOLVEGPR,
    SVGP,
    TNNGP,
    TSVGP,
    TVGP,
    VIF,
    CaGP,
    DeepGP,
)
from agp.training import SITE_RATE, recipe
from agp.updates import ActionsUpdate, NaturalGradient, Update

SPARSE = ("num_inducing", "seed")
GROUPS = (*SPARSE, "num_orthogonal")
ALL_ROWS = 400
"""With at most this many rows, more inducing inputs cost less than the evaluations that move fewer of them."""
ACTIONS = ("num_actions", "support", "seed")


def _svgp(name: str, description: str, posterior: Any, page: str = "methods/svgp", **more: Any) -> Method:
    return Method(
        name=name,
        description=description,
        model=SVGP,
        build=partial(SVGP.from_data, posterior=posterior),
        takes=(*SPARSE, "outputs"),
        can_grow=True,
        page=page,
        **more,
    )


def _solve(name: str, description: str, posterior: Any, second: Any = None, **more: Any) -> Method:
    build = partial(SOLVEGP.from_data, posterior=posterior, **({"second": second} if second else {}))
    page = "methods/solve"
    return Method(name=name, description=description, model=SOLVEGP, build=build, takes=GROUPS, page=page, **more)


def _deep(name: str, layer: str, posterior: Any) -> Method:
    build = partial(DeepGP.from_data, posterior=posterior)
    takes, description = (*SPARSE, "layers"), f"deep GP, {layer} layers"
    return Method(name=name, description=description, model=DeepGP, build=build, takes=takes, page="deep")


def _deep_solve(X: Array, y: Array, *, num_inducing: int, num_orthogonal: int | None = None, **parts: Any) -> DeepGP:
    """Build a deep GP with two groups of inducing variables per layer. By default, the groups have equal size."""
    M2 = num_inducing if num_orthogonal is None else num_orthogonal
    return DeepGP.from_data(X, y, posterior=posteriors.Whitened, num_inducing=num_inducing, num_orthogonal=M2, **parts)


def _with_policy(X: Array, y: Array, *, num_actions: int | None = None, **parts: Any) -> CaGP:
    count = min(NUM_ACTIONS, X.shape[0]) if num_actions is None else num_actions
    return CaGP.from_data(X, y, policy=ConjugateGradients(count), **parts)


def _dual_posterior(tied: Any) -> Callable[..., Any]:
    return partial(SVGP.from_data, posterior=partial(posteriors.Dual.from_prior, tied=tied))


STORAGES: dict[str, Callable[..., Any]] = {
    "datum": TSVGP.from_data,
    "natural": _dual_posterior("natural"),
    "kernel": _dual_posterior("kernel"),
    "white": _dual_posterior("white"),
    "inverse-free": partial(SVGP.from_data, posterior=posteriors.DualInverseFree),
}
"""The constructors of t-SVGP for each way to store its sites: one site per datum, or sites tied in some coordinates."""


def _with_storage(X: Array, y: Array, *, storage: str = "datum", **parts: Any) -> Any:
    return STORAGES[storage](X, y, **parts)


def _with_new_actions(model: Any, steps: int, **settings: Any) -> list[Update]:
    """Return the updates of `agp.recipe`, preceded in each step by an update of the conjugate-gradient actions."""
    return [ActionsUpdate(ConjugateGradients(model.actions.count)), *recipe(model, steps, **settings)]


def _with_natural_gradients(model: Any, steps: int, **settings: Any) -> list[Update]:
    """Return the updates of `agp.recipe`, and `NaturalGradient` for q(u) with the step size of site updates."""
    return [NaturalGradient(SITE_RATE), *recipe(model, steps, frozen="posterior.*", **settings)]


METHODS: dict[str, Method] = {
    method.name: method
    for method in (
        Method(
            name="gpr",
            description="exact GP",
            model=GPR,
            gaussian_only=True,
            dense_arrays=(6, 0),
            page="methods/gpr",
        ),
        Method(
            name="sgpr",
            description="collapsed sparse GP",
            model=SGPR,
            takes=SPARSE,
            gaussian_only=True,
            can_grow=True,
            page="methods/svgp",
        ),
        Method(
            name="nngp",
            description="nearest neighbours",
            model=NNGP,
            takes=("seed",),
            gaussian_only=True,
            page="methods/neighbours",
        ),
        Method(
            name="vif",
            description="inducing inputs and nearest neighbours",
            model=VIF,
            takes=SPARSE,
            gaussian_only=True,
            page="methods/neighbours",
        ),
        _svgp("msvgp", "M-SVGP, marginal", posteriors.Marginal, all_rows=ALL_ROWS),
        _svgp("wsvgp", "W-SVGP, whitened", posteriors.Whitened, all_rows=ALL_ROWS),
        _svgp("lsvgp", "L-SVGP, likelihood parameterisation", posteriors.LikelihoodForm),
        _svgp("rsvgp", "R-SVGP, inverse-free", posteriors.Relaxed, "methods/rsvgp"),
        _svgp("asvgp", "A-SVGP, inverse-free whitened", posteriors.InverseFree),
        _svgp("qsvgp", "W-SVGP with natural gradients of q(u)", posteriors.Whitened, updates=_with_natural_gradients),
        Method(
            name="tsvgp",
            description="t-SVGP, dual",
            model=TSVGP,
            build=_with_storage,
            takes=(*SPARSE, "storage"),
            storages=tuple(STORAGES),
            page="methods/dual",
        ),
        Method(
            name="tvgp",
            description="t-VGP, dual without inducing inputs",
            model=TVGP,
            dense_arrays=(3, 8),
            page="methods/dual",
        ),
        Method(
            name="tnngp", description="t-NNGP, dual with nearest neighbours", model=TNNGP, page="methods/neighbours"
        ),
        _solve("solve", "SOLVE-GP, orthogonal groups", posteriors.Whitened),
        _solve("odvgp", "orthogonally decoupled GP", posteriors.Whitened, posteriors.PriorSpread),
        Method(
            name="solve-collapsed",
            description="SOLVE-GP, collapsed",
            model=SOLVEGPR,
            takes=GROUPS,
            gaussian_only=True,
            page="methods/solve",
        ),
        _solve("solve-relaxed", "SOLVE-GP, inverse-free", posteriors.RelaxedOrthogonal, min_orthogonal=1),
        Method(
            name="cagp-opt",
            description="computation-aware GP, learned sparse actions",
            model=CaGP,
            takes=ACTIONS,
            gaussian_only=True,
            page="methods/cagp",
        ),
        Method(
            name="cagp-cg",
            description="computation-aware GP, conjugate gradients",
            model=CaGP,
            build=_with_policy,
            takes=ACTIONS,
            gaussian_only=True,
            updates=_with_new_actions,
            page="methods/cagp",
        ),
        Method(
            name="cggp",
            description="exact GP by conjugate gradients",
            model=CGGP,
            gaussian_only=True,
            page="methods/gpr",
        ),
        _deep("deep-msvgp", "M-SVGP", posteriors.Marginal),
        _deep("deep-wsvgp", "W-SVGP", posteriors.Whitened),
        _deep("deep-lsvgp", "L-SVGP", posteriors.LikelihoodForm),
        _deep("deep-rsvgp", "R-SVGP", posteriors.Relaxed),
        _deep("deep-asvgp", "A-SVGP", posteriors.InverseFree),
        Method(
            name="deep-solve",
            description="deep GP, SOLVE-GP layers",
            model=DeepGP,
            build=_deep_solve,
            takes=(*GROUPS, "layers"),
            page="deep",
        ),
    )
}
"""The methods by name. `agp.methods.register` adds further ones."""
