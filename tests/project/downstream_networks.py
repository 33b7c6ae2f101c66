"""What somebody else's program does with torch, as `downstream.py` does with NumPy: see test_downstream.py."""

from collections.abc import Iterator

import torch

import agp
from agp.interop.torch import GPModule
from agp.likelihoods import Prediction

Tensor = torch.Tensor


class Features(torch.nn.Module):
    """A network [N, D] -> [N, 2] before a Gaussian process."""

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.hidden = torch.nn.Linear(inputs, 16, dtype=torch.float64)
        self.out = torch.nn.Linear(16, 2, dtype=torch.float64)

    def forward(self, X: Tensor) -> Tensor:
        """Return the features."""
        return self.features(X)

    def features(self, X: Tensor) -> Tensor:
        """Return the features, with their type."""
        hidden: Tensor = self.hidden(X)
        found: Tensor = self.out(torch.tanh(hidden))
        return found


def batches(X: Tensor, y: Tensor, size: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield minibatches."""
    for start in range(0, X.shape[0], size):
        yield X[start : start + size], y[start : start + size]


def deep_kernel(steps: int) -> float:
    """A network and a sparse GP, trained together in minibatches."""
    torch.manual_seed(0)  # pyright: ignore[reportUnknownMemberType] - torch's own
    X = torch.rand(60, 3, dtype=torch.float64)
    y = torch.sin(3.0 * X[:, :1])
    network = Features(3)
    with torch.no_grad():
        model = agp.SVGP.from_data(network.features(X), y, posterior="whitened", num_inducing=8)
    gp = GPModule(model, frozen="mean_function.*")
    optimiser = torch.optim.Adam([*network.parameters(), *gp.parameters()], lr=0.02)
    loss = torch.zeros(())
    for _ in range(steps):
        for some_X, some_y in batches(X, y, 20):
            optimiser.zero_grad()
            loss = gp.loss(network.features(some_X), some_y, scale=3.0)
            torch.autograd.backward(loss)
            optimiser.step()  # pyright: ignore[reportUnknownMemberType] - torch's own
    with torch.no_grad():
        prediction: Prediction = gp.forward(network.features(X), observed=True)
    return loss.item() + float(prediction.mean.sum())


def bound_of_tensors() -> Tensor:
    """The bound of a model on tensors is differentiable in the inputs."""
    X = torch.rand(20, 2, dtype=torch.float64, requires_grad=True)
    model = agp.SVGP.from_data(X.detach(), torch.sin(X[:, :1]).detach(), num_inducing=5, posterior="whitened")
    value: Tensor = model.bound(X, torch.sin(X[:, :1]).detach())[0]
    torch.autograd.backward(value)
    assert X.grad is not None
    return X.grad


def main() -> None:
    """Run everything."""
    assert deep_kernel(2) == deep_kernel(2)
    assert bound_of_tensors().shape == (20, 2)


if __name__ == "__main__":
    main()
