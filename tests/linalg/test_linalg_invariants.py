"""What holds for every start and every rule of the inversion by products."""

import functools
import math
from pathlib import Path

import numpy as np
import pytest
from helpers import JAX
from hypothesis import given, settings
from hypothesis import strategies as st

from agp.linalg import (
    constant_step,
    doubling_step,
    gram,
    inverse_factor,
    inverse_residual,
    log_linear_step,
    natural_step,
    safe_step,
)

deterministic = settings(derandomize=True, max_examples=40, deadline=None, database=None)

EAGER = ["numpy", "torch", "strict-device1"]
"""JAX's loops are slow where nothing is compiled; a test of its own compiles one."""

RULES = {
    "safe": safe_step,
    "unit": constant_step(1.0),
    "half": constant_step(0.5),
    "log-linear": log_linear_step(),
    "doubling": doubling_step(1e-2),
}


def spd(M, condition, seed=0):
    Q = np.linalg.qr(np.random.default_rng([seed, M]).normal(size=(M, M)))[0]
    A = Q @ np.diag(np.geomspace(1.0 / condition, 1.0, M)) @ Q.T
    return 0.5 * (A + A.T)


def with_largest(A, largest, seed=0):
    """Lower L such that the largest eigenvalue of L^T A L is as told."""
    M = len(A)
    rng = np.random.default_rng([seed, M, 1])
    L = np.tril(rng.normal(size=(M, M)) / M, k=-1) + np.diag(rng.uniform(0.3, 1.5, size=M))
    return L * math.sqrt(largest / np.linalg.eigvalsh(L.T @ A @ L)[-1])


def merit(A, L):
    return 0.5 * np.trace(L.T @ A @ L) - np.sum(np.log(np.diag(L)))


# -- an adversarial start ---------------------------------------------------------------------------------------------


def adversarial():
    """A symmetric B0 [32, 32] with all eigenvalues below 2, found by ascent on the largest after two unit steps."""
    lower = np.loadtxt(Path(__file__).with_name("adversarial_start.csv"), delimiter=",")
    return lower + np.tril(lower, -1).T


def test_unit_steps_diverge_from_an_adversarial_start_below_two():
    A, L = adversarial(), np.eye(32)
    spectrum = np.linalg.eigvalsh(A)
    assert spectrum[0] > 0.0
    assert spectrum[-1] < 2.0
    largest = [spectrum[-1]]
    for _ in range(7):
        L = natural_step(L, gram(A, L), 1.0)
        largest.append(np.linalg.eigvalsh(L.T @ A @ L)[-1])
    assert np.all(np.diff(largest) > 0.0)
    assert largest[-1] > 1e9


def test_safe_steps_converge_from_it_and_decrease_the_merit_in_each_step():
    A, L = adversarial(), np.eye(32)
    for _ in range(40):
        B = gram(A, L)
        largest = np.linalg.eigvalsh(L.T @ A @ L)[-1]
        new = natural_step(L, B, float(safe_step(np.asarray(0.0), largest)))
        assert np.diag(new).min() > 0.0
        assert merit(A, new) < merit(A, L) + 1e-12
        L = new
    assert float(inverse_residual(A, L)) < 1e-10


@pytest.mark.parametrize("backend", EAGER, indirect=True)
@pytest.mark.parametrize("rule", RULES)
def test_every_rule_survives_it_with_the_guard(rule, backend):
    A = backend.array(adversarial())
    found = inverse_factor(A, backend.array(np.eye(32)), tolerance=1e-8, max_steps=200, step=RULES[rule], patience=50)
    assert float(found.residual) < 1e-8
    assert float(found.restarts) == 0.0
    assert np.diag(backend.numpy(found.factor)).min() > 0.0


# -- rules for the step size ------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("rule", RULES)
@deterministic
@given(seed=st.integers(0, 2**32 - 1), M=st.integers(1, 13), largest=st.sampled_from([0.3, 1.0, 2.9, 20.0, 90.0]))
def test_every_rule_reaches_the_inverse(rule, seed, M, largest):
    A = spd(M, 1e3, seed)
    start = with_largest(A, largest, seed)
    found = inverse_factor(A, start, tolerance=1e-9, max_steps=300, step=RULES[rule], patience=30)
    assert float(found.residual) < 1e-9
    assert np.diag(found.factor).min() > 0.0
    np.testing.assert_array_equal(found.factor, np.tril(found.factor))


@pytest.mark.parametrize("largest", [10.0, 1e3, 1e5])
@pytest.mark.parametrize("M", [1, 8, 24])
def test_the_log_linear_rule_converges_by_itself_up_to_eigenvalues_of_1e5(M, largest):
    A = spd(M, 10.0)
    L, rule = with_largest(A, largest), log_linear_step()
    for count in range(60):
        L = natural_step(L, gram(A, L), float(rule(np.asarray(float(count)), np.asarray(0.0))))
        assert np.diag(L).min() > 0.0
    assert float(inverse_residual(A, L)) < 1e-8


