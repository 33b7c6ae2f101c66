# pyright: reportMissingImports=false
"""`BoTorchModel`, a wrapper that makes any agp model usable with BoTorch's acquisition functions.

Means, covariances and updates with further data come from `agp.Predictor`, and are differentiable in X. The module
requires the extra ``botorch``.
"""

import copy
from collections.abc import Iterator
from itertools import product
from typing import Any, Self

from agp import tree
from agp.backend import backend_of
from agp.checks import check_finite, check_model, check_results, check_test_inputs, check_whole
from agp.errors import count_of, missing_package_message
from agp.predictors import FREQUENCIES, Predictor
from agp.tree import first_leaf

try:
    import torch
    from botorch.models.model import FantasizeMixin, Model, ModelList
    from botorch.posteriors import GPyTorchPosterior, Posterior
    from botorch.posteriors.fully_bayesian import MCMC_DIM, GaussianMixturePosterior
    from botorch.sampling.list_sampler import ListSampler
    from gpytorch.distributions import MultitaskMultivariateNormal, MultivariateNormal
except ImportError as error:
    raise ImportError(f"agp.interop.botorch needs {missing_package_message('botorch', 'botorch')}.") from error

from agp.interop._botorch_arrays import concat, factorisable, join_rows, noise_of_each, noise_variances
from agp.interop._botorch_lists import each_wrapped, joint_posterior, sampler_of_each
from agp.interop._botorch_paths import register_paths
from agp.interop._botorch_posteriors import draws_of, posteriors_of

__all__ = ["BoTorchModel", "BoTorchModelList"]

Tensor = torch.Tensor
Noise = Tensor | float | None


