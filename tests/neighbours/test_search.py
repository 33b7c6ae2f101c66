"""The nearest rows: those of a search over all, ties by the number of the row, and the same rows on every library."""

import numpy as np
import pytest
from helpers import JAX, NUMPY, as_arrays, peak

from agp.backend import row_numbers, to_numpy
from agp.kernels import RBF, Constant, Linear, Matern32, Overlap, Periodic
from agp.neighbours import SPARE, TREE_COLUMNS, NeighbourSearch, _SingleDistances, effective_columns
from agp.processes import near_search, ordered_rows

COLUMNS = {"tree": 2, "blocks": 12}
"""Few columns are searched by a tree, many by blocks of distances."""


def rows_of(kind, N=300, columns=2, seed=0):
    """Random rows, or rows of whole numbers, which are full of ties and repetitions."""
    rng = np.random.default_rng([seed, columns])
    return rng.normal(size=(N, columns)) if kind == "smooth" else rng.integers(0, 3, size=(N, columns)).astype(float)


def by_distance(X, q, k, numbers=None):
    """The numbers of the k rows nearest to q, found by sorting all of them; ties in the order of `numbers`."""
    numbers = np.arange(len(X)) if numbers is None else numbers
    sizes = np.sum((X[numbers] - q) ** 2, axis=1).astype(np.float32)
    return numbers[np.argsort(sizes, kind="stable")][:k]


def earlier_by_distance(X, order, k):
    """The same for each row, in the order of the rows, among those before it; -1 where there are fewer."""
    found = np.full((len(X), k), -1)
    for i, row in enumerate(order):
        near = by_distance(X, X[row], k, order[:i])
        found[i, : len(near)] = near
    return found


def search_of(place, X, factors=None):
    return NeighbourSearch(place.array(X), place.array(np.ones(X.shape[1]) if factors is None else factors))


def integers(place, found):
    """The host copy of numbers of rows, which must be from a place."""
    host = np.asarray(to_numpy(found))
    place.check(found, host.dtype.name)
    assert host.dtype.kind == "i"
    return host


@pytest.mark.parametrize("kind", ["smooth", "whole"])
@pytest.mark.parametrize("columns", COLUMNS)
def test_nearest_rows_are_those_of_a_sort(columns, kind, backend):
    X, Q = (rows_of(kind, N, COLUMNS[columns], seed=N) for N in (300, 20))
    found = integers(backend, search_of(backend, X).nearest(backend.array(Q), 7))
    np.testing.assert_array_equal(found, [by_distance(X, q, 7) for q in Q])


@pytest.mark.parametrize(("scale", "offset"), [(1.0, 0.0), (1.0, 1e5), (1e-30, 0.0), (1e30, 0.0)])
@pytest.mark.parametrize("kind", ["smooth", "whole"])
@pytest.mark.parametrize("columns", COLUMNS)
def test_the_nearest_rows_of_one_input_are_those_of_many(columns, kind, scale, offset):
    X, Q = (scale * rows_of(kind, N, COLUMNS[columns], seed=N) + offset for N in (300, 20))
    search = search_of(NUMPY, X)
    assert search._single is not None
    together = search.nearest(Q, 7)
    np.testing.assert_array_equal([search.nearest(Q[i : i + 1, :], 7)[0, :] for i in range(20)], together)
    np.testing.assert_array_equal(search.nearest(Q[:3, :], 7), together[:3, :])
    np.testing.assert_array_equal(search.nearest(X[:1, :], 300), search.nearest(X[:20, :], 300)[:1, :])


def test_one_input_whose_distances_overflow_in_single_precision():
    X = rows_of("smooth", 300, 2)
    X[0, :] = 1e30
    search = search_of(NUMPY, X)
    np.testing.assert_array_equal(search.nearest(X[5:6, :], 4), search.nearest(X[5:25, :], 4)[:1, :])
    assert search.nearest(X[:0, :], 4).shape == (0, 4)


@pytest.mark.parametrize("kind", ["smooth", "whole"])
@pytest.mark.parametrize("columns", COLUMNS)
def test_other_rows_leave_out_the_row_itself(columns, kind, backend):
    X, rows = rows_of(kind, columns=COLUMNS[columns]), np.arange(0, 300, 11)
    found = integers(backend, search_of(backend, X).others(backend.array(rows, "int64"), 6))
    expected = [by_distance(X, X[row], 6, np.delete(np.arange(300), row)) for row in rows]
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("kind", ["smooth", "whole"])
@pytest.mark.parametrize("columns", COLUMNS)
def test_earlier_rows_come_before_in_the_order(columns, kind, backend, monkeypatch):
    monkeypatch.setattr("agp.neighbours.FIRST", 32)  # several stages
    X, order = rows_of(kind, 200, COLUMNS[columns]), np.random.default_rng(1).permutation(200)
    search, there = search_of(backend, X), backend.array(order, "int64")
    expected = earlier_by_distance(X, order, 5)
    np.testing.assert_array_equal(integers(backend, search.earlier(there, 5)), expected)
    np.testing.assert_array_equal(integers(backend, search.earlier(there, 5, start=150)), expected[150:])


