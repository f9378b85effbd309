"""Public checks for compressors, also users' own, and several workers in one process."""

from grace_tf.testing.conformance import Check, Report, check_compressor, load
from grace_tf.testing.workers import Workers

__all__ = ["Check", "Report", "Workers", "check_compressor", "load"]
