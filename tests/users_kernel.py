"""A kernel as a user writes it: the few methods that are needed, around a kernel of agp."""

from agp import tree
from agp.kernels import Kernel


class UsersKernel(Kernel):
    """The base of kernels around another, which have no second derivatives and no groups of their own.

    Subclasses are decorated by `agp.tree.model`, and have the field `inner`.
    """

    inner: Kernel

    def __call__(self, X, Z=None, /):
        K, pull = self.inner(X, Z)
        return K, lambda bar: (tree.cotangent(self, inner=pull(bar)[0]), *pull(bar)[1:])

    def diag(self, X, /):
        k, pull = self.inner.diag(X)
        return k, lambda bar: (tree.cotangent(self, inner=pull(bar)[0]), pull(bar)[1])

    def from_data(self, X, variance, /):
        return type(self)(self.inner.from_data(X, variance))

    def check(self, width, /):
        self.inner.check(width)

    @property
    def floats_per_entry(self):
        return self.inner.floats_per_entry