@pytest.mark.parametrize("columns", COLUMNS)
def test_more_neighbours_than_there_are_earlier_rows(columns, backend, monkeypatch):
    monkeypatch.setattr("agp.neighbours.FIRST", 4)
    X, order = rows_of("smooth", 30, COLUMNS[columns]), np.random.default_rng(1).permutation(30)
    found = integers(backend, search_of(backend, X).earlier(backend.array(order, "int64"), 20))
    np.testing.assert_array_equal(found, earlier_by_distance(X, order, 20))


def test_factors_scale_the_columns_and_drop_some(backend):
    X, Q, factors = rows_of("smooth", 200, 3), rows_of("smooth", 9, 3, seed=1), np.array([2.0, 0.0, 0.3])
    found = integers(backend, search_of(backend, X, factors).nearest(backend.array(Q), 5))
    np.testing.assert_array_equal(found, [by_distance(X * factors, q, 5) for q in Q * factors])


def test_the_number_of_columns_decides_on_a_tree():
    assert effective_columns(rows_of("smooth", columns=COLUMNS["tree"])) < TREE_COLUMNS
    assert effective_columns(rows_of("smooth", columns=COLUMNS["blocks"])) > TREE_COLUMNS
    assert effective_columns(np.ones((5, 3))) == 1.0
    X = rows_of("smooth", columns=12)
    kinds = [NeighbourSearch(X, factors)._tree is not None for factors in (np.ones(12), np.eye(12)[0])]
    assert kinds == [False, True]


@pytest.mark.parametrize("counted", [1, 7, 500])
def test_some_rows_tell_the_number_of_columns(counted, monkeypatch):
    monkeypatch.setattr("agp.neighbours.COUNTED_ROWS", counted)
    for columns in (2, 12):
        X, Q = (rows_of("smooth", N, columns, seed=N) for N in (300, 20))
        search = NeighbourSearch(X, np.ones(columns))
        np.testing.assert_array_equal(search.nearest(Q, 7), [by_distance(X, q, 7) for q in Q])
        assert counted < 10 or (search._tree is not None) == (columns == 2)


def levels_of(tree):
    """The number of levels of nodes of a tree."""
    level, count = [tree.tree], 0
    while level:
        level, count = [x for node in level for x in (node.lesser, node.greater) if x is not None], count + 1
    return count


def scales(N, seed):
    """Rows on eight lines through the origin, at distances of all orders of magnitude."""
    rng = np.random.default_rng(seed)
    return np.eye(8)[rng.integers(0, 8, N)] * 2.0 ** -rng.uniform(0.0, 60.0, (N, 1))


MANY = {
    "smooth": lambda N, seed: rows_of("smooth", N, 3, seed),
    "whole": lambda N, seed: rows_of("whole", N, 3, seed),
    "heavy tails": lambda N, seed: np.random.default_rng(seed).standard_cauchy((N, 2)),
    "groups": lambda N, seed: rows_of("whole", N, 3, seed) + 1e-6 * rows_of("smooth", N, 3, seed),
    "one point": lambda N, seed: np.zeros((N, 3)),
    "scales": scales,
}


@pytest.mark.parametrize("case", MANY)
def test_many_rows_are_found_by_halves(case, monkeypatch):
    X, Q = MANY[case](2000, 0), MANY[case](30, 1)
    usual = NeighbourSearch(X, np.ones(X.shape[1]))
    monkeypatch.setattr("agp.neighbours.HALVED_ROWS", 2000)
    search, order = NeighbourSearch(X, np.ones(X.shape[1])), np.random.default_rng(1).permutation(2000)
    np.testing.assert_array_equal(search.nearest(Q, 7), usual.nearest(Q, 7))
    np.testing.assert_array_equal(search.others(np.arange(0, 2000, 50), 7), usual.others(np.arange(0, 2000, 50), 7))
    np.testing.assert_array_equal(search.earlier(order, 7), usual.earlier(order, 7))
    halved = levels_of(search._tree) > levels_of(usual._tree)
    assert halved == (case not in ("scales", "one point", "whole"))  # too many halves, and few places


