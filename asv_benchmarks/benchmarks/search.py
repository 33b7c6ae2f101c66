"""The search for hyperparameters: one evaluation of the evidence, Newton's method, and whole fits of tables.

A fit evaluates the evidence on several numbers of rows, so both the number of evaluations and the time are tracked.
"""

from .common import TIMER, axis, backend_or_skip, problem, skip_elsewhere

BACKENDS = axis(["numpy", "torch", "jax", "torch:cuda", "cupy"], "numpy")
LIKELIHOODS = ["gaussian", "poisson"]


def table(rows, columns, likelihood="gaussian"):
    """Draw a table of at least five columns, on five of which the targets depend."""
    import numpy as np

    rng = np.random.default_rng(0)
    X = rng.uniform(size=(rows, columns))
    f = 10.0 * np.sin(np.pi * X[:, 0] * X[:, 1]) + 20.0 * (X[:, 2] - 0.5) ** 2 + 10.0 * X[:, 3] + 5.0 * X[:, 4]
    y = f + rng.normal(size=rows) if likelihood == "gaussian" else rng.poisson(np.exp(f / 10.0)).astype(float)
    return X, y


class Evidence:
    """The evidence of an exact GP, with its gradient, without and with the average information."""

    params = [BACKENDS, axis([500, 2000], 500)]
    param_names = ["backend", "rows"]
    timer = TIMER

    def setup(self, backend, rows):
        import agp
        from agp import tree
        from agp.training import Evidence as Objective

        self.B, device = backend_or_skip(backend)
        X, y = problem(self.B, device, rows=rows)
        self.model = agp.GPR.from_data(X, y)
        self.batch = self.model._batch(X, y)
        self.objective = Objective(self.model, self.batch, [*tree.leaves(self.model, "parameter")])
        self.start = self.objective.coordinates.vector_of(self.model)
        self.time_expand(backend, rows)  # a compiler may need time

    def time_gradient(self, backend, rows):
        from agp.gradient import gradient_of_batch

        for x in gradient_of_batch(self.model, self.batch, "closed-form")[1].values():
            self.B.synchronise(x)

    def time_expand(self, backend, rows):
        if self.objective(self.start) is None:
            raise RuntimeError

    def peakmem_expand(self, backend, rows):
        self.time_expand(backend, rows)


class Newton:
    """`fit_newton` of an exact GP from its default start, on 500 rows."""

    params = [BACKENDS]
    param_names = ["backend"]
    timer = TIMER

    def setup(self, backend):
        import agp

        B, device = backend_or_skip(backend)
        X, y = problem(B, device, rows=500)
        self.model, self.rows = agp.GPR.from_data(X, y), (X, y)
        self.result = agp.fit_newton(self.model, *self.rows)

    def time_fit(self, backend):
        import agp

        agp.fit_newton(self.model, *self.rows)

    def track_steps(self, backend):
        return self.result.steps

    track_steps.unit = "steps"


class Table:
    """`GPRegressor().fit` on a table, which chooses the hyperparameters."""

    params = [axis([(20, 5), (500, 5), (1000, 10), (1000, 50), (5000, 10)], (20, 5), (1000, 10)), LIKELIHOODS]
    param_names = ["shape", "likelihood"]
    timer = TIMER
    timeout = 600

    def setup(self, shape, likelihood):
        skip_elsewhere()
        from agp.estimators import GPRegressor

        self.estimator = GPRegressor(likelihood=likelihood, random_state=0, hyperparameters="mode")
        self.rows = table(*shape, likelihood)
        self.estimator.fit(*table(20, 5, likelihood))  # imports take time

    def time_fit(self, shape, likelihood):
        self.estimator.fit(*self.rows)

    def peakmem_fit(self, shape, likelihood):
        self.estimator.fit(*self.rows)

    def track_evaluations(self, shape, likelihood):
        return self.estimator.fit(*self.rows).n_iter_

    track_evaluations.unit = "evaluations"


class Classes:
    """`fit_classification` of tables with 20 columns: the whole fit, and one evaluation of the Laplace evidence."""

    params = [axis([2, 5], 5), axis([300, 1000], 300)]
    param_names = ["classes", "rows"]
    timer = TIMER
    number = 1

    def setup(self, classes, rows):
        skip_elsewhere()
        import numpy as np

        import agp

        self.X, y = table(rows, 20)
        self.y = np.digitize(y, np.quantile(y, np.arange(1, classes) / classes)).astype(float)
        self.likelihood = agp.Bernoulli(link="logit") if classes == 2 else agp.Softmax(classes)

    def time_fit(self, classes, rows):
        import agp

        agp.fit_classification(self.X, self.y, likelihood=self.likelihood)

    def time_evidence(self, classes, rows):
        import agp
        from agp.bounds import Batch, laplace_evidence

        X, y = self.X[:200, :], self.y[:200, None]
        kernel = agp.RBF().from_data(X, 4.0)
        _, pull = laplace_evidence(self.likelihood, kernel(X)[0], Batch(X, y))
        pull(1.0)


class FewRows:
    """Integration over the hyperparameters of tables with 10 columns: the whole fit, and the prediction of one row."""

    params = [axis([20, 50, 80, 200], 20)]
    param_names = ["rows"]
    timer = TIMER
    number = 1

    def setup(self, rows):
        skip_elsewhere()
        import agp

        self.X, self.y = table(rows, 10)
        kernel = agp.Matern52() + agp.Linear.centred(self.X)
        self.model = agp.GPR.from_data(self.X, self.y, kernel=kernel)
        self.predictor = agp.integrate(self.model).model.predictor()

    def time_integrate(self, rows):
        import agp

        agp.integrate(self.model)

    def time_fit(self, rows):
        import agp

        agp.fit_regression(self.X, self.y, hyperparameters="mixture")

    def time_row(self, rows):
        self.predictor.predict(self.X[:1, :], observed=True)

    def track_effective(self, rows):
        import agp

        return agp.integrate(self.model).effective

    track_effective.unit = "points"
