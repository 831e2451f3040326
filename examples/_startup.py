# SPDX-License-Identifier: Apache-2.0
"""Settings that TensorFlow reads when it starts; imported before it."""

import os

# TensorFlow's default CPU allocator counts no block below 256 KiB, which many
# compressed activations are. This one counts all.
os.environ.setdefault("TF_CPU_ALLOCATOR_USE_BFC", "1")
# No chatter between the progress bars.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
