# pyright: reportMissingImports=false
"""`GPModule`, a torch module that holds an agp model, for training with torch optimisers alone or in larger modules."""

import json
from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from typing import Any, Self, TypeVar

from agp import tree
from agp.backend import backend_of
from agp.bounds import Batch
from agp.checks import check_finite, check_model
from agp.errors import missing_package_message
from agp.gradient import GradientMode, bound_of_batch
from agp.likelihoods import Prediction
from agp.priors import Limits, at_coordinates, limits_of, log_prior, to_coordinates
from agp.random import generator
from agp.repairs import public
from agp.training import initial_state, kept_leaves, place_draws, strip_addresses, untouched_leaves
from agp.updates import Adam

try:
    import torch
    from torch.utils._pytree import tree_map
except ImportError as error:
    raise ImportError(f"agp.interop.torch needs {missing_package_message('torch', 'torch')}.") from error

from agp.interop._torch_values import new_values, text_of_limits, values_of

__all__ = ["GPModule"]

Tensor = torch.Tensor
F = TypeVar("F", bound=Callable[..., Any])

RAW = "raw_"
"""The prefix of the names of parameters, which are unconstrained."""
LOW = (torch.float16, torch.bfloat16, torch.float32)
"""The dtypes of networks under autocast."""


def cast_under_autocast(method: F) -> F:
    """Decorate a method of a module, so that under autocast its tensors get the dtype of the module's arrays."""

    @wraps(method)
    def run(self: "GPModule", *args: Any, **kwargs: Any) -> Any:
        dtype = next(x.dtype for x in self._arrays().values() if x.is_floating_point())

        def cast(x: Any) -> Any:
            low = isinstance(x, Tensor) and x.dtype in LOW
            return x.to(dtype) if low and torch.is_autocast_enabled(x.device.type) else x

        return method(self, *tree_map(cast, args), **tree_map(cast, kwargs))

    return run  # type: ignore[return-value]


