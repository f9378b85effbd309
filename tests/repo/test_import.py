"""Importing the package starts nothing, and says in one sentence what is missing."""

import pytest
from models import program

NEEDED = (
    "grace_tf needs TensorFlow 2.15 or newer: pip install tensorflow-cpu, or "
    "pip install 'tensorflow[and-cuda]' for GPUs"
)


@pytest.mark.parametrize(
    "how, said",
    [
        # Devices and threads could still be configured, and no Keras was imported.
        ("clean", "3 True grace_tf"),
        ("without", f"ModuleNotFoundError: {NEEDED}."),
        ("old", f"ImportError: {NEEDED} (this is 2.14.1)."),
    ],
)
def test_import(how, said):
    assert program("imports.py", how) == said