class BoTorchModel(Model, FantasizeMixin):
    """A BoTorch model that wraps an agp model.

    Posteriors describe the latent functions in the units of the targets, so outcome transforms are not needed. BoTorch
    maximises; to minimise, train on the negative targets.

    An average over hyperparameters (`agp.GPRMixture`) becomes a fully Bayesian model of BoTorch, like
    `SaasFullyBayesianSingleTaskGP`: posteriors have an axis of S draws of the hyperparameters before the axis of points
    (``MCMC_DIM``), and acquisition functions average over the draws.

    Parameters
    ----------
    model
        A model or a predictor. Its arrays are moved to torch if necessary.
    draws
        The number S of equally probable draws that represent an average over hyperparameters. 0 means a single normal
        distribution with the mean and covariance of the average. Other models have no draws. `draw_matheron_paths`
        draws a sample shape of paths for each draw; for n paths at n settings, pass ``draws=n`` and ``torch.Size([])``.
    data
        The inputs [N, D] and targets [N] or [N, P], as the attributes `train_inputs` and `train_targets` that some of
        BoTorch's functions read. By default, those of the model, if it holds its data.
    features
        The number of random frequencies of function samples (`draw_matheron_paths`); see `Predictor.sample_functions`.

    Raises
    ------
    TypeError
        If `model` is neither a model nor a predictor, or if there are further arguments.
    ValueError
        If `draws` or `features` is not a whole number or is too small, or if a predictor of an average was conditioned
        on several sets of data.
    """

    def __init__(
        self,
        model: Any,
        /,
        *,
        draws: int = 16,
        data: tuple[Any, Any] | None = None,
        features: int = FREQUENCIES,
        **others: Any,
    ) -> None:
        super().__init__()
        if others:
            raise TypeError(
                f"BoTorchModel has no argument {', '.join(others)}; train the model on the inputs and targets in the "
                "units in which you optimise, since its posteriors need no transforms."
            )
        if not isinstance(model, Predictor):
            check_model(model)
            held = model._held_rows()
            data = (held["X"], held["y"]) if data is None and "X" in held else data
            model = model.predictor()
        if backend_of(first_leaf(model)).name != "torch":
            model = tree.to_backend(model, "torch")
        draws, self._features = check_whole("draws", draws, least=0), check_whole("features", features)
        self._has_draws = draws > 0 and model.processes[0].shares is not None
        self._is_ensemble = self._is_fully_bayesian = self._has_draws  # BoTorch reads these names
        if self._has_draws and model.lead:
            raise ValueError(
                f"the average over hyperparameters is conditioned on sets of data with the axes {model.lead}; build a "
                "BoTorchModel of the average, and call its condition_on_observations."
            )
        self._parts = draws_of(model, draws) if self._has_draws else (posteriors_of(model),)
        self._chosen = tuple(range(model.outputs))
        if data is not None:
            X, y = (tree.to_backend(x, "torch").to(first_leaf(model)) for x in data)
            self._hold(X, y[:, None] if y.ndim == 1 else y)

    def _hold(self, X: Tensor, y: Tensor) -> None:
        """Store inputs [..., N, D] and targets [..., N, P] in the forms of BoTorch."""
        self.train_inputs, self.train_targets = (X,), y[..., 0] if y.shape[-1] == 1 else y.mT

    def _apply(self, fn: Any, recurse: bool = True) -> Self:
        """Convert all arrays, for the methods of `torch.nn.Module` that change the dtype or the device."""
        self._parts = tuple(part.apply(fn) for part in self._parts)
        if "train_inputs" in self.__dict__:
            self.train_inputs, self.train_targets = (fn(self.train_inputs[0]),), fn(self.train_targets)
        return super()._apply(fn, recurse)

    def __getattr__(self, name: str) -> Any:
        if name in ("train_inputs", "train_targets"):
            raise AttributeError(f"the model does not hold its data; pass data=(X, y) to BoTorchModel for {name}.")
        return super().__getattr__(name)

    def _with(self, **changed: Any) -> Self:
        new = copy.copy(self)
        for name, value in changed.items():
            setattr(new, name, value)
        return new

    @property
    def _single(self) -> Predictor:
        return self._parts[0].single

    def _each_posterior(self) -> Iterator[tuple[tuple[int, ...], Predictor]]:
        """Yield the predictor of each posterior, after its place in the batch."""
        first = 0
        for part in self._parts:
            for place in product(*map(range, part.batch)):
                yield (*place[:-1], first + place[-1]) if self._has_draws else place, part.at(place)
            first += part.batch[-1] if self._has_draws else 0

    @property
    def num_outputs(self) -> int:
        """The number of outputs in each posterior."""
        return len(self._chosen)

    @property
    def batch_shape(self) -> torch.Size:
        """The leading axes of a batch of posteriors, such as fantasies; empty for a single posterior.

        The last axis is that of the draws of hyperparameters, if there are any.
        """
        first = self._parts[0].batch
        return torch.Size((*first[:-1], sum(part.batch[-1] for part in self._parts))) if self._has_draws else first

    @property
    def likelihood(self) -> Any:
        """The likelihood p(y | f), an `agp.likelihoods.Likelihood`; that of the first draw, if there are several."""
        return self._single.likelihood

    def subset_output(self, idcs: list[int]) -> Self:
        """Return the model with only these outputs."""
        new = self._with(_chosen=tuple(self._chosen[i] for i in idcs))
        if "train_targets" in self.__dict__ and self.num_outputs > 1:
            new._hold(self.train_inputs[0], self.train_targets.mT[..., idcs])
        return new

    # -- posteriors -------------------------------------------------------------------------------------------------

    def posterior(
        self,
        X: Tensor,
        output_indices: list[int] | None = None,
        observation_noise: bool | Tensor = False,
        posterior_transform: Any = None,
    ) -> Posterior:
        """Return the joint normal distribution over q points and m outputs, for each set of points X [..., q, D].

        Parameters
        ----------
        X
            Inputs. The leading axes of X are broadcast against `batch_shape`.
        output_indices
            The outputs; by default all.
        observation_noise
            If true, return the distribution of observations instead of function values, with the noise of the Gaussian
            likelihood. Known noise of training rows does not count, in contrast to BoTorch's models of fixed noise,
            which add its mean. If a tensor [..., q, m], use its entries as noise variances instead.
        posterior_transform
            A BoTorch posterior transform, such as a scalarisation.

        Raises
        ------
        TypeError, ValueError
            As in `Predictor.predict_covariance`, or if `observation_noise` is True and the noise is not Gaussian.
        agp.errors.NonFiniteError
            If a mean or a covariance is NaN or infinite.
        """
        self._check(X)
        chosen = [self._chosen[i] for i in (range(self.num_outputs) if output_indices is None else output_indices)]
        aligned = self._over_draws(X)
        posterior = GPyTorchPosterior(self._normal(aligned, chosen, self._noise_at(aligned, observation_noise, chosen)))
        if posterior_transform is not None:
            posterior = posterior_transform(posterior=posterior, X=aligned)
        mixed = self._has_draws and isinstance(posterior, GPyTorchPosterior)
        return GaussianMixturePosterior(posterior.distribution) if mixed else posterior

    def _normal(self, X: Tensor, chosen: list[int], noise: Tensor | None) -> MultivariateNormal:
        together = len(chosen) > 1 and self._single.processes[0].mixing is not None
        found = [part.moments(X, cross=together) for part in self._parts]
        mean = concat([mean for mean, _ in found], -3)
        covariance = concat([covariance for _, covariance in found], -5 if together else -4)
        remedy = "check the parameters of the kernel, or use float64"
        check_results("the predicted", {"mean": mean, "covariance": covariance}, remedy)
        mean = mean[..., chosen]
        if together:
            covariance = covariance[..., chosen, :, :][..., chosen]
            size = mean.shape[-2] * len(chosen)
            covariance = covariance.reshape(*covariance.shape[:-4], size, size)  # outputs of a point are adjacent
            if noise is not None:
                covariance = covariance + torch.diag_embed(noise.reshape(*noise.shape[:-2], size))
            return MultitaskMultivariateNormal(mean, factorisable(covariance))
        covariance = covariance[..., chosen, :, :]
        if noise is not None:
            covariance = covariance + torch.diag_embed(noise.mT)
        if len(chosen) == 1:
            return MultivariateNormal(mean[..., 0], factorisable(covariance[..., 0, :, :]))
        each = MultivariateNormal(mean.mT, factorisable(covariance))
        return MultitaskMultivariateNormal.from_batch_mvn(each, task_dim=-1)

    def _noise_at(self, X: Tensor, asked: bool | Tensor, chosen: list[int]) -> Tensor | None:
        """Return noise variances [..., q, m], or None."""
        if not isinstance(asked, bool):
            asked = noise_variances("observation_noise", asked, X, (X.shape[-2], len(chosen)))
            asked = self._over_draws(asked) if asked.ndim < X.ndim else asked
            return asked.expand(*asked.shape[:-2], X.shape[-2], len(chosen))
        if not asked:
            return None
        self._check_noise("observation_noise=True")
        return concat([part.noise(X) for part in self._parts], -3)[..., chosen]

    def _observed_noise(self, X: Tensor) -> Tensor:
        """Return the noise variances [..., q, m] of observations at X, as in `fantasize`."""
        known = self._usual_noise
        found = self._noise_at(X, True if known is None else known, list(self._chosen))
        return found.expand(*X.shape[:-1], self.num_outputs)  # type: ignore[union-attr]

    def _over_draws(self, x: Tensor) -> Tensor:
        """Return rows [..., n, .] with an axis of size 1 for the draws of hyperparameters, if there are any."""
        return x.unsqueeze(MCMC_DIM) if self._has_draws else x

    def _check(self, X: Tensor) -> None:
        if X.ndim == 1:
            raise ValueError(f"X has shape {tuple(X.shape)}, but must be [..., q, D]; pass one point as x[None, :].")
        check_test_inputs(X, self._single.width, *self._single.reference)
        check_finite("X", X.reshape(-1, X.shape[-1]))

    def _check_noise(self, asked: str) -> None:
        if not self.likelihood.quadratic:
            raise TypeError(
                f"{asked} needs Gaussian noise, but the likelihood is {type(self.likelihood).__name__}; use "
                "the posterior of the function instead."
            )

    # -- further data -----------------------------------------------------------------------------------------------

    def condition_on_observations(self, X: Tensor, Y: Tensor, noise: Noise = None) -> Self:
        """Return a copy conditioned on further observations, as in `Predictor.condition_on`; this model is unchanged.

        Draws of hyperparameters do not change, and remain equally probable.

        Parameters
        ----------
        X, Y
            Inputs [..., k, D] and targets [..., k, m]. Their leading axes are broadcast, and become the batch axes of
            the posterior. With S draws of hyperparameters, the last of these axes has size S, or 1 for observations
            that all draws share; X may lack this axis if Y has it.
        noise
            Noise variances [..., k, m] or [..., 1, m] of these observations, or a number for all; by default the noise
            of the likelihood or, if it is zero, the mean of the known noise variances of the rows, as in BoTorch.

        Raises
        ------
        TypeError, ValueError
            As in `Predictor.condition_on`, or if `noise` does not fit `Y`, or if the model has only some of the outputs
            (`subset_output`).
        """
        if len(self._chosen) < self._single.outputs:
            raise ValueError(
                f"this model has only the outputs {self._chosen}, but conditioning needs all "
                f"{count_of(self._single.outputs, 'output')}; condition the model before you call subset_output."
            )
        self._check(X)
        check_finite("Y", Y.reshape(-1, Y.shape[-1]))
        X = self._over_draws(X) if X.ndim < Y.ndim else X
        noise = self._usual_noise if noise is None else noise_variances("noise", noise, Y, Y.shape)
        each = zip(self._parts, self._split(X), self._split(Y), self._split(noise), strict=True)
        new = self._with(_parts=tuple(part.condition_on(*data) for part, *data in each))
        if "train_inputs" in self.__dict__:
            old = self.train_inputs[0], self.train_targets[..., None] if Y.shape[-1] == 1 else self.train_targets.mT
            new._hold(*(join_rows(pair, new.batch_shape) for pair in zip(old, (X, Y), strict=True)))
        return new

    @property
    def _usual_noise(self) -> Tensor | None:
        """Noise variances [1, m] of observations: means of known ones, or None for those of the likelihood."""
        known = self._parts[0].mean_noise
        return None if known is None else known.expand(1, self._single.outputs)

    def _split(self, x: Tensor | None) -> list[Any]:
        """Return the rows [..., n, .] of each part of the draws of hyperparameters."""
        if x is None or not self._has_draws or x.ndim == 2 or x.shape[MCMC_DIM] == 1:
            return [x] * len(self._parts)
        sizes = [part.batch[-1] for part in self._parts]
        if x.shape[MCMC_DIM] != sum(sizes):
            raise ValueError(
                f"the observations have the axes {tuple(x.shape[:-2])}, but the last of these must have the size 1 or "
                f"{sum(sizes)}, the number of draws of hyperparameters; insert an axis with x.unsqueeze(-3)."
            )
        return list(x.split(sizes, MCMC_DIM))

    def fantasize(self, X: Tensor, sampler: Any, observation_noise: Noise = None, **kwargs: Any) -> Self:
        """Draw S samples of observations at X [..., k, D], and return the batch [S, ...] of models conditioned on them.

        Draws of hyperparameters stay the last axis of the batch. Since BoTorch's look-ahead functions average over them
        after they have averaged over the samples, the returned batch is no ensemble of BoTorch (`is_ensemble`).

        Parameters
        ----------
        X, sampler
            Inputs, and a BoTorch sampler that draws S samples.
        observation_noise
            Noise variances as in `condition_on_observations`.
        kwargs
            Passed to `condition_on_observations`.

        Raises
        ------
        TypeError, ValueError
            As in `condition_on_observations`, or if the noise is not Gaussian.
        """
        self._check_noise("fantasize")
        noise = self._usual_noise if observation_noise is None else observation_noise
        if noise is not None:
            noise = noise_variances("observation_noise", noise, X, (X.shape[-2], self.num_outputs))
            noise = self._over_draws(noise) if noise.ndim <= X.ndim else noise
        fantasies = super().fantasize(X, sampler, observation_noise=noise, **kwargs)
        return fantasies._with(_is_ensemble=False, _is_fully_bayesian=False)


