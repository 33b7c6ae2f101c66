"""Nearest rows: the search, the evidence, Newton's method for training, and predictions."""

from .common import TIMER, axis, backend_or_skip, problem, skip_elsewhere

BACKENDS = axis(["numpy", "torch", "jax", "torch:cuda", "cupy"], "numpy")


class Search:
    """The search for the nearest rows of 1,000 inputs among 20,000, by a tree or by blocks of distances."""

    params = [axis([3, 20]), axis([60, 200], 60)]
    param_names = ["columns", "neighbours"]
    timer = TIMER

    def setup(self, columns, neighbours):
        skip_elsewhere()
        import numpy as np

        from agp.neighbours import NeighbourSearch

        rng = np.random.default_rng(0)
        self.search = NeighbourSearch(rng.normal(size=(20_000, columns)), np.ones(columns))
        self.inputs = rng.normal(size=(1000, columns))

    def time_nearest(self, columns, neighbours):
        self.search.nearest(self.inputs, neighbours)

    def time_earlier(self, columns, neighbours):
        import numpy as np

        self.search.earlier(np.arange(20_000), neighbours, start=19_000)


class Rows:
    """The evidence of 2,000 rows with its gradient and to second order, and predictions."""

    params = [BACKENDS, axis([30, 60, 200], 60)]
    param_names = ["backend", "neighbours"]
    timer = TIMER

    def setup(self, backend, neighbours):
        import agp
        from agp import tree
        from agp.training import Evidence

        self.B, device = backend_or_skip(backend)
        self.X, y = problem(self.B, device, rows=2000)
        self.model = agp.NNGP.from_data(self.X, y, neighbours=neighbours, among="others")
        self.batch = self.model._batch(self.X, y)
        self.objective = Evidence(self.model, self.batch, [*tree.leaves(self.model, "parameter")])
        self.start = self.objective.coordinates.vector_of(self.model)
        self.predictor = self.model.predictor()
        self.time_expand(backend, neighbours)  # a compiler may need time
        self.time_predict(backend, neighbours)

    def time_gradient(self, backend, neighbours):
        from agp.gradient import gradient_of_batch

        for x in gradient_of_batch(self.model, self.batch, "closed-form")[1].values():
            self.B.synchronise(x)

    def time_expand(self, backend, neighbours):
        if self.objective(self.start) is None:
            raise RuntimeError

    def time_predict(self, backend, neighbours):
        self.B.synchronise(self.predictor.predict(self.X[:200, :]).mean)

    def time_predict_one_row(self, backend, neighbours):
        self.B.synchronise(self.predictor.predict(self.X[:1, :]).mean)


class Both:
    """Inducing inputs and nearest rows: the posterior of 2,000 rows, and predictions."""

    params = [axis([128, 512], 128)]
    param_names = ["num_inducing"]
    timer = TIMER

    def setup(self, num_inducing):
        import agp

        B, device = backend_or_skip("numpy")
        self.X, y = problem(B, device, rows=2000)
        self.model = agp.VIF.from_data(self.X, y, num_inducing=num_inducing)
        self.predictor = self.model.predictor()

    def time_posterior(self, num_inducing):
        self.model.predictor()

    def time_predict(self, num_inducing):
        self.predictor.predict(self.X[:200, :])
