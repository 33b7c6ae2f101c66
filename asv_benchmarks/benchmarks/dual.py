"""The dual parameterisation: site steps for each kind of storage, and the bound for the hyperparameters.

For comparison, the natural-gradient step in whitened coordinates makes the same update of q(u).
"""

from .common import BACKENDS, BATCH, ROWS, axis, backend_or_skip, finished, problem, protocol

STORAGES = ["datum", "natural", "kernel", "white", "inverse-free", "q-svgp"]
"""Kinds of storage for the sites, and q(u) without sites."""
LIKELIHOODS = ["gaussian", "bernoulli"]


def dual_model(storage, X, y, likelihood, num_inducing):
    """Create a model for a kind of storage, with random rows as inducing inputs, and the update of its q(u)."""
    from functools import partial

    import agp
    from agp.updates import NaturalGradient, SiteStep

    settings = {"Z": X[:num_inducing, :], "likelihood": likelihood}
    if storage == "datum":
        return agp.TSVGP.from_data(X, y, **settings), SiteStep(0.1)
    starts = {"inverse-free": agp.posteriors.DualInverseFree, "q-svgp": agp.posteriors.Whitened}
    start = starts.get(storage) or partial(agp.posteriors.Dual.from_prior, tied=storage)
    update = NaturalGradient(0.1) if storage == "q-svgp" else SiteStep(0.1)
    return agp.SVGP.from_data(X, y, posterior=start, **settings), update


def dual_problem(storage, backend, likelihood, num_inducing):
    """Return the backend, a model after one step, a minibatch with its row numbers, the update and its state."""
    import numpy as np

    import agp
    from agp.bounds import Batch

    B, device = backend_or_skip(backend)
    X, y = problem(B, device)
    if likelihood == "bernoulli":
        y = B.xp.astype(y > 0.0, y.dtype)
    kind = agp.Bernoulli() if likelihood == "bernoulli" else agp.Gaussian()
    model, update = dual_model(storage, X, y, kind, num_inducing)
    rows = B.from_numpy(np.arange(BATCH), device=device)
    batch = Batch(X[:BATCH, :], y[:BATCH, :], ROWS / BATCH, rows)
    model, state, _ = update(model, batch, update.init(model))
    return B, model, batch, update, state


def settled(B, model):
    """Wait until the device has computed all arrays of a model."""
    from agp import tree

    finished(B, tree.leaves(model))


class SitesOrNatural:
    """A step of q(u), and the bound for the hyperparameters with its gradient; M = 128, minibatches of 256 rows."""

    params = [STORAGES, BACKENDS, axis(LIKELIHOODS, "bernoulli")]
    param_names = ["storage", "backend", "likelihood"]

    def setup(self, storage, backend, likelihood):
        self.B, self.model, self.batch, self.update, self.state = dual_problem(storage, backend, likelihood, 128)

    def time_step(self, storage, backend, likelihood):
        settled(self.B, self.update(self.model, self.batch, self.state)[0])

    def time_bound_and_gradient(self, storage, backend, likelihood):
        from agp.gradient import gradient_of_batch

        finished(self.B, gradient_of_batch(self.model, self.batch, "closed-form")[1])

    def peakmem_bound_and_gradient(self, storage, backend, likelihood):
        self.time_bound_and_gradient(storage, backend, likelihood)


class Size:
    """How the time of a q(u) step grows with M, for Gaussian noise."""

    params = [STORAGES, axis(["numpy", "torch", "jax", "torch:cuda"], "numpy"), axis([128, 512], 512)]
    param_names = ["storage", "backend", "num_inducing"]

    def setup(self, storage, backend, num_inducing):
        self.B, self.model, self.batch, self.update, self.state = dual_problem(
            storage, backend, "gaussian", num_inducing
        )

    def time_step(self, storage, backend, num_inducing):
        settled(self.B, self.update(self.model, self.batch, self.state)[0])


class WithoutInducing:
    """A step of t-VGP, and its bound with the gradient, on 512 rows."""

    params = [BACKENDS]
    param_names = ["backend"]

    def setup(self, backend):
        import agp
        from agp.updates import SiteStep

        self.B, device = backend_or_skip(backend)
        X, y = problem(self.B, device, rows=512)
        y = self.B.xp.astype(y > 0.0, y.dtype)
        model = agp.TVGP.from_data(X, y, likelihood=agp.Bernoulli())
        self.batch, self.update = protocol(model, "batch")(X, y), SiteStep(0.5)
        self.model, self.state, _ = self.update(model, self.batch, self.update.init(model))

    def time_step(self, backend):
        settled(self.B, self.update(self.model, self.batch, self.state)[0])

    def time_bound_and_gradient(self, backend):
        from agp.gradient import gradient_of_batch

        finished(self.B, gradient_of_batch(self.model, self.batch, "closed-form")[1])
