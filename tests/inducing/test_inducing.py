"""Where inducing inputs start: k-means, random rows, greedy variance; the same on every library."""

import itertools

import numpy as np
import pytest
from helpers import as_arrays
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial.distance import cdist

from agp import RBF, Linear, Matern32, White, to_backend, to_numpy
from agp.inducing import choose, greedy_variance, kmeans, random


def clusters(scale=(1.0, 1.0), dtype="float64"):
    rng = np.random.default_rng(0)
    centres = np.array([[0.0, 0.0], [10.0, 0.0], [0.0, 10.0], [10.0, 10.0]])
    return (np.repeat(centres, 25, axis=0) + 0.1 * rng.normal(size=(100, 2))).astype(dtype) * np.asarray(scale, dtype)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("scale", [(1.0, 1.0), (1e-3, 1e4)], ids=["alike", "unlike"])
def test_every_cluster_gets_a_centre(seed, scale):
    X = clusters(scale)
    Z = kmeans(X, 4, seed=seed)
    assert Z.shape == (4, 2)
    assert cdist(X / scale, Z / scale).min(axis=1).max() < 0.6


def test_more_centres_lie_closer():
    X = np.random.default_rng(0).uniform(size=(300, 2))
    mean_distance = [np.mean(cdist(X, kmeans(X, M)).min(axis=1)) for M in (2, 8, 32, 128)]
    assert all(closer < 0.7 * farther for farther, closer in itertools.pairwise(mean_distance))


def test_all_rows_as_centres_are_the_rows():
    X = clusters()
    assert cdist(X, kmeans(X, 100)).min(axis=1).max() < 1e-9


def test_the_seed_decides():
    X = np.random.default_rng(0).uniform(size=(300, 2))
    np.testing.assert_array_equal(kmeans(X, 8, seed=1), kmeans(X, 8, seed=1))
    assert not np.array_equal(kmeans(X, 8, seed=1), kmeans(X, 8, seed=2))


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("library", ["numpy", "torch", "array_api_strict"])
def test_every_library_gets_the_same_centres(library, dtype):
    pytest.importorskip(library)
    X = to_backend(clusters(dtype=dtype), library)
    Z = kmeans(X, 6)
    assert type(Z) is type(X)
    assert Z.dtype == X.dtype
    np.testing.assert_array_equal(to_numpy(Z), kmeans(clusters(dtype=dtype), 6))


def test_centres_are_on_the_device_of_the_rows():
    pytest.importorskip("array_api_strict")
    X = to_backend(clusters(), "array_api_strict", device="device1")
    assert kmeans(X, 3).device == X.device


@pytest.mark.parametrize(
    "X",
    [np.zeros((9, 2)), np.repeat(np.eye(2), 5, axis=0), np.full((9, 1), 0.1), np.ones((1, 3))],
    ids=["zeros", "two distinct", "rounded constant", "one row"],
)
def test_repeated_rows_give_finite_centres_among_them(X):
    M = min(4, len(X))
    Z = kmeans(X, M)
    assert Z.shape == (M, X.shape[1])
    assert cdist(Z, X).min(axis=1).max() < 1e-9


def test_rows_that_differ_by_more_than_rounding_get_their_own_centres():
    X = np.repeat([1.0, 1.0 + 14.0 * 2.0**-52], 5)[:, None]
    np.testing.assert_array_equal(np.sort(kmeans(X, 2), axis=0), X[[0, -1]])


def test_centres_stay_inside_the_data():
    X = clusters()
    Z = kmeans(X, 9)
    assert np.all(X.min(axis=0) <= Z)
    assert np.all(X.max(axis=0) >= Z)


def test_many_rows_are_thinned():
    Z = kmeans(clusters(), 4, rows=50)
    assert cdist(clusters(), Z).min(axis=1).max() < 0.7


def test_more_centres_than_thinned_rows_are_still_possible():
    Z = kmeans(clusters(), 60, rows=50)
    assert Z.shape == (60, 2)
    assert np.all(np.isfinite(Z))


def test_the_data_are_not_changed():
    X = clusters()
    before = X.copy()
    kmeans(X, 4)
    np.testing.assert_array_equal(X, before)


# -- what all ways share ----------------------------------------------------------------------------------------------

KERNEL = RBF(1.3, 2.0)
WAYS = {
    "kmeans": kmeans,
    "random": random,
    "greedy-variance": lambda X, M, **options: greedy_variance(X, KERNEL, M, **options),
}
ROWS_OF_DATA = ("random", "greedy-variance")


def uniform(rows=60, dtype="float64"):
    return np.random.default_rng(4).uniform(-4.0, 4.0, size=(rows, 2)).astype(dtype)


