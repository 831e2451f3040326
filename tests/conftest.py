# SPDX-License-Identifier: Apache-2.0
"""What all tests share: quiet TensorFlow, fixed seeds."""

import gc
import os

# Before TensorFlow is imported.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
# The allocator that counts every block, whichever tests run.
os.environ.setdefault("TF_CPU_ALLOCATOR_USE_BFC", "1")

import keras
import pytest

# What the imports made is never garbage; each collection would look through it.
gc.freeze()


@pytest.fixture(autouse=True)
def _seed() -> None:
    keras.utils.set_random_seed(1)
