"""What a few seeds can say: differences and their standard errors, checked by hand."""

import math

import pytest

from eval.compare.statistics import difference, spread


def test_paired_difference_by_hand():
    found = difference({0: 1.0, 1: 2.0, 2: 3.0}, {2: 3.6, 1: 2.4, 0: 1.5})
    assert found.value == pytest.approx(0.5)
    assert found.standard_error == pytest.approx(0.1 / math.sqrt(3))
    assert found.interval == pytest.approx((0.5 - 4.303 * 0.1 / math.sqrt(3), 0.5 + 4.303 * 0.1 / math.sqrt(3)))
    assert (found.pairs, found.freedom, found.excludes_zero) == (3, 2, True)


def test_unpaired_difference_is_welchs():
    """Variances 1 of 3 seeds and 4 of 2: (1/3 + 4/2)² / ((1/3)²/2 + 2²/1) = 1.34 degrees of freedom, rounded down."""
    found = difference({0: 1.0, 1: 2.0, 2: 3.0}, {7: 10.0, 8: 10.0 + 2 * math.sqrt(2)})
    assert found.value == pytest.approx(8.0 + math.sqrt(2))
    assert found.standard_error == pytest.approx(math.sqrt(1 / 3 + 2))
    assert (found.pairs, found.freedom) == (0, 1)


def test_little_is_said_where_little_is_known():
    assert difference({0: 1.0}, {0: 2.0}).interval is None
    assert difference({0: 1.0, 1: 1.1}, {0: 2.0}).interval is None
    assert difference({}, {0: 2.0}) is None
    assert not difference({0: 1.0, 1: 1.1}, {0: 1.2, 1: 1.0}).excludes_zero
    assert not difference({0: 1.0, 1: 1.1}, {0: 1.0, 1: 1.1}).excludes_zero  # the very same figures
    assert (spread([]), spread([1.0]), spread([1.0, 3.0], 1)) == ("-", "1.0000", "2.0 ± 1.4")