def test_rows_that_would_be_halved_very_often_have_few_levels(monkeypatch):
    monkeypatch.setattr("agp.neighbours.HALVED_ROWS", 2000)
    assert levels_of(NeighbourSearch(scales(4000, 0), np.ones(8))._tree) < 15
    monkeypatch.setattr("agp.neighbours.DEEP", 10_000)
    assert levels_of(NeighbourSearch(scales(4000, 0), np.ones(8))._tree) > 100


@pytest.mark.parametrize("k", [1, 12])
@pytest.mark.parametrize("layout", [np.ascontiguousarray, np.asfortranarray, lambda X: np.repeat(X, 2, axis=1)[:, ::2]])
def test_a_search_does_not_copy_all_rows_for_some(layout, k):
    X = layout(rows_of("smooth", 400_000, 2))
    search, Q = NeighbourSearch(X, np.ones(2)), rows_of("smooth", 10, 2, seed=1)
    np.testing.assert_array_equal(search.nearest(Q, k), [by_distance(X, q, k) for q in Q])
    assert peak(lambda: search.nearest(Q, k)) < 0.1 * X.nbytes / 2**20


@pytest.mark.parametrize("columns", COLUMNS)
def test_all_rows_can_be_neighbours(columns, backend):
    X = rows_of("smooth", 12, COLUMNS[columns])
    search, order = search_of(backend, X), np.arange(12)[::-1].copy()
    found = integers(backend, search.nearest(backend.array(X), 12))
    np.testing.assert_array_equal(np.sort(found, axis=1), np.broadcast_to(np.arange(12), (12, 12)))
    earlier = integers(backend, search.earlier(backend.array(order, "int64"), 30))
    assert [set(row) - {-1} for row in earlier] == [set(order[:i]) for i in range(12)]


@pytest.mark.parametrize("columns", COLUMNS)
def test_equal_rows_are_taken_by_their_numbers(columns, backend):
    X = np.zeros((60, COLUMNS[columns]))
    search = search_of(backend, X)
    np.testing.assert_array_equal(integers(backend, search.nearest(backend.array(X[:2]), 4)), [[0, 1, 2, 3]] * 2)
    found = integers(backend, search.others(backend.array(np.array([2, 50]), "int64"), 4))
    np.testing.assert_array_equal(found, [[0, 1, 3, 4], [0, 1, 2, 3]])


@pytest.mark.parametrize("columns", COLUMNS)
def test_a_search_over_float32_is_that_of_its_numbers(columns):
    X = rows_of("smooth", columns=COLUMNS[columns]).astype(np.float32)
    found = NeighbourSearch(X, np.ones(X.shape[1], dtype=np.float32)).nearest(X[:9], 5)
    np.testing.assert_array_equal(found, [by_distance(X.astype(float), q, 5) for q in X[:9].astype(float)])


# -- kernels without scales -------------------------------------------------------------------------------------------

BY_CORRELATION = {"linear": lambda: Linear(0.7) + Constant(0.3), "periodic": lambda: Periodic(1.3, 0.8, 2.2)}


@pytest.mark.parametrize("name", BY_CORRELATION)
def test_without_scales_the_most_correlated_rows_are_near(name, backend):
    kernel, X, Q = as_arrays(BY_CORRELATION[name]()), rows_of("smooth"), rows_of("smooth", 9, seed=1)
    assert kernel.inverse_scales(2) is None
    squares = kernel(Q, X)[0] ** 2 / (kernel.diag(Q)[0][:, None] * kernel.diag(X)[0])
    search = near_search(backend.move(kernel), backend.array(X))
    found = integers(backend, search.nearest(backend.array(Q), 5))
    np.testing.assert_array_equal(found, np.argsort(1.0 - squares, axis=1, kind="stable")[:, :5])


def test_rows_without_variance_are_far():
    kernel, X = as_arrays(Linear(0.7)), np.array([[0.0], [1.0], [2.0], [0.0]])
    found = near_search(kernel, X).nearest(np.array([[3.0]]), 4)
    np.testing.assert_array_equal(found, [[1, 2, 0, 3]])


def test_earlier_rows_by_correlation():
    kernel, X, order = (
        as_arrays(Periodic(1.3, 0.8, 2.2)),
        rows_of("smooth", 60),
        np.random.default_rng(2).permutation(60),
    )
    found, K = near_search(kernel, X).earlier(order, 4), kernel(X)[0]
    for i in range(4, 60):
        near = order[:i][np.argsort(-(K[order[i], order[:i]] ** 2), kind="stable")[:4]]
        np.testing.assert_array_equal(found[i], near)