class GPModule(torch.nn.Module):
    """A torch module that holds an agp model: trained leaves are its parameters, and all other arrays its buffers.

    Every array of the model is in the module under the name of the leaf. A leaf that training changes is a
    `torch.nn.Parameter` with the unconstrained value, and its name starts with ``raw_``, as in
    ``process.kernel.raw_lengthscale``. The other leaves are buffers with their own names and values: units, training
    data, and frozen parameters. `state_dict`, `load_state_dict`, `to` and `copy.deepcopy` therefore apply to the whole
    model.

    Any optimiser keeps to the limits of parameters (`agp.priors.Between`), because the parameter of the module is then
    a coordinate z without limits: the unconstrained value is z + log(1 + exp(low - z)) - log(1 + exp(z - high)), where
    low and high are the limits of that value. A limit is approached, but not passed. A parameter whose value is a limit
    could not leave it, so it starts inside: by at most 1 % of its value or, if it may be negative, of its unit. Limits
    and the values of fixed entries are buffers with the prefixes ``low_`` and ``high_``.

    The classes, settings and sizes of the model are defined by the constructor, not by the state. The state records
    them, and `load_state_dict` raises a ValueError if they differ.

    With ``store_data=False``, a model such as `GPR` or `SGPR` does not store its data. `loss` and predictions take the
    training rows anew in each call, so a network can compute them, and its features are never out of date. The state
    then has no rows.

    The module computes in its own dtype, also inside `torch.autocast`. There, inputs and targets of half or single
    precision, such as features of the network, are converted to that dtype (as by torch's ``custom_fwd``). Elsewhere,
    convert them yourself, as in ``module.loss(features.to(torch.float32), y)``; `agp.to_backend` copies constants.

    A q(u) in the form of pseudo-observations starts as in `agp.train` (`agp.training.initial_state`). The arrays of
    `model` are copied, so training does not change `model`.

    Parameters
    ----------
    model
        An `agp.models.Model`. Its arrays are moved to torch if necessary.
    frozen
        One or several patterns of leaf names, such as ``"Z"`` or ``("Z", "likelihood.*")``. Matching leaves become
        buffers. Single entries, such as ``"kernel.lengthscale[0]"``, keep their values.
    store_data
        Whether the module stores the data of a model such as `GPR`. If false, `loss` uses its X and y as the data of
        the model, and predictions need ``data=(X, y)``.

    Raises
    ------
    TypeError, ValueError
        If `model` is not a model, a leaf has no value, a pattern matches nothing, or the priors do not fit the model.
    ValueError
        If the model has inverse factors, sites or chosen actions that become stale when parameters change, as in the
        posteriors `Relaxed` and `Dual`. Only agp's own updates change these arrays. A torch optimiser calls no updates,
        and `loss` does not call them, because a loss must not change the state of a module. Such a model can be trained
        with `agp.train`, and then be held with ``frozen="*"``.
    ValueError
        If `store_data` is false, but the model stores no data, such as `SVGP`, or has an array for each row with which
        it was built, such as the actions of `CaGP`.

    Examples
    --------
    A model without data:

    >>> module = GPModule(agp.SVGP.from_data(X, y, posterior="whitened"))
    >>> optimiser = torch.optim.Adam(module.parameters(), lr=0.02)
    >>> module.loss(X, y).backward()
    >>> module.set_values({"kernel.lengthscale": 0.5})
    >>> lengthscale = module.values()["process.kernel.lengthscale"]
    >>> held_out = agp.metrics.nlpd(module.log_density(X_new, y_new))

    A model whose data are features of a network:

    >>> module = GPModule(agp.GPR.from_data(network(X).detach(), y), store_data=False)
    >>> module.loss(network(X), y).backward()
    >>> mean, variance = module(network(X_new), data=(network(X), y))
    """

    def __init__(self, model: Any, /, *, frozen: str | Iterable[str] = (), store_data: bool = True) -> None:
        super().__init__()
        model = _on_torch(model)
        if not store_data:
            model = _without_rows(model)
        self._takes_data = not store_data
        moving = Adam(frozen=frozen)
        moving.init(model)  # checks the patterns and the priors
        _check_untouched(model, moving)
        model = initial_state(model, kept_leaves(model, [moving]))
        trained = moving.moves(model).leaves
        entries = tuple(pattern for pattern in moving.frozen if tree.whole_pattern(pattern) != pattern)
        limits = {name: ends for name, ends in limits_of(model, entries).items() if name in trained}
        self._keys = {name: _key_with(RAW, name) if name in trained else name for name in tree.leaves(model)}
        self._has_draws = any(model._draws(generator(0), 1))
        classes = {path: type(node).__name__ for path, node in tree.nodes(model, object).items()}
        leaves, raw = tree.leaves(model), to_coordinates(model, limits)
        for name, key in self._keys.items():
            *path, field = key.split(".")
            part = self._part_at(path, classes)
            if name in trained:
                part.register_parameter(field, torch.nn.Parameter(_copy(raw[name])))
            else:
                part.register_buffer(field, _copy(leaves[name]))
            for end, x in limits[name]._asdict().items() if name in limits else ():
                part.register_buffer(f"{end}_{name.rpartition('.')[2]}", _copy(x))
        self._limits = {name: text_of_limits(ends) for name, ends in limits.items()}
        self._outline = tree.with_leaves(model, dict.fromkeys(leaves, torch.empty(0)))

    def _part_at(self, path: list[str], classes: dict[str, str]) -> torch.nn.Module:
        """Return the module at a path, and add missing modules on the path."""
        part: torch.nn.Module = self
        for i, key in enumerate(path, 1):
            if key not in dict(part.named_children()):
                part.add_module(key, _Part(classes.get(".".join(path[:i]), "tuple")))
            part = part.get_submodule(key)
        return part

    def _arrays(self) -> dict[str, Tensor]:
        """Return the parameters and buffers that hold the leaves and the limits, by key."""
        ends = [_key_with(f"{end}_", name) for name in self._limits for end in Limits._fields]
        places = {key: key.rpartition(".") for key in (*self._keys.values(), *ends)}
        return {key: getattr(self.get_submodule(path), field) for key, (path, _, field) in places.items()}

    @cast_under_autocast
    def model(
        self,
        X: Tensor | None = None,
        y: Tensor | None = None,
        /,
        *,
        weights: Tensor | None = None,
        offset: Tensor | None = None,
        noise: Tensor | None = None,
    ) -> Any:
        """Build the model from the present parameters and buffers. torch can differentiate all uses of its leaves.

        Call this method again after each change of the parameters. For repeated predictions, store
        ``module.model().predictor()``, computed inside `torch.no_grad`.

        Parameters
        ----------
        X, y, weights, offset, noise
            The data of the model and what is known of their rows, as in `agp.GPR.from_data`, if and only if the module
            was built with ``store_data=False``.

        Raises
        ------
        TypeError, ValueError
            If the data are missing, needless, or do not fit the model.
        """
        model = self._stored_model()
        known = {"weights": weights, "offset": offset, "noise": noise}
        rows = {"X": X, "y": y} | known
        self._check_rows_given(model, {name for name, x in rows.items() if x is not None})
        return model._replace_data(model._batch(X, y, **known)) if self._takes_data else model

    def _check_rows_given(self, model: Any, given: set[str]) -> None:
        """Raise ValueError if data are given to a module that stores its data or needs none, or the other way round."""
        name = type(model).__name__
        if self._takes_data and not given >= {"X", "y"}:
            raise ValueError(
                f"this module holds {name} without its data; pass the inputs and targets of the training rows, as "
                "model(network(X), y) or, in a prediction, as data=(network(X), y). values() needs no data."
            )
        if given and not self._takes_data:
            why = f"stores the data of {name}" if model._holds_data else f"holds {name}, which needs no data"
            other = ", or build the module with store_data=False" if model._holds_data else ""
            raise ValueError(f"data was given, but this module {why}; omit data={other}.")

    def _stored_model(self) -> Any:
        arrays = self._arrays()
        fixed = {name: arrays[key] for name, key in self._keys.items() if key == name}
        raw = {name: arrays[key] for name, key in self._keys.items() if key != name}
        return at_coordinates(tree.with_leaves(self._outline, fixed), raw, self._limits_of(arrays))

    def _limits_of(self, arrays: Mapping[str, Tensor]) -> dict[str, Limits]:
        """Return the limits of trained leaves, from the arrays of the module."""
        ends = {name: [arrays[_key_with(f"{end}_", name)] for end in Limits._fields] for name in self._limits}
        return {name: Limits(*x) for name, x in ends.items()}

    @cast_under_autocast
    @public(ignore="underflow")
    def loss(
        self,
        X: Tensor,
        y: Tensor,
        /,
        *,
        scale: float = 1.0,
        weights: Tensor | None = None,
        offset: Tensor | None = None,
        noise: Tensor | None = None,
        gradient: GradientMode = "closed-form",
        memory: float | None = None,
    ) -> Tensor:
        """Compute the loss, minus the bound, as a sum over the N rows of the data. Training minimises it.

        If the model has priors, the loss is minus the sum of the bound and `agp.priors.log_prior`, and `scale` does not
        apply to the log prior.

        In training mode, models with random bounds, such as deep models, draw new numbers in each call.
        `torch.manual_seed` sets their seed. In evaluation mode (`eval`), the numbers are always the same.

        Parameters
        ----------
        X, y
            Inputs [B, D], which may be outputs of another module, and targets [B] or [B, K], such as integer labels. If
            the module was built with ``store_data=False``, they are all data of the model.
        scale
            The factor N / B for a minibatch.
        weights, offset, noise, gradient, memory
            As in `agp.models.Model.bound`. Gradients with respect to X require a budget for all rows at once.

        Raises
        ------
        TypeError, ValueError
            If X and y do not fit the model, or if the model predicts from other data than X and y. Modules that store
            the data of models such as `GPR` do not accept inputs that depend on parameters, because the stored inputs
            would not follow.
        ValueError
            If X has NaN or infinite entries, or if a target is NaN, infinite or outside the support of the likelihood,
            such as a label that is no class. On a GPU, the host waits for X and the targets, as it does for each
            factorisation. Inside `torch.func.vmap`, the loss is NaN instead.
        """
        model, y = self._stored_model(), _as_numbers(y, X)
        batch = model._batch(X, y, scale=scale, weights=weights, offset=offset, noise=noise)
        check_finite("X", X, remedy="check the inputs of the network, and try a smaller learning rate")
        if self._takes_data:
            if scale != 1.0:
                raise ValueError(
                    f"scale is {scale!r}, but X and y are all data of {type(model).__name__} with store_data=False; "
                    "omit scale=, or use SVGP for minibatches."
                )
            model = model._replace_data(batch)
        elif model._holds_data:
            _check_stored_data(model, batch)
        if self.training and self._has_draws:
            seed = int(torch.randint(2**62, ()))
            batch = batch._replace(draws=place_draws(batch.X, model._draws(generator(seed), batch.X.shape[0])))
        value = bound_of_batch(model, batch, gradient, memory=memory)[0]
        return -(value + log_prior(model)[0]) if model.priors else -value

    @cast_under_autocast
    def forward(
        self,
        X: Tensor,
        *,
        data: tuple[Tensor, Tensor] | None = None,
        observed: bool = False,
        offset: Tensor | None = None,
        noise: Tensor | None = None,
        memory: float | None = None,
    ) -> Prediction:
        """Predict means and variances [..., N, P] at X [..., N, D]; see `agp.Predictor.predict`.

        torch can differentiate predictions with respect to X, the data and the parameters. Use `torch.no_grad`
        otherwise.

        Parameters
        ----------
        X
            Inputs [..., N, D].
        data
            The inputs and targets of the training rows, if and only if the module was built with ``store_data=False``.
            For rows with weights, offsets or known noise, use ``model(X, y, weights=...).predict``.
        observed, offset, noise, memory
            As in `agp.Predictor.predict`.
        """
        return self.model(*(() if data is None else data)).predict(
            X, observed=observed, offset=offset, noise=noise, memory=memory
        )

    @cast_under_autocast
    def log_density(
        self,
        X: Tensor,
        y: Tensor,
        /,
        *,
        data: tuple[Tensor, Tensor] | None = None,
        offset: Tensor | None = None,
        noise: Tensor | None = None,
        memory: float | None = None,
    ) -> Tensor:
        """Compute the log densities [N] of targets y at X, which need not be training rows.

        Minus their mean is the NLPD, as in ``agp.metrics.nlpd(module.log_density(X, y))``.

        Parameters
        ----------
        X, y, offset, noise, memory
            As in `agp.Predictor.log_density`.
        data
            As in `forward`.
        """
        y = _as_numbers(y, X)
        return self.model(*(() if data is None else data)).log_density(X, y, offset=offset, noise=noise, memory=memory)

    def _apply(self, fn: Any, recurse: bool = True) -> Self:
        """Convert the arrays, as `to` and `float` do. Raise TypeError for half precision, such as `half`."""
        first = next(x for x in self._arrays().values() if x.is_floating_point())
        if (dtype := fn(first.detach()).dtype) not in (torch.float32, torch.float64):
            raise TypeError(
                f"GPModule computes in float32 or float64, not {dtype}; convert only the network, or use autocast."
            )
        return super()._apply(fn, recurse)

    # -- values and state ------------------------------------------------------------------------------------------

    @torch.no_grad()
    def values(self) -> dict[str, Tensor]:
        """Return copies of all parameters of the model, trained or frozen, by name, in the units of the model.

        No data are needed, also with ``store_data=False``. `set_values` takes the result, or a part of it.

        Examples
        --------
        >>> noise = module.values()["likelihood.noise_variance"]
        """
        return values_of(self._stored_model())

    @torch.no_grad()
    def set_values(self, values: Mapping[str, Any], /) -> None:
        """Set parameters of the model, trained or frozen, in place.

        Parameters
        ----------
        values
            Numbers or arrays by name, as in ``{"kernel.lengthscale": [0.5, 2.0], "noise_variance": 0.1}``, in the units
            of the model. Names are patterns as for `frozen`: they match the ends of names, and may name single entries.
            A number is used for all entries. Later names override earlier ones. A value at a limit is moved inside by
            at most 1 %, as at the start.

        Raises
        ------
        TypeError, ValueError
            If a name matches no parameter, or a value has another shape or is outside the constraint or the limits of
            the parameter. The module then does not change.
        """
        arrays, model = self._arrays(), self._stored_model()
        limits = self._limits_of(arrays)
        new = new_values(model, values, self._keys, limits)
        raw = to_coordinates(tree.with_leaves(model, new), limits)
        if zero := [name for name in new if self._keys[name] != name and not bool(raw[name].isfinite().all())]:
            raise ValueError(f"{zero[0]} is trained, so it cannot be set to zero; build the module with frozen=.")
        for name, x in new.items():
            arrays[self._keys[name]].copy_(x if self._keys[name] == name else raw[name])

    def get_extra_state(self) -> Tensor:
        """Return the classes and settings of the model and the shapes of its arrays, as JSON in an array of bytes."""
        return torch.frombuffer(bytearray(json.dumps(self._structure()), "utf-8"), dtype=torch.uint8)

    def set_extra_state(self, state: Tensor) -> None:
        """Raise ValueError unless `state`, from `get_extra_state`, describes a model like this one."""
        here, there = self._structure(), json.loads(bytes(state.tolist()))
        differing = [path for path in there | here if there.get(path) != here.get(path)]
        if differing:
            first, more = differing[0], len(differing) - 1
            also = f" (and {more} more {'difference' if more == 1 else 'differences'})" if more else ""
            raise ValueError(
                f"{first or 'the model'} is {there.get(first, 'absent')} in the state, but {here.get(first, 'absent')} "
                f"in this module{also}; build the module with the parts, settings and sizes of the saved module."
            )

    def _structure(self) -> dict[str, str]:
        settings = {path: strip_addresses(text) for path, text in tree.settings(self._outline).items()}
        settings |= {f"the limits of {name}": text for name, text in self._limits.items()}
        return settings | {key: f"an array {list(x.shape)}" for key, x in self._arrays().items()}

    def extra_repr(self) -> str:
        """Return the class of the model, for the text form of the module."""
        return type(self._outline).__name__


