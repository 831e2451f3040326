# SPDX-License-Identifier: Apache-2.0
"""Reads what the memory allocator of the current device has handed out."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from comet_tf.ops.library import library


def memory_stats(after: Sequence[tf.Tensor] = ()) -> tf.Tensor:
    """Reads the statistics of the device's memory allocator.

    On the CPU only memory allocated since the op library was loaded is
    counted, and with oneDNN (TensorFlow's default on x86) only blocks of 256
    KiB and more; a block counts with the size of the free block it was cut
    from or took over, which can be up to twice what was asked for.

    Args:
        after: Tensors that have to exist when the statistics are read. They
            are counted. Place in a graph is otherwise free.

    Returns:
        An int64 tensor of shape `(2,)`: bytes in use, and the most bytes ever
        in use since the last `reset_peak_memory`.

    Raises:
        tf.errors.UnimplementedError: If the allocator does not count bytes, as
            on a CPU under `TF_ENABLE_ONEDNN_OPTS=0`; the message says how to
            start the process instead.

    Example:

    ```python
    reset_peak_memory()
    y = layer(x)
    in_use, peak = memory_stats(after=[y]).numpy()
    ```
    """
    return library().comet_memory_stats(list(after))


def reset_peak_memory(
    after: Sequence[tf.Tensor] = (),
) -> tf.Operation | None:
    """Sets the allocator's peak to what is in use now.

    Args:
        after: Tensors that have to exist before the peak is reset.

    Returns:
        The operation when building a graph, None when executing eagerly.

    Raises:
        tf.errors.UnimplementedError: See `memory_stats`.
    """
    return library().comet_reset_peak_memory(list(after))