def positions(X, Z):
    """Where the rows of Z stand in X, which they must, once each."""
    found = [np.flatnonzero(np.all(z == X, axis=1)) for z in Z]
    assert all(len(at) == 1 for at in found)
    assert len({int(at[0]) for at in found}) == len(Z)
    return [int(at[0]) for at in found]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("M", [0, -1, 101, 2.5, float("nan"), True, "many", None], ids=repr)
def test_numbers_that_are_out_of_range_or_not_whole_are_refused(way, M):
    message = f"num_inducing is {M!r}, but must be a whole number from 1 to the number of rows, 100"
    with pytest.raises(ValueError, match=message):
        WAYS[way](clusters(), M)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("M", [4.0, np.int64(4), np.float32(4)], ids=repr)
def test_whole_numbers_of_every_kind_count(way, M):
    np.testing.assert_array_equal(WAYS[way](uniform(), M), WAYS[way](uniform(), 4))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("X", "message"),
    [
        (np.array([[1.0], [np.nan]]), "X has 1 NaN or infinite entries, the first in row 1"),
        (np.arange(4.0), "must be 2-dimensional"),
        (np.arange(4)[:, None], "X has dtype int64"),
    ],
    ids=["nan", "1-D", "integer"],
)
def test_inputs_that_are_none_are_refused(way, X, message):
    with pytest.raises((TypeError, ValueError), match=message):
        WAYS[way](X, 1)


@pytest.mark.parametrize("way", ROWS_OF_DATA)
def test_the_seed_decides_which_rows(way):
    X = uniform()
    np.testing.assert_array_equal(WAYS[way](X, 8, seed=1), WAYS[way](X, 8, seed=1))
    assert positions(X, WAYS[way](X, 8, seed=1)) != positions(X, WAYS[way](X, 8, seed=2))


@pytest.mark.parametrize("way", ROWS_OF_DATA)
@pytest.mark.parametrize("M", [1, 7, 60])
def test_inducing_inputs_are_distinct_rows(way, M):
    X = uniform()
    before = X.copy()
    assert len(positions(X, WAYS[way](X, M))) == M
    np.testing.assert_array_equal(X, before)


@pytest.mark.parametrize("way", ROWS_OF_DATA)
def test_repeated_rows_are_taken_once(way):
    X = np.repeat(np.arange(5.0)[:, None], 9, axis=0)
    for seed in range(4):
        Z = WAYS[way](X, 5, seed=seed)
        np.testing.assert_array_equal(np.sort(Z[:, 0]), np.arange(5.0))


@pytest.mark.parametrize("way", ROWS_OF_DATA)
def test_fewer_distinct_rows_than_inducing_inputs_are_refused(way):
    X = np.concatenate([np.repeat(np.arange(3.0), 4), [-0.0]])[:, None]
    with pytest.raises(ValueError, match="num_inducing is 4, but only 3 of the 13 rows used are distinct"):
        WAYS[way](X, 4)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("way", WAYS)
def test_every_backend_gets_the_same_rows(way, dtype, backend):
    X = uniform(dtype=dtype)
    Z = WAYS[way](backend.array(X, dtype), 9, seed=3)
    np.testing.assert_array_equal(backend.numpy(Z, dtype), WAYS[way](X, 9, seed=3))


# -- greedy variance --------------------------------------------------------------------------------------------------


def conditional_variances(kernel, X, Z):
    """diag(Kff - Kfu Kuu^-1 Kuf), by a solve."""
    Kuu, Kuf = kernel(Z)[0], kernel(Z, X)[0]
    return kernel.diag(X)[0] - np.sum(Kuf * np.linalg.solve(Kuu, Kuf), axis=0)


GREEDY = {
    "rbf": RBF(1.3, 0.8),
    "ard": RBF(0.7, (0.5, 2.0)),
    "sum": RBF(0.8, 0.7) + Matern32(0.5, 1.4),
    "mixed": Linear(0.6) * RBF(1.0, 1.5) + Matern32(0.2, 0.5),
    "noisy": Matern32(1.0, 0.8) + White(0.1),
    "on": Matern32(1.0, 0.8).on((1,)),
}


@pytest.mark.parametrize("kernel", GREEDY.values(), ids=GREEDY)
def test_each_row_has_the_largest_variance_that_the_others_leave(kernel):
    X, kernel = uniform(), as_arrays(kernel)
    Z = greedy_variance(X, kernel, 12)
    at = positions(X, Z)
    variances = kernel.diag(X)[0]
    for j in range(12):
        free = np.delete(variances, at[:j])
        assert variances[at[j]] >= (1.0 - 2e-6) * free.max()
        variances = conditional_variances(kernel, X, Z[: j + 1])