# -- blocks, compiled programs and the order --------------------------------------------------------------------------


@pytest.mark.parametrize("columns", COLUMNS)
def test_memory_bounds_the_search_and_not_what_it_finds(columns):
    X = rows_of("smooth", 4000, COLUMNS[columns])
    search, order = NeighbourSearch(X, np.ones(X.shape[1])), np.random.default_rng(1).permutation(4000)
    for find in (lambda **limit: search.nearest(X, 5, **limit), lambda **limit: search.earlier(order, 5, **limit)):
        np.testing.assert_array_equal(find(memory=4.0), find())
    if columns == "blocks":
        assert peak(lambda: search.nearest(X, 5, memory=4.0)) < 8.0


def test_a_compiled_search_finds_the_same_rows(available):
    place = available(JAX)
    import jax

    X, Q = rows_of("smooth", 100, 3), rows_of("smooth", 9, 3, seed=1)
    expected = NeighbourSearch(X, np.ones(3)).nearest(Q, 5)
    search = search_of(place, X)
    np.testing.assert_array_equal(jax.jit(lambda q: search.nearest(q, 5))(place.array(Q)), expected)
    kernel = place.move(as_arrays(RBF(1.0, 1.0)))
    both = jax.jit(lambda kernel, x, q: near_search(kernel, x).nearest(q, 5))
    np.testing.assert_array_equal(both(kernel, place.array(X), place.array(Q)), expected)
    order = np.random.default_rng(1).permutation(100)
    earlier = jax.jit(lambda kernel, x, order: near_search(kernel, x).earlier(order, 5))
    found = earlier(kernel, place.array(X), place.array(order, "int64"))
    np.testing.assert_array_equal(found, earlier_by_distance(X, order, 5))


def test_the_metric_is_that_of_the_kernel():
    X, Q = rows_of("smooth", 200, 3), rows_of("smooth", 5, 3, seed=1)
    scales = np.array([0.3, 2.0, 5.0])
    found = near_search(as_arrays(Matern32(1.0, scales)), X).nearest(Q, 4)
    np.testing.assert_array_equal(found, [by_distance(X / scales, q, 4) for q in Q / scales])


def test_an_order_is_random_and_keeps_the_last_rows(backend):
    order = integers(backend, ordered_rows(30, 3, backend.array(np.zeros(2)), last=5))
    np.testing.assert_array_equal(np.sort(order), np.arange(30))
    np.testing.assert_array_equal(order[25:], np.arange(25, 30))
    assert np.any(order[:25] != np.arange(25))
    np.testing.assert_array_equal(order, ordered_rows(30, 3, NUMPY.array(np.zeros(2)), last=5))
    assert np.any(order != ordered_rows(30, 4, NUMPY.array(np.zeros(2)), last=5))


# -- codes of levels ---------------------------------------------------------------------------------------------------


def mixed_rows(N, levels, seed=0, numbers=2, offset=0.0):
    """Numbers, and a last column of codes from -1 on."""
    rng = np.random.default_rng([seed, levels])
    return np.column_stack([rng.normal(size=(N, numbers)) + offset, rng.integers(-1, levels, N)])


def by_mixed_distance(X, factors, q, k, numbers=None):
    """The nearest rows, where different levels in the last column are at the distance 1."""
    numbers = np.arange(len(X)) if numbers is None else numbers
    apart = X[numbers] - q
    apart[:, -1] = apart[:, -1] != 0.0
    sizes = np.sum((apart * factors) ** 2, axis=1).astype(np.float32)
    return numbers[np.argsort(sizes, kind="stable")][:k]


@pytest.mark.parametrize(("levels", "numbers"), [(2, 1), (5, 2), (31, 2), (5, 12)])
@pytest.mark.parametrize("factor", [0.1, 1.0, 20.0])
def test_few_levels_are_at_their_exact_distances(levels, numbers, factor, backend):
    X, Q = (mixed_rows(N, levels, N, numbers) for N in (300, 20))
    factors = np.append(np.linspace(0.5, 2.0, numbers), factor)
    search = NeighbourSearch(backend.array(X), backend.array(factors), levels={numbers: levels})
    expected = [by_mixed_distance(X, factors, q, 7) for q in Q]
    np.testing.assert_array_equal(integers(backend, search.nearest(backend.array(Q), 7)), expected)
    alone = [integers(backend, search.nearest(backend.array(Q[i : i + 1, :]), 7))[0] for i in range(4)]
    np.testing.assert_array_equal(alone, expected[:4])
    found = integers(backend, search.earlier(row_numbers(300, backend.array(X)), 5))
    for row in range(5, 300):
        np.testing.assert_array_equal(found[row], by_mixed_distance(X, factors, X[row], 5, np.arange(row)))