def test_schedules_start_afresh_in_each_call():
    A = spd(7, 10.0)
    start = with_largest(A, 1.5)
    for rule in (log_linear_step(1e-3, 4), doubling_step(0.1)):
        once = inverse_factor(A, start, tolerance=0.0, max_steps=1, step=rule)
        again = inverse_factor(A, once.factor, tolerance=0.0, max_steps=1, step=rule)
        first = float(rule(np.asarray(0.0), np.asarray(1.0)))
        expected = natural_step(once.factor, gram(A, once.factor), first)
        np.testing.assert_allclose(again.factor, expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("backend", EAGER, indirect=True)
def test_the_small_steps_of_a_schedule_do_not_use_the_patience_up(backend):
    # in float32 the first, tiny steps change nothing that can be measured
    A = spd(24, 300.0)
    start = np.linalg.cholesky(np.linalg.inv(A)) @ (np.eye(24) + 0.02 * np.tril(np.ones((24, 24))))
    place = functools.partial(backend.array, dtype="float32")
    found = inverse_factor(place(A), place(start), tolerance=1e-3, step=log_linear_step(1e-9, 20), patience=2)
    assert float(found.residual) < 1e-3
    assert float(found.steps) > 10.0


def test_rules_say_what_they_are():
    # a checkpoint compares what is printed
    rules = [constant_step(1.0), constant_step(0.5), log_linear_step(), log_linear_step(1e-4), doubling_step(0.1)]
    assert len({repr(rule) for rule in rules}) == len(rules)
    assert log_linear_step() == log_linear_step(1e-5, 10)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: constant_step(0.0),
        lambda: constant_step(math.nan),
        lambda: log_linear_step(-1.0),
        lambda: log_linear_step(end=math.inf),
        lambda: log_linear_step(steps=1),
        lambda: doubling_step(0.0),
        lambda: doubling_step(every=0.0),
    ],
)
def test_sizes_that_are_none_are_refused(wrong):
    with pytest.raises(ValueError, match="but"):
        wrong()


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_doubling_does_not_overflow(dtype, backend):
    found = doubling_step(1e-3)(backend.array(1e4, dtype), backend.array(1.0, dtype))
    np.testing.assert_allclose(backend.numpy(found, dtype), 1.0, rtol=1e-6)


# -- stopping ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", EAGER, indirect=True)
def test_another_gap_takes_the_place_of_the_residual(backend):
    A = backend.array(spd(9, 100.0))
    calls = []

    def doubled(A, L, B):
        calls.append(B.shape)
        return 2.0 * inverse_residual(A, L)

    plain = inverse_factor(A, tolerance=1e-6)
    found = inverse_factor(A, tolerance=2e-6, gap=doubled)
    assert float(found.steps) == float(plain.steps) == len(calls) - 1
    np.testing.assert_array_equal(backend.numpy(found.factor), backend.numpy(plain.factor))
    np.testing.assert_allclose(backend.numpy(found.gap), 2.0 * backend.numpy(found.residual), rtol=1e-12)
    assert float(plain.gap) == float(plain.residual)


def test_a_gap_that_never_falls_ends_on_the_plateau():
    A = spd(9, 100.0)
    found = inverse_factor(A, tolerance=1e-3, max_steps=200, gap=lambda A, L, B: 1.0 + 0.0 * B[0, 0], patience=4)
    assert float(found.residual) < 1e-12
    assert float(found.gap) == 1.0
    assert float(found.steps) < 40.0


@pytest.mark.slow
@pytest.mark.parametrize("backend", EAGER, indirect=True)
@pytest.mark.parametrize("condition", [1e2, 1e4, 1e6])
def test_float32_stays_at_its_floor(condition, backend):
    # about 1.5e-8 times the condition, reached and kept
    A = backend.array(spd(33, condition), "float32")
    found = inverse_factor(A, tolerance=0.0, max_steps=60, patience=100)
    residual = float(found.residual)
    assert 1e-10 * condition < residual < 3e-7 * condition + 1e-6
    assert np.isfinite(backend.numpy(found.factor, "float32")).all()


@pytest.mark.parametrize("rule", ["safe", "log-linear", "doubling"])
def test_a_device_loop_takes_the_same_steps(rule):
    jax = pytest.importorskip("jax")
    A = spd(9, 1e3)
    start = with_largest(A, 5.0)
    weights = np.linspace(1.0, 2.0, 9)

    def run(A, start, weights):
        def gap(A, L, B):
            return ((A @ (L @ (L.T @ weights)) - weights) ** 2).sum()

        return inverse_factor(A, start, tolerance=1e-8, step=RULES[rule], gap=gap)

    expected = run(A, start, weights)
    found = jax.jit(run)(*(JAX.array(x) for x in (A, start, weights)))
    assert float(found.steps) == float(expected.steps)
    assert float(found.gap) < 1e-8
    np.testing.assert_allclose(JAX.numpy(found.factor), expected.factor, rtol=1e-8, atol=1e-9)


@pytest.mark.slow
def test_on_the_floor_of_the_precision_the_iteration_ends():
    # the merit, too, wanders there by much more than its rounding, which is no progress
    steps = []
    for seed in range(6):
        rng = np.random.default_rng(seed)
        Z, X = rng.uniform(-2.0, 2.0, size=(50, 2)), rng.uniform(-2.0, 2.0, size=(200, 2))
        Kuu, Kuf = (np.exp(-0.5 * np.sum((Z[:, None] - other[None]) ** 2, axis=-1)) for other in (Z, X))
        A = Kuu + 1e-6 * np.eye(50) + Kuf @ Kuf.T / 1e-3
        reached = inverse_factor(A, tolerance=1e-4)
        found = inverse_factor(A, reached.factor, tolerance=1e-14, max_steps=200)
        assert float(found.residual) <= 1.1 * float(reached.residual)
        steps.append(float(found.steps))
    # the count varies by a step with the processor; without the rule all 200 are taken
    assert max(steps) <= 15.0