def test_the_choice_is_the_pivoting_of_a_textbook_factorisation():
    # full matrices and Schur complements, which share nothing with the rows of a factor
    X, kernel = uniform(40), as_arrays(Linear(0.3) + Matern32(1.0, 1.1))
    K, expected = np.array(kernel(X)[0]), []
    for _ in range(15):
        i = int(np.argmax(np.diag(K)))
        expected.append(i)
        K = K - np.outer(K[:, i], K[i, :]) / K[i, i]
    assert positions(X, greedy_variance(X, kernel, 15)) == expected


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**20), M=st.integers(2, 20), lengthscale=st.floats(0.1, 3.0))
def test_what_is_left_shrinks_and_the_first_rows_do_not_depend_on_the_rest(seed, M, lengthscale):
    X, kernel = np.random.default_rng(seed).normal(size=(40, 2)), as_arrays(Matern32(1.0, lengthscale))
    Z = greedy_variance(X, kernel, M, seed=seed)
    np.testing.assert_array_equal(greedy_variance(X, kernel, M - 1, seed=seed), Z[:-1])
    fewer, more = (conditional_variances(kernel, X, Z[:m]).sum() for m in (M - 1, M))
    assert more < fewer


def test_with_enough_rows_less_is_left_than_by_the_other_ways():
    # with few rows it is the other way round: what is explained least lies at the edge
    X, kernel = np.random.default_rng(0).uniform(-2.0, 2.0, size=(300, 2)), as_arrays(RBF(1.0, 1.0) + White(1e-6))
    left = {way: conditional_variances(kernel, X, choose(X, kernel, 60, how=way)).sum() for way in WAYS}
    assert left["greedy-variance"] < 0.5 * left["kmeans"]
    assert left["greedy-variance"] < 0.1 * left["random"]


@pytest.mark.parametrize("tolerance", [0.5, 0.1, 1e-3])
def test_a_tolerance_stops_at_the_first_row_that_meets_it(tolerance):
    X, kernel = uniform(), as_arrays(RBF(1.3, 2.0))
    Z = greedy_variance(X, kernel, 60, tolerance=tolerance)
    assert 1 < len(Z) < 60
    np.testing.assert_array_equal(Z, greedy_variance(X, kernel, 60)[: len(Z)])
    share = [conditional_variances(kernel, X, Z[:m]).sum() / (1.3 * len(X)) for m in (len(Z) - 1, len(Z))]
    assert share[1] <= tolerance < share[0]


def test_a_tolerance_that_cannot_be_met_gives_all():
    assert len(greedy_variance(uniform(), Matern32(1.0, 0.01), 9, tolerance=1e-9)) == 9


@pytest.mark.parametrize("M", [3, 30])
def test_a_kernel_of_low_rank_is_filled_up_with_other_rows(M):
    X = uniform()
    at = positions(X, greedy_variance(X, Linear(0.5), M))
    assert len(at) == M
    assert at[0] == np.argmax(np.sum(X**2, axis=1))


def test_a_tolerance_stops_where_a_kernel_of_low_rank_is_exhausted():
    X = uniform()
    assert len(greedy_variance(X, Linear(0.5), 30, tolerance=0.0)) == 2
    assert len(greedy_variance(np.zeros((5, 2)), Linear(0.5), 1, tolerance=0.0)) == 1


@pytest.mark.parametrize("M0", [1, 5, 11])
def test_after_given_inputs_the_greedy_sequence_goes_on(backend, M0):
    X, kernel = uniform(), Matern32(1.0, 0.7)
    whole = greedy_variance(X, kernel, 12, seed=3)
    rest = greedy_variance(backend.array(X), kernel, 12 - M0, seed=3, given=backend.array(whole[:M0]))
    np.testing.assert_array_equal(backend.numpy(rest), whole[M0:])


def test_given_inputs_need_not_be_rows_and_are_not_chosen_again():
    X = np.linspace(0.0, 1.0, 21)[:, None]
    far = greedy_variance(X, RBF(1.0, 0.2), 1, given=np.asarray([[0.0001], [0.5]]))
    assert far[0, 0] == 1.0
    rows = greedy_variance(X, RBF(1.0, 1e-3), 18, given=X[:3])
    assert len({*map(float, rows[:, 0])} & {*map(float, X[:3, 0])}) == 0
    assert len(greedy_variance(X, RBF(1.0, 0.2), 5, given=X, tolerance=0.0)) == 0
    assert len(greedy_variance(X, Linear(0.5), 5, given=X[3:5], tolerance=0.0)) == 0
    with pytest.raises(ValueError, match="only 18 of"):
        greedy_variance(X, RBF(1.0, 1e-3), 19, given=X[:3])
    with pytest.raises(ValueError, match="`given` has 2 columns, but X has"):
        greedy_variance(X, RBF(1.0, 1.0), 2, given=np.zeros((2, 2)))


