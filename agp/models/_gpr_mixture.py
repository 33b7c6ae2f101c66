"""Exact GP regression, averaged over the hyperparameters."""

from typing import Any, ClassVar

from agp import tree
from agp.backend import Array, Pullback, backend_of, to_numpy
from agp.bounds import Batch, stacked_leave_one_out, targets_of
from agp.errors import count_of, there_are
from agp.kernels import Constant, Kernel, count_settings
from agp.likelihoods import Gaussian
from agp.linalg import groups_of
from agp.means import Mean, ZeroMean
from agp.models._base import Model
from agp.models._ensemble import OfModels
from agp.models._gpr import GPR
from agp.priors import Priors
from agp.processes import ExactMixture, Settings, check_shares
from agp.random import weighted_quantiles
from agp.repairs import public

SHOWN_SETTINGS = 48
"""The number of settings from which the relevance of columns is computed."""


@tree.model
class GPRMixture(OfModels):
    """Exact GP regression with uncertain hyperparameters: a mixture of exact GPs with the same data.

    The predictive distribution is sum_s w_s p(y | x, data, theta_s), for S weighted settings theta_s of the
    hyperparameters. `agp.integrate` chooses the settings, so that sums over them approximate integrals over the
    posterior distribution of the hyperparameters. Predictions take O(S N^2) operations per row and O(S N^2) memory.

    Parameters
    ----------
    models
        A `GPR` for each kernel, with the hyperparameters at the mode of their posterior, and the same data.
    settings
        The settings of each of these models.
    shares
        The weights w [S] of all settings, which are positive with the sum 1, in the order of `settings`.
    mean_function
        The prior mean h, which is the same for all settings. `models` have the posterior mean of h plus a constant.
    level
        The prior variance of this constant (0-d), which is integrated over; None means that there is none.
    priors
        See `SVGP`.

    Examples
    --------
    Four rows hardly determine the lengthscale. Predictions average over settings from short to long.

    >>> import numpy as np
    >>> import agp
    >>> X = np.asarray([[0.0], [1.0], [2.0], [4.0]])
    >>> y = np.asarray([1.0, 3.0, 2.0, 2.5])
    >>> model = agp.integrate(agp.GPR.from_data(X, y), settings=20).model
    >>> isinstance(model, agp.GPRMixture), round(float(np.sum(model.shares)), 6)
    (True, 1.0)
    >>> lengthscales = model.settings[0].kernel.lengthscale
    >>> bool(np.max(lengthscales) > 5.0 * np.min(lengthscales))
    True
    """

    models: tuple[GPR, ...]
    settings: tuple[Settings, ...]
    shares: Array = tree.constant()
    mean_function: Mean = ZeroMean()
    level: Array | None = tree.constant(default=None, optional=True)
    priors: Priors = ()

    _holds_data: ClassVar[bool] = True
    _built_by: ClassVar[str] = "agp.integrate(model) builds one"

    def __post_init__(self) -> None:
        if not (isinstance(self.models, tuple) and self.models and all(isinstance(one, GPR) for one in self.models)):
            raise TypeError("models must be a tuple of one or more GPR; agp.integrate(model) builds a GPRMixture.")

    @property
    def mode(self) -> GPR:
        """The model with the hyperparameters at the mode, for the kernel with the largest weight."""
        return self.models[self._heaviest]

    @property
    def _heaviest(self) -> int:
        totals = self.kernel_shares()
        return totals.index(max(totals))

    @property
    def kernel(self) -> Kernel:
        """The kernel of `mode`."""
        return self.mode.kernel

    @property
    def likelihood(self) -> Gaussian:  # type: ignore[override]
        """The likelihood of `mode`."""
        return self.mode.likelihood

    @property
    def X(self) -> Array:  # noqa: N802 - as in `GPR`
        """The training inputs [N, D]."""
        return self.models[0].X

    @property
    def y(self) -> Array:
        """The training targets [N, P]."""
        return self.models[0].y

    @property
    def weights(self) -> Array | None:
        """The weights of the training rows, as in `GPR`."""
        return self.models[0].weights

    @property
    def noise(self) -> Array | None:
        """The known noise variances of the training rows [N, 1], as in `GPR`."""
        return self.models[0].noise

    def kernel_shares(self) -> list[float]:
        """Return the total weight of the settings of each kernel."""
        return [float(part.sum()) for part in self._shares_by_kernel()]

    def _shares_by_kernel(self) -> list[Any]:
        """Return the weights of the settings of each kernel, on the host."""
        shares = to_numpy(self.shares)
        return [shares[place] for place in groups_of([one.count for one in self.settings])]

    @public(ignore="underflow")
    def leave_one_out(self) -> Array:
        """Compute the leave-one-out log densities log p(y_n | all other rows) [N] of the mixture.

        The density is 1 / E[1 / p(y_n | other rows, theta)], where the expectation is over the posterior distribution
        of the hyperparameters given all rows. The weights of the settings are therefore proportional to
        w_s / p(y_n | other rows, theta_s).

        Source: Gelfand, Dey & Chang, "Model determination using predictive distributions", 1992.
        """
        xp = backend_of(self.X).xp
        data = self.models[0]._data
        centred = data._replace(y=targets_of(data) - self.mean_function(data.X)[0], offset=None)
        parts = [stacked_leave_one_out(one.kernel, one.noise, centred, level=self.level) for one in self.settings]
        densities = xp.concat(parts, axis=0)
        least = xp.min(densities, axis=0)
        return least - xp.log(self.shares @ xp.exp(least - densities))

    def setting(self, s: int, /) -> GPR:
        """Return the exact GP of a setting, from 0 to S - 1.

        Its constant mean is the posterior mean of the constant given the setting. The average of the predicted means of
        all settings, with the weights `shares`, is therefore the mean that the mixture predicts. The variances of the
        mixture also contain the uncertainty of the constant.
        """
        place = s
        for model, settings in zip(self.models, self.settings, strict=True):
            if 0 <= place < settings.count:
                likelihood = tree.with_leaves(model.likelihood, {"noise_variance": settings.noise[place, ...]})
                parts = {"kernel": settings.kernel.setting(place), "likelihood": likelihood}
                return self._with_own_constant(tree.replace(model, parts))
            place -= settings.count
        raise IndexError(f"setting {s} does not exist; {there_are(self.shares.shape[0], 'setting')}, numbered from 0.")

    def _with_own_constant(self, one: GPR) -> GPR:
        """Return the exact GP of a setting with the posterior mean of the constant, which `level` gives a variance."""
        mean, value = self.mean_function, tree.leaves(self.mean_function).get("value")
        if self.level is None or value is None:
            return one
        whole = tree.replace(one, {"kernel": one.kernel + Constant(self.level), "mean_function": mean})
        term = whole.predictor().components(one.X[:1, :]).mean[0, :, -2]  # the last one is the mean function
        return tree.replace(one, {"mean_function": tree.with_leaves(mean, {"value": value + term})})

    # -- protocol ---------------------------------------------------------------------------------------------------

    def _batch(self, X: Array, y: Array, /, **known: Any) -> Batch:
        return self.models[0]._batch(X, y, **known)

    def _check_same_data(self, batch: Batch, /) -> None:
        self.models[0]._check_same_data(batch)

    def _check_parts(self) -> None:
        for model, one in zip(self.models, self.settings, strict=True):
            model._check_parts()
            if count_settings(one.kernel) != one.count:
                raise ValueError(
                    f"the kernel has {count_of(count_settings(one.kernel), 'setting')}, but the noise has {one.count}."
                )
        check_shares("shares", "setting", self.shares, sum(one.count for one in self.settings), self._reference())

    def _objective(self, batch: Batch, /, *, memory: float | None = None) -> tuple[Array, Pullback]:
        """Return the log evidence at the mode."""
        place = self._heaviest
        value, pull = self.mode._objective(batch, memory=memory)

        def pullback(bar=1.0):
            model_bar, X_bar = pull(bar)
            bars = tuple(model_bar if i == place else None for i in range(len(self.models)))
            return tree.cotangent(self, models=bars), X_bar

        return value, pullback

    @property
    def _observed_likelihood(self) -> Gaussian:
        noise = backend_of(self.X).xp.concat([one.noise for one in self.settings], axis=0)
        return tree.with_leaves(self.likelihood, {"noise_variance": noise[:, None, None]})

    def _posterior_process(self, *, memory: float | None = None) -> ExactMixture:  # noqa: ARG002
        model = self.models[0]
        residual = targets_of(model._data) - self.mean_function(model.X)[0]
        known = {
            "level": self.level,
            "weights": model.weights,
            "noise": None if model.noise is None else model.noise[:, 0],
        }
        return ExactMixture(self.settings, self.shares, model.X, residual, self.mean_function, **known)

    def _held_rows(self) -> dict[str, Array]:
        return self.mode._held_rows()

    def _weighted_settings(self) -> list[tuple[float, Model]]:
        """Return the models of the settings with the largest weights."""
        shares = to_numpy(self.shares).tolist()
        heaviest = sorted(range(len(shares)), key=lambda s: -shares[s])[:SHOWN_SETTINGS]
        total = sum(shares[s] for s in heaviest)
        return [(shares[s] / total, self.setting(s)) for s in heaviest]

    def _leaf_intervals(self) -> dict[str, tuple[Any, Any]]:
        found = {}
        for i, (settings, weights) in enumerate(zip(self.settings, self._shares_by_kernel(), strict=True)):
            each = {f"kernel.{name}": x for name, x in tree.leaves(settings.kernel, "parameter").items()}
            each["likelihood.noise_variance"] = settings.noise
            for name, x in each.items():
                ends = weighted_quantiles(to_numpy(x), weights, (0.05, 0.95))
                found[f"models.{i}.{name}"] = (ends[0, ...], ends[1, ...])
        return found
