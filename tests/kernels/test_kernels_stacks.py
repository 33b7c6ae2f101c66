"""Stacks of kernels agree with their settings, one by one: covariances, variances and the pullbacks to the inputs."""

import numpy as np
import pytest
from kernel_cases import CASES, inputs, kernel_case

from agp import tree
from agp.backend import to_numpy
from agp.kernels import RBF, Matern52
from agp.kernels._stacks import count_settings

SETTINGS = 4


def stack_of(kernel, rng):
    leaves = tree.leaves(kernel, "parameter").items()
    factors = {name: np.exp(0.3 * rng.standard_normal((SETTINGS, *np.shape(x)))) for name, x in leaves}
    return tree.with_leaves(kernel, {name: factors[name] * np.asarray(x) for name, x in leaves})


@pytest.mark.parametrize("width", [3, 6])
@pytest.mark.parametrize("name", CASES)
def test_stack_agrees_with_its_settings(name, width, backend):
    rng = np.random.default_rng(0)
    X, Z = map(backend.array, inputs(width))
    stack = backend.move(stack_of(kernel_case(name, width), rng))
    assert count_settings(stack) == SETTINGS
    for args in ((X,), (X, Z)):
        K, pull = stack.stacked_covariance(*args)
        each = [stack.setting(s)(*args) for s in range(SETTINGS)]
        np.testing.assert_allclose(to_numpy(K), np.stack([to_numpy(one) for one, _ in each]), rtol=1e-11, atol=1e-13)
        bar = rng.standard_normal(K.shape)
        bar = bar + np.swapaxes(bar, 1, 2) if len(args) == 1 else bar
        found = pull(backend.array(bar))
        assert len(found) == len(args)
        for i, one in enumerate(found):
            expected = sum(to_numpy(p(backend.array(bar[s]))[1 + i]) for s, (_, p) in enumerate(each))
            np.testing.assert_allclose(to_numpy(one), expected, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("name", CASES)
def test_variances_of_a_stack(name, backend):
    rng = np.random.default_rng(1)
    X = backend.array(inputs(3)[0])
    stack = backend.move(stack_of(kernel_case(name, 3), rng))
    variances, pull = stack.stacked_variances(X)
    each = [stack.setting(s).diag(X) for s in range(SETTINGS)]
    np.testing.assert_allclose(to_numpy(variances), np.stack([to_numpy(one) for one, _ in each]), rtol=1e-12)
    bar = rng.standard_normal(variances.shape)
    parts = [p(backend.array(bar[s]))[1] for s, (_, p) in enumerate(each)]
    found = pull(backend.array(bar))
    if parts[0] is None:
        assert found is None or not np.any(to_numpy(found))
    else:
        np.testing.assert_allclose(to_numpy(found), sum(map(to_numpy, parts)), rtol=1e-10, atol=1e-12)


def test_inputs_far_from_the_origin():
    """Distances of a stack are computed from centred inputs, as those of one setting."""
    rng = np.random.default_rng(2)
    for width in (2, 6):
        X = rng.standard_normal((8, width))
        for kind in (RBF, Matern52):
            stack = stack_of(kind(1.0, np.ones(width)), rng)
            near, far = stack.stacked_covariance(X)[0], stack.stacked_covariance(X + 1e6)[0]
            np.testing.assert_allclose(far, near, atol=1e-8)
