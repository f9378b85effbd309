"""What may be recommended at which quality."""

import pytest
import tensorflow as tf

from grace_tf.advice.quality import LEVELS, Facts, admitted, level_of
from grace_tf.compressors.auto import QUALITIES
from grace_tf.core import registry


def level(name, bits=4.06, residual=False, vnmse=0.001, **facts):
    return level_of(Facts(name, bits, residual, vnmse, **facts))[0]


def test_sixteen_bits_and_small_errors_are_safe():
    assert level("none", 32, vnmse=0.0) == "safe"
    assert level("bf16", 16) == level("fp16", 16) == "safe"
    assert level("eden") == level("qsgd", 8.06) == "safe"


def test_few_bits_are_balanced_also_where_the_error_is_small_here():
    assert level("qsgd", 4.06) == level("eden", 3.06) == "balanced"


def test_the_error_of_the_mean_decides_further():
    assert level("eden", vnmse=0.011) == level("qsgd", 8.06, vnmse=0.05) == "balanced"
    assert level("eden", vnmse=0.051) is None


def test_a_residual_has_a_level_of_its_own_whatever_one_step_loses():
    assert level("powersgd", 0.5, residual=True, vnmse=0.9) == "balanced"
    assert level("loco", residual=True, vnmse=0.03) == "balanced"
    assert level("topk", 0.4, residual=True, vnmse=0.9) == "aggressive"
    assert level("threshold", 1.9, residual=True, vnmse=0.0) is None


def test_what_needs_settings_of_its_own_is_never_recommended():
    assert level_of(Facts("eden", 4.06, False, 0.001, needs="a rate of 1")) == (
        None,
        "needs a rate of 1",
    )
    assert level("terngrad", 1.6) is None


def test_fp16_needs_room_for_the_sum():
    assert level("fp16", 16, peak=5.9e3) == "safe"
    assert level("fp16", 16, peak=6.1e3) is None
    assert level("bf16", 16, peak=6.1e3) == "safe"


def test_a_quality_admits_its_own_level_and_those_before():
    levels = ["safe", "balanced", "aggressive", None]
    assert [admitted(each, "balanced") for each in levels] == [True, True, False, False]
    with pytest.raises(ValueError, match="quality is safe, balanced, aggressive, not 'best'"):
        admitted("safe", "best")


def test_auto_compares_methods_of_the_level_that_advise_gives_them():
    assert tuple(QUALITIES) == LEVELS
    spec = tf.TensorSpec([1000, 1000], tf.float32)
    for level, methods in QUALITIES.items():
        for method in methods:
            compressor, memory = registry.resolve(method)
            bits = 8 * compressor.nbytes(spec) / spec.shape.num_elements()
            name, residual = method.partition(":")[0], memory != "none"
            assert level_of(Facts(name, bits, residual, None)) == (level, "")
