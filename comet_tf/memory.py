# SPDX-License-Identifier: Apache-2.0
"""Bytes that TensorFlow's allocator has handed out, now and at its peak.

On a GPU these are TensorFlow's own statistics. On the CPU they come from the
op library, which switches the allocator's counting on when it is loaded.
"""

import tensorflow as tf

from comet_tf.ops import memory_ops


def current_bytes(device: str | None = None) -> int:
    """Returns the bytes in use.

    Args:
        device: String, such as `"CPU:0"` or `"GPU:0"`. Defaults to the first
            GPU, or the CPU where there is none.

    Returns:
        Integer.

    Raises:
        ValueError: When there is no such device.

    Example:

    ```python
    comet_tf.memory.reset_peak()
    model.fit(data, steps_per_epoch=1)
    print(comet_tf.memory.peak_bytes() / 1e9, "GB")
    ```
    """
    return _statistics(device)[0]


def peak_bytes(device: str | None = None) -> int:
    """Returns the most bytes in use since the start or `reset_peak`.

    Args:
        device: String. Defaults to the first GPU, or the CPU.

    Returns:
        Integer.

    Raises:
        ValueError: When there is no such device.
    """
    return _statistics(device)[1]


def reset_peak(device: str | None = None) -> None:
    """Starts a new peak at the bytes in use now.

    Args:
        device: String. Defaults to the first GPU, or the CPU.

    Raises:
        ValueError: When there is no such device.
    """
    device = _resolve(device)
    if _is_cpu(device):
        with tf.device(device):
            memory_ops.reset_peak_memory()
    else:
        tf.config.experimental.reset_memory_stats(device)


def _statistics(device: str | None) -> tuple[int, int]:
    device = _resolve(device)
    if _is_cpu(device):
        with tf.device(device):
            current, peak = memory_ops.memory_stats().numpy()
        return int(current), int(peak)
    info = tf.config.experimental.get_memory_info(device)
    return int(info["current"]), int(info["peak"])


def _resolve(device: str | None) -> str:
    devices = [
        f"{d.device_type}:{d.name.rsplit(':', 1)[-1]}"
        for d in tf.config.list_logical_devices()
    ]
    if device is None:
        return next((d for d in devices if d.startswith("GPU")), "CPU:0")
    if device not in devices:
        raise ValueError(
            f"`device` must be one of {devices}. Received: device={device!r}"
        )
    return device


def _is_cpu(device: str) -> bool:
    return device.startswith("CPU")
