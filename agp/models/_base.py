"""What every model offers: a bound to train on, and the predictions of its predictor."""

from typing import Any

from agp._context import public
from agp.adjoint import carrying_adjoint
from agp.backend import Array, Pullback
from agp.gradient import GradientMode, check_mode
from agp.markup import guarded
from agp.models._former import FormerNames
from agp.models._predictions import Predictions
from agp.summaries import summary_html

__all__ = ["Model"]


class Model(Predictions, FormerNames):
    """A model of y given X: its bound, and predictions. It is trained by `agp.train`.

    Its public names are for users: its leaves and parts, the bound and predictions, and what one method alone has.
    Methods with one leading underscore are the protocol of a model: whoever writes a class of models overrides them,
    and agp's other rooms call them; users do not. `_objective` (the bound of a batch), `_conditional` (the posterior
    that predictors ask), `_reference` (an array that inputs must be like) and `outputs` are needed, the others have
    usual answers.

    A model of one process has `kernel`, `inducing`, `posterior` and `mean_function`, whether as fields, from its
    process, or None where there is no such part.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if isinstance(build := vars(cls).get("from_data"), classmethod):
            wrapped = classmethod(public(build.__func__, repairs=False))
            type.__setattr__(cls, "from_data", wrapped)  # no declaration: each class has a signature of its own

    def _repr_html_(self) -> str:
        return guarded(lambda: summary_html(self), self)

    @public(ignore="underflow")
    def bound(
        self,
        X: Array,
        y: Array,
        /,
        *,
        scale: float = 1.0,
        gradient: GradientMode = "closed-form",
        memory: float | None = None,
    ) -> tuple[Array, Pullback]:
        """The objective to maximise, a total over the N data.

        Parameters
        ----------
        X, y
            Inputs [B, D] and targets [B] or [B, K]; all data, or a minibatch if the model is `stochastic`. The
            likelihood says which K columns y has; by default one for each of the P latent functions.
        scale
            N / B.
        gradient
            Where torch or JAX differentiates the value: "closed-form" registers the pullback with it, which has no
            second derivatives; "autodiff" lets it differentiate the forward, which has them.
        memory
            Budget for working arrays, in MiB: where the bound is a sum over the rows, more rows than fit are taken in
            blocks. None is 256 on the host, and on a device an eighth of its memory, rounded down to a power of two.

        Returns
        -------
        bound
            0-d.
        pullback
            ``bar=1.0 -> (model_bar, X_bar)``; X_bar is None where rows were taken in blocks.

        Inside a program that torch or JAX differentiates, the bound needs no pullback: where leaves (or X) ask for
        gradients, they get them from the same closed form.
        """
        batch = self._batch(X, y, scale=scale)
        check_mode(X, gradient)
        if gradient == "autodiff":
            value, pullback = self._objective(batch, memory=memory)
        else:
            value, pullback = carrying_adjoint(lambda model, x: model._objective(x, memory=memory), self, batch)
        return value, public(pullback, repairs=False, context=False, ignore="underflow")
