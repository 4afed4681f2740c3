"""The same digits as scipy's, which workers have not."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import bdtr, betainc, stdtrit

from mixmark.harness.judge.statistics import intervals
from mixmark.harness.judge.statistics.intervals import binomial_cdf, incomplete_beta, student_t


@pytest.mark.parametrize("a", [0.5, 1, 2.5, 40, 1000])
@pytest.mark.parametrize("b", [0.5, 1, 3, 70, 2000])
def test_the_incomplete_beta_function(a: float, b: float) -> None:
    for x in (0, 1e-9, 0.001, 0.1, 0.3333, 0.5, 0.9, 0.999, 1 - 1e-9, 1):
        assert incomplete_beta(a, b, x) == pytest.approx(betainc(a, b, x), abs=1e-10)


@pytest.mark.parametrize("n", [1, 6, 64, 662, 6636, 100_000])
@pytest.mark.parametrize("p", [0.5, 0.9, 0.1, 0.01, 0.001])
def test_the_binomial_distribution(n: int, p: float) -> None:
    for k in {0, 1, n // 100, n // 10, int(n * p), n // 2, int(n * 0.9), n - 1, n}:
        if k <= n:
            assert binomial_cdf(k, n, p) == pytest.approx(bdtr(k, n, p), abs=1e-10 if n < 10_000 else 1e-9)
    assert binomial_cdf(-1, n, p) == 0


@pytest.mark.parametrize("confidence", [0.5, 0.8, 0.95, 0.99, 0.999])
def test_students_quantile(confidence: float) -> None:
    for df in (1, 1.001, 1.5, 2, 3, 4.7, 10, 19, 29.3, 60, 1000, 1e5):
        assert student_t(df, confidence) == pytest.approx(stdtrit(df, (1 + confidence) / 2), rel=1e-10)
    several = np.array([[1.0, 2.5], [19, 300]])
    assert student_t(several, confidence) == pytest.approx(stdtrit(several, (1 + confidence) / 2), rel=1e-10)


def test_stirlings_series_goes_on_where_the_exact_formula_ends() -> None:
    exact, series = intervals._beyond_stirling(np.array([np.nextafter(10.0, 0.0), 10.0]))
    assert series == pytest.approx(exact, abs=1e-13)
