# SPDX-License-Identifier: Apache-2.0
"""What has to happen before TensorFlow and `comet_tf` are imported."""

import importlib.util
import os
import pathlib
import sys

# TensorFlow's default CPU allocator counts no block below 256 KiB, which many
# compressed activations are. This one counts all.
os.environ.setdefault("TF_CPU_ALLOCATOR_USE_BFC", "1")
# No chatter between the progress bars.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

# In a source tree the package need not be installed.
if importlib.util.find_spec("comet_tf") is None:
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
