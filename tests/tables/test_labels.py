"""Labels of tables beside the classes of a model: the same whatever type a file gave them."""

import numpy as np
import pytest

from agp.tables import positions_of

LONG = 2**53


@pytest.mark.parametrize(
    ("labels", "classes", "expected"),
    [
        ([False, True], [0, 1], [0, 1]),
        ([0, 1, 2], [False, True], [0, 1, -1]),
        (["TRUE", "false", "yes", "1"], [False, True], [1, 0, -1, 1]),
        (["2", "007", "1.0", "1.5", "1_0", "nan", "inf", "x"], [1, 2, 7, 10], [1, 2, 0, -1, -1, -1, -1, -1]),
        ([2.0, 3.0], [1, 2], [1, -1]),
        ([1, 2], ["1", "2", "x"], [0, 1]),
        ([1.0, 2.5], ["1", "2.5"], [0, 1]),
        (["7", "007", "7.0"], ["007", "7"], [1, 0, 1]),
        ([True, False], ["False", "True"], [1, 0]),
        ([str(LONG + 1), str(LONG)], [LONG, LONG + 1], [1, 0]),
    ],
)
def test_each_label_is_taken_as_what_the_classes_are(labels, classes, expected):
    np.testing.assert_array_equal(positions_of(np.asarray(labels), np.asarray(classes)), expected)