class BoTorchModelList(ModelList):
    """Independent models of several objectives or constraints, whose outputs are put side by side.

    In contrast to BoTorch's `ModelListGP`, the models may have different data, likelihoods and posteriors, and other
    models of BoTorch may be among them. If all posteriors are normal, or mixtures of normal distributions over draws of
    hyperparameters, so is the joint posterior, and every sampler of BoTorch draws independent outputs. If not, such as
    with deterministic models, leave out ``sampler=`` in acquisition functions, or use the function `get_sampler` of
    BoTorch.

    Parameters
    ----------
    models
        Models of agp, predictors, or models of BoTorch. If some average over hyperparameters, all others that do must
        have the same number of draws.
    draws
        See `BoTorchModel`.
    """

    def __init__(self, *models: Any, draws: int = 16) -> None:
        super().__init__(*each_wrapped(models, lambda one: BoTorchModel(one, draws=draws)))

    @property
    def train_inputs(self) -> list[tuple[Tensor, ...]]:
        """The inputs of each model."""
        return [one.train_inputs for one in self.models]  # type: ignore[misc]

    @property
    def train_targets(self) -> list[Tensor]:
        """The targets of each model."""
        return [one.train_targets for one in self.models]  # type: ignore[misc]

    def posterior(
        self,
        X: Tensor,
        output_indices: list[int] | None = None,
        observation_noise: bool | Tensor = False,
        posterior_transform: Any = None,
    ) -> Posterior:
        """Return the joint distribution over q points and m outputs, which are independent between the models.

        Parameters
        ----------
        X, output_indices, observation_noise, posterior_transform
            As in `BoTorchModel.posterior`.

        Raises
        ------
        TypeError, ValueError
            As in `BoTorchModel.posterior`, or if averages over hyperparameters have different numbers of draws.
        agp.errors.NonFiniteError
            If a mean or a covariance is NaN or infinite.
        """
        each, start, asked = [], 0, observation_noise
        if not isinstance(asked, bool):
            m = self.num_outputs if output_indices is None else len(output_indices)
            asked = noise_of_each("observation_noise", asked, X, (X.shape[-2], m))
        for i, chosen in self._get_group_subset_indices(idcs=output_indices).items():
            own = slice(start, start := start + (self.models[i].num_outputs if chosen is None else len(chosen)))
            noise = asked if isinstance(asked, bool) else asked[..., own]
            each.append(self.models[i].posterior(X, output_indices=chosen, observation_noise=noise))
        found = joint_posterior(each)
        return found if posterior_transform is None else posterior_transform(posterior=found, X=X)

    def condition_on_observations(self, X: Any, Y: Tensor, noise: Noise = None) -> Self:
        """Return a copy in which each model is conditioned on its columns of the observations.

        Parameters
        ----------
        X
            Inputs [..., k, D], or a list with the inputs for each output, as in `ModelListGP`.
        Y
            Targets [..., k, m] for all m outputs.
        noise
            Noise variances [..., k, m]; by default the noise of the likelihoods.

        Raises
        ------
        ValueError
            If `Y` does not have a column for each output.
        """
        if Y.shape[-1] != self.num_outputs:
            columns, outputs = count_of(Y.shape[-1], "column"), count_of(self.num_outputs, "output")
            raise ValueError(f"Y has {columns}, but the models have {outputs}.")
        if noise is not None:
            noise = noise_of_each("noise", noise, Y, Y.shape)
        found, start = [], 0
        for one in self.models:
            own = slice(start, start := start + one.num_outputs)  # type: ignore[operator]
            inputs = X if isinstance(X, Tensor) else X[own.start]
            more = {} if noise is None else {"noise": noise[..., own]}
            found.append(one.condition_on_observations(inputs, Y[..., own], **more))  # type: ignore[operator]
        return type(self)(*found)

    def fantasize(
        self,
        X: Tensor,
        sampler: Any,
        observation_noise: Noise = None,
        evaluation_mask: Tensor | None = None,
        **kwargs: Any,
    ) -> Self:
        """Draw S samples of observations at X [..., k, D], and return the list of models conditioned on them.

        Parameters
        ----------
        X, sampler
            Inputs, and a BoTorch sampler that draws S samples, or a `ListSampler` with one for each model. One sampler
            draws from the joint distribution if no model averages over hyperparameters. For averages, its shape and
            seed are those of independent random samples for each model.
        observation_noise
            Noise variances [..., k, m] or [..., 1, m], or a number; by default the noise of the likelihoods.
        evaluation_mask
            Which outputs [k, m] are observed; by default all. It needs a `ListSampler` and models of one output.
        kwargs
            Passed to `condition_on_observations` of the models.

        Raises
        ------
        TypeError, ValueError
            As in `BoTorchModel.fantasize`.
        """
        if evaluation_mask is not None:
            return super().fantasize(X, sampler, observation_noise, evaluation_mask, **kwargs)
        if observation_noise is not None:
            shape = X.shape[-2], self.num_outputs
            observation_noise = noise_of_each("observation_noise", observation_noise, X, shape)
        each = [one for one in self.models if isinstance(one, BoTorchModel)]
        if isinstance(sampler, ListSampler):
            samplers = sampler.samplers
        elif len(each) == len(self.models) and not any(one._has_draws for one in each):
            for one in each:
                one._check_noise("fantasize")
            if observation_noise is None and any(one._usual_noise is not None for one in each):
                observation_noise = torch.cat([one._observed_noise(X) for one in each], -1)
            seen = self.posterior(X, observation_noise=True if observation_noise is None else observation_noise)
            return self.condition_on_observations(X, sampler(seen), noise=observation_noise)
        else:
            samplers = sampler_of_each(sampler, len(self.models)).samplers
        found, start = [], 0
        for one, own_sampler in zip(self.models, samplers, strict=True):
            own = slice(start, start := start + one.num_outputs)  # type: ignore[operator]
            noise = None if observation_noise is None else observation_noise[..., own]
            found.append(one.fantasize(X, own_sampler, observation_noise=noise, **kwargs))  # type: ignore[operator]
        return type(self)(*found)


register_paths(BoTorchModel, BoTorchModelList)