@pytest.mark.slow
def test_ties_are_decided_by_the_seed_and_not_by_last_digits():
    # all rows of a ring are equally good; a kernel that is off in its last digits must not matter
    angle = np.linspace(0.0, 2.0 * np.pi, 24, endpoint=False)
    X = np.stack([np.cos(angle), np.sin(angle)], axis=1)
    for seed in range(5):
        Z = greedy_variance(X, RBF(1.0, 0.5), 8, seed=seed)
        for k in range(1, 10):
            again = greedy_variance(X, RBF(1.0, 0.5 * (1.0 + k * 2e-16)), 8, seed=seed)
            np.testing.assert_array_equal(again, Z)
    assert len({positions(X, greedy_variance(X, RBF(1.0, 0.5), 1, seed=seed))[0] for seed in range(12)}) > 4


def test_only_some_rows_are_looked_at():
    X = uniform(500)
    seen = {at for seed in range(3) for at in positions(X, greedy_variance(X, KERNEL, 20, seed=seed, rows=50))}
    assert len(seen) > 40
    assert len(positions(X, greedy_variance(X, KERNEL, 70, rows=50))) == 70


@pytest.mark.parametrize("tolerance", [-0.1, 1.0, float("nan")])
def test_tolerances_out_of_range_are_refused(tolerance):
    with pytest.raises(ValueError, match=f"tolerance is {tolerance}, but must be None, or at least 0"):
        greedy_variance(uniform(), KERNEL, 3, tolerance=tolerance)


@pytest.mark.parametrize(
    ("kernel", "message"),
    [
        (RBF, "kernel is .*RBF.*, but must be an instance"),
        (RBF(1.0), "lengthscale of the kernel has no value"),
        (RBF(1.0, (1.0, 2.0, 3.0)), "the inputs have 2 columns"),
    ],
    ids=["class", "missing", "width"],
)
def test_kernels_that_cannot_be_used_are_refused(kernel, message):
    with pytest.raises((TypeError, ValueError), match=message):
        greedy_variance(uniform(), kernel, 3)


# -- one entrance -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", WAYS)
def test_every_way_has_a_name(way):
    X = uniform()
    np.testing.assert_array_equal(choose(X, KERNEL, 7, seed=2, how=way), WAYS[way](X, 7, seed=2))


def test_a_function_of_the_user_is_asked():
    seen = []

    def first_rows(X, kernel, num_inducing, seed):
        seen.append((kernel, num_inducing, seed))
        return X[:num_inducing, :]

    X = uniform()
    np.testing.assert_array_equal(choose(X, KERNEL, 3, seed=5, how=first_rows), X[:3])
    assert seen == [(KERNEL, 3, 5)]


def test_a_function_may_give_all_rows():
    X = uniform()
    np.testing.assert_array_equal(choose(X, KERNEL, 3, how=lambda X, *_: X[::-1]), X[::-1])


@pytest.mark.parametrize(
    ("gives", "message"),
    [
        (lambda X: X[:, :1], "has shape .60, 1., but X has shape .60, 2."),
        (lambda X: np.concatenate([X, X]), "at most"),
        (lambda X: X[:0], "must not be empty"),
        (lambda X: X.astype("float32"), "has dtype float32, X has float64"),
        (lambda X: X * np.nan, "NaN or infinite"),
        (lambda X: None, "is None, but must be an array"),
    ],
    ids=["width", "rows", "empty", "dtype", "nan", "none"],
)
def test_what_a_function_gives_is_checked(gives, message):
    with pytest.raises((TypeError, ValueError), match=message):
        choose(uniform(), KERNEL, 3, how=lambda X, *_: gives(X))


@pytest.mark.parametrize("how", ["k-means", None, ["random"], 3])
def test_unknown_ways_are_refused(how):
    with pytest.raises(ValueError, match="but must be one of 'kmeans', 'random', 'greedy-variance', or a function"):
        choose(uniform(), KERNEL, 3, how=how)


@pytest.mark.parametrize("factor", [1e-6, 1e6, np.array([1e-6, 1.0, 1e6])])
def test_kmeans_decides_ties_alike_in_any_units(factor):
    X = np.stack(np.meshgrid(*[np.arange(6.0)] * 3), axis=-1).reshape(-1, 3)  # full of equal distances
    Z = kmeans(X, 20)
    np.testing.assert_allclose(kmeans(X * factor, 20) / factor, Z, rtol=0.0, atol=1e-9)
    np.testing.assert_allclose(kmeans(X + 1e4, 20) - 1e4, Z, rtol=0.0, atol=1e-9)