def test_many_levels_have_distances_of_about_one():
    X = np.column_stack([np.linspace(0.0, 1.0, 2000), np.tile(np.arange(500.0), 4)])
    search = NeighbourSearch(X, np.asarray([1.0, 3.0]), levels={1: 500})
    found = search.nearest(X[:50, :], 4)
    np.testing.assert_array_equal(np.sort(X[found][:, :, 1], axis=1), np.repeat(X[:50, 1:], 4, axis=1))  # own level
    rows = search._places(search._times_factors(X[:500, :]))[:, 1:]
    sizes = np.sum((rows[:, None, :] - rows) ** 2, axis=-1)[np.triu_indices(500, 1)]
    assert abs(sizes.mean() / 9.0 - 1.0) < 0.02
    assert np.sqrt(sizes / 9.0).std() < 0.2


def test_many_categories_have_few_columns_in_all():
    rng = np.random.default_rng(0)
    X = rng.integers(0, 40, (100, 150))[rng.integers(0, 100, 2000), :].astype(float)
    X[rng.random(X.shape) < 0.3] = 7.0
    search = NeighbourSearch(X, np.ones(150), levels=dict.fromkeys(range(150), 40))
    assert search._rows.shape[1] <= 150 + 5 * 150
    different = np.sum(X[:30, None, :] != X, axis=-1)
    found = np.take_along_axis(different, search.nearest(X[:30, :], 10), axis=1)
    assert np.mean(found - np.sort(different, axis=1)[:, :10]) < 0.5  # of about 130


def test_columns_of_codes_are_those_of_the_kernel(backend):
    X = backend.array(mixed_rows(60, 4))
    kernel = as_arrays((RBF(1.0, (0.5, 1.0)).on((0, 1)) * Overlap(0.7).on(2)).from_data(backend.numpy(X), 1.0))
    search = near_search(backend.move(kernel), X)
    K = kernel(backend.numpy(X))[0]
    found = integers(backend, search.others(row_numbers(60, X), 5))
    np.fill_diagonal(K, -1.0)
    best = np.sort(K, axis=1)[:, :-6:-1]
    np.testing.assert_allclose(np.take_along_axis(K, found, axis=1), best, rtol=1e-6)  # the most correlated rows


# -- blocks in single precision ----------------------------------------------------------------------------------------


def _outlier(X):
    X[7, :] = 1e6
    return X


def _huge(X):
    X[7, :] = 1e30
    return X


HARD = {
    "smooth": lambda X: X,
    "whole numbers": lambda X: np.round(X),
    "far from the origin": lambda X: X + 1e7,
    "an outlier": _outlier,
    "overflow": _huge,
    "tiny": lambda X: 1e-30 * X,
    "duplicates": lambda X: X[np.arange(len(X)) // 40],
    "nearly duplicates": lambda X: X[np.arange(len(X)) // 40] + 1e-4 * X,
    "one point": lambda X: np.zeros_like(X),
}


@pytest.mark.parametrize("case", HARD)
def test_blocks_in_single_precision_find_the_rows_of_double_precision(case, monkeypatch):
    X = HARD[case](rows_of("smooth", 600, 12))
    Q = np.concatenate([X[:25], HARD[case](rows_of("smooth", 60, 12, seed=9))])
    search, called = search_of(NUMPY, X), []
    assert search._tree is None or case in ("an outlier", "overflow", "one point", "duplicates", "nearly duplicates")
    search._tree = None
    narrow = _SingleDistances.candidates_of_each
    monkeypatch.setattr(_SingleDistances, "candidates_of_each", lambda *a: called.append(1) or narrow(*a))
    found, earlier = search.nearest(Q, 6), search.earlier(np.arange(600), 6)
    assert called
    monkeypatch.setattr(NeighbourSearch, "_nearest_narrowly", _in_double)
    np.testing.assert_array_equal(found, search.nearest(Q, 6))
    np.testing.assert_array_equal(earlier, search.earlier(np.arange(600), 6))
    if case not in ("far from the origin", "overflow"):  # the sort computes in other orders
        np.testing.assert_array_equal(found, [by_distance(X, q, 6) for q in Q])


def _in_double(self, Q, rows, k, own):
    return self._nearest(Q, rows, None, k, own, k + SPARE)
