"""Histograms count what NumPy counts, in bounded memory; ranges are ONNX Runtime's where it has the method."""

from __future__ import annotations

import numpy as np
import pytest

from calibration.histogram import HALF, Histogram
from calibration.ranges import METHODS, entropy, minmax, mse, percentile

RNG = np.random.default_rng(5)


def histogram_of(*arrays: np.ndarray) -> Histogram:
    out = Histogram()
    for array in arrays:
        out.add(np.asarray(array, np.float32).reshape(-1, 8))
    return out


NORMAL = RNG.standard_normal((4000, 8)).astype(np.float32)
LAPLACE = RNG.laplace(size=(4000, 8)).astype(np.float32)
ONE_SIDED = np.abs(RNG.standard_normal((4000, 8))).astype(np.float32) - np.float32(0.17)
FREAK = np.concatenate([NORMAL, np.r_[[60.0], NORMAL[0, 1:]][None].astype(np.float32)])
CASES = {"normal": NORMAL, "laplace": LAPLACE, "one-sided": ONE_SIDED, "freak": FREAK}


# -- histograms --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CASES)
def test_counts_are_numpys(name):
    values = CASES[name]
    found = histogram_of(values)
    edges = (np.arange(2 * HALF + 1) - HALF) * found.width
    np.testing.assert_array_equal(found.counts, np.histogram(values, bins=edges)[0])
    assert (found.low, found.high) == (values.min(), values.max())
    np.testing.assert_array_equal(found.peaks, np.abs(values).max(axis=0))
    assert found.limit / 2 < np.abs(values).max() <= found.limit


def test_the_order_of_the_data_changes_nothing():
    """Growing values double the limit many times on the way; shrinking ones never do."""
    parts = [NORMAL * scale for scale in (1e-4, 0.01, 1, 7, 300)]
    growing, shrinking = histogram_of(*parts), histogram_of(*parts[::-1])
    np.testing.assert_array_equal(growing.counts, shrinking.counts)
    assert growing.limit == shrinking.limit
    assert growing.total == 5 * NORMAL.size


def test_a_sum_is_the_histogram_of_everything():
    parts = [histogram_of(NORMAL), histogram_of(LAPLACE * 50), histogram_of(ONE_SIDED * 1e-3)]
    found, expected = Histogram.sum(parts), histogram_of(NORMAL, LAPLACE * 50, ONE_SIDED * 1e-3)
    np.testing.assert_array_equal(found.counts, expected.counts)
    np.testing.assert_array_equal(found.peaks, expected.peaks)
    assert (found.limit, found.low, found.high) == (expected.limit, expected.low, expected.high)
    assert parts[0].limit < found.limit, "adding up must leave the parts alone"


@pytest.mark.parametrize("percent", [0.01, 1, 50, 99, 99.99])
@pytest.mark.parametrize("name", CASES)
def test_percentiles_are_numpys_to_the_width_of_a_bin(name, percent):
    found = histogram_of(CASES[name])
    expected = np.percentile(CASES[name], percent, method="inverted_cdf")
    assert found.percentile(percent) == pytest.approx(expected, abs=found.width)


@pytest.mark.parametrize("values", [np.zeros((0, 8)), np.full((1, 8), np.nan), np.full((1, 8), np.inf)])
def test_nothing_is_counted_that_is_no_number(values):
    with pytest.raises(ValueError, match="activation"):
        Histogram().add(values.astype(np.float32))


# -- ranges ------------------------------------------------------------------------------------------------------------


def by_onnxruntime(values: np.ndarray, method: str) -> tuple[float, float]:
    """The range that ONNX Runtime's own calibrator gives the same values."""
    calibrate = pytest.importorskip("onnxruntime.quantization.calibrate")
    bins = 2048 if method == "entropy" else 8192
    collector = calibrate.HistogramCollector(
        method=method, symmetric=False, num_bins=bins, num_quantized_bins=256, percentile=99.99, scenario="same"
    )
    collector.collect({"x": values})
    low, high = collector.compute_collection_result()["x"][:2]
    return float(low), float(high)


@pytest.mark.parametrize("name", CASES)
def test_percentile_is_onnxruntimes(name):
    found, expected = percentile(histogram_of(CASES[name])), by_onnxruntime(CASES[name], "percentile")
    width = 2 * np.abs(CASES[name]).max() / 8192
    np.testing.assert_allclose(found, expected, atol=2 * width + histogram_of(CASES[name]).width)


@pytest.mark.parametrize("name", ["normal", "laplace"])
def test_entropy_is_onnxruntimes(name):
    """To a tenth: ONNX Runtime tries other cuts, and rounds the distribution it compares with to whole counts."""
    found, expected = entropy(histogram_of(CASES[name])), by_onnxruntime(CASES[name], "entropy")
    np.testing.assert_allclose(found, expected, rtol=0.15)


def test_entropy_cuts_a_freak_off_as_onnxruntime_does():
    (_, found), (_, expected) = entropy(histogram_of(FREAK)), by_onnxruntime(FREAK, "entropy")
    assert found < 30
    assert expected < 60


def test_mse_finds_the_cut_that_brute_force_finds():
    """The error of really rounding the values, over many cuts, has its minimum where the histogram says."""

    def error(cut: float) -> float:
        step = 2 * cut / 255
        return float(np.mean((np.clip(np.rint(LAPLACE / step), -127, 127) * step - LAPLACE) ** 2))

    cuts = np.linspace(2, np.abs(LAPLACE).max(), 200)
    errors = [error(cut) for cut in cuts]
    found = max(np.abs(mse(histogram_of(LAPLACE))))
    assert error(found) <= 1.02 * min(errors)
    assert found < 0.95 * np.abs(LAPLACE).max(), "a distribution with tails is worth cutting"


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("values", [NORMAL, ONE_SIDED, -ONE_SIDED, FREAK, NORMAL + 20, NORMAL * 0, NORMAL * 1e-9])
def test_every_range_holds_zero_and_stays_within_what_occurred(name, values):
    low, high = METHODS[name](histogram_of(values))
    assert min(float(values.min()), 0) <= low <= 0 <= high <= max(float(values.max()), 0)


# -- which is better, and why ------------------------------------------------------------------------------------------


def error_of(values: np.ndarray, span: tuple[float, float]) -> float:
    """Mean squared error of `values` in asymmetric int8 over that span, as a file would round them."""
    from converters.quantize import activation_parameters

    scale, zero = activation_parameters(np.array([span], np.float32))
    q = np.clip(np.rint(values / scale) + zero.astype(np.float32), -128, 127)
    return float(np.mean((values - (q - zero) * scale) ** 2))


def test_one_freak_value_costs_minmax_everything_else():
    """One value of 32,008 is 60: min-max makes every step 9 times wider, 80 times the noise, for all the others."""
    ordinary = RNG.standard_normal((4000, 8)).astype(np.float32)  # what comes later has no freak
    wide, narrow = (error_of(ordinary, method(histogram_of(FREAK))) for method in (minmax, percentile))
    assert wide > 30 * narrow


def test_outlier_channels_that_carry_the_signal_must_not_be_cut():
    """One channel of 8 has 30 times the others' size. Entropy counts how often, not how large, and cuts it; the squared
    error sees that it is most of the signal."""
    planted = NORMAL * np.r_[30, np.ones(7)].astype(np.float32)
    errors = {name: error_of(planted, method(histogram_of(planted))) for name, method in METHODS.items()}
    assert errors["mse"] <= 1.01 * min(errors.values())
    assert errors["entropy"] > 2 * errors["mse"]