class _Part(torch.nn.Module):
    """The arrays of a part of the model. In the text form of the module, it has the name of the part's class."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self._name = name

    def _get_name(self) -> str:
        return self._name


def _key_with(prefix: str, name: str) -> str:
    path, dot, field = name.rpartition(".")
    return path + dot + prefix + field


def _as_numbers(y: Tensor, X: Tensor) -> Tensor:
    """Return targets, of which integers, such as labels, have the dtype of X."""
    return y if y.is_floating_point() or y.is_complex() else y.to(X.dtype)


def _copy(x: Tensor) -> Tensor:
    return x.detach().clone(memory_format=torch.contiguous_format)


def _on_torch(model: Any) -> Any:
    """Return the model with torch tensors as leaves; raise an error if it is not a model or a leaf has no value."""
    check_model(model)
    if missing := tree.missing(model):
        raise ValueError(
            f"{', '.join(missing)} has no value; build the model with from_data, which sets initial values."
        )
    reference = model._reference()[1]
    model = tree.place_leaves(model, reference)
    return model if backend_of(reference).name == "torch" else tree.to_backend(model, "torch")


def _without_rows(model: Any) -> Any:
    """Return a model that stores data without their rows: X [0, D] and y [0, P] show what the data must be like."""
    held = model._held_rows()
    X = model._reference()[1]
    return model._replace_data(Batch(held.get("X", X)[:0], held.get("y", X)[:0]))


def _check_untouched(model: Any, moving: Adam) -> None:
    """Raise ValueError if leaves that only agp's updates change would become stale."""
    left = sorted(frozenset().union(*untouched_leaves(model, [moving]).values()))
    if left:
        nodes = tree.nodes(model, object)
        owners = dict.fromkeys(type(nodes[name.rpartition(".")[0]]).__name__ for name in left)
        raise ValueError(
            f"torch optimisers do not update {', '.join(left)} of {' and '.join(owners)}, which only agp's updates "
            "change; use a model without such arrays, such as SVGP with posterior='whitened', or train the model with "
            "agp.train and pass frozen='*'."
        )


def _check_stored_data(model: Any, batch: Batch) -> None:
    """Raise ValueError if the model stores other data than a batch, or data that would not follow its inputs."""
    if batch.X.requires_grad:
        name = type(model).__name__
        raise ValueError(
            f"X depends on parameters, but {name} predicts from the inputs that it stores, which would not follow; "
            "build the module with store_data=False, use SVGP, or detach X."
        )
    model._check_same_data(batch)
