"""Elementary functions, against NumPy's."""

import numpy as np

from rankgrad.kernels.cpu import _arithmetic


def of(function, x, *others):
    return np.array([function(*each) for each in zip(x, *others, strict=True)])


def test_exp():
    x = np.concatenate([np.linspace(-690, 700, 2001), np.linspace(-1, 1, 501), [0.0]])
    np.testing.assert_allclose(of(_arithmetic.exp, x), np.exp(x), rtol=5e-16)
    assert 0 < _arithmetic.exp(-1e6) < 1e-303
    x = np.linspace(-1, 1, 501) / 128
    np.testing.assert_allclose(of(_arithmetic.exp_near_zero, x), np.exp(x), rtol=5e-16)


def test_log():
    x = np.concatenate([np.logspace(-307, 307, 2001), np.linspace(0.5, 2, 501), [1.0]])
    np.testing.assert_allclose(of(_arithmetic.log, x), np.log(x), rtol=4e-15, atol=4e-15)
    x = np.linspace(0, 1, 501)
    found = of(_arithmetic.log_one_plus, x, 1 / (2 + x))
    np.testing.assert_allclose(found, np.log1p(x), rtol=4e-15)
