"""Quiet TensorFlow, virtual devices, and the strategies of the tests."""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import pytest
from replicas import mirrored


@pytest.fixture
def two_replicas():
    return mirrored(2)


@pytest.fixture
def three_replicas():
    return mirrored(3)
