# SPDX-License-Identifier: Apache-2.0
"""The version of the package; `setup.py` reads it without importing Keras."""

__version__ = "0.1.0"
