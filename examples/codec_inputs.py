# SPDX-License-Identifier: Apache-2.0
"""Tensors for `benchmark_codec.py`: from a file or captured from a model."""

from __future__ import annotations

import pathlib

import numpy as np

_DEFAULT = (
    pathlib.Path(__file__).resolve().parents[1] / "tests/data/activations.npz"
)


def from_file(path: str | None) -> dict[str, np.ndarray]:
    """Reads a .npy or .npz file; by default the activations of the tests.

    Raises:
        ValueError: If the file holds no floating-point array.
    """
    loaded = np.load(path or _DEFAULT)
    if isinstance(loaded, np.ndarray):
        loaded = {pathlib.Path(path or "").stem: loaded}
    tensors = {
        name: np.ascontiguousarray(loaded[name], np.float32)
        for name in loaded
        if np.issubdtype(loaded[name].dtype, np.floating) and loaded[name].size
    }
    if not tensors:
        raise ValueError(f"no floating-point array in {path}")
    return tensors


def from_model(name: str, batch_size: int, most: int) -> dict[str, np.ndarray]:
    """Captures what the conv layers of a keras.applications model read.

    The weights are random, since pretrained ones would need a download; the
    images are photographs of scikit-learn, cut into pieces.

    Args:
        name: A class of keras.applications, such as `"ResNet50"`.
        batch_size: Number of images.
        most: Largest number of tensors, evenly spread over the depth.

    Returns:
        The tensors by layer name.

    Raises:
        ValueError: If there is no such model.
    """
    import keras
    from sklearn import datasets

    make = getattr(keras.applications, name, None)
    if make is None or not callable(make):
        raise ValueError(
            f"keras.applications has no model {name!r}; try ResNet50 or VGG16"
        )
    size = 224
    photographs = datasets.load_sample_images().images
    rng = np.random.default_rng(0)
    images = []
    for k in range(batch_size):
        photograph = photographs[k % len(photographs)]
        row = rng.integers(photograph.shape[0] - size + 1)
        column = rng.integers(photograph.shape[1] - size + 1)
        images.append(photograph[row : row + size, column : column + size])
    model = make(weights=None, input_shape=(size, size, 3))
    convolutions = [
        layer
        for layer in model.layers
        if isinstance(layer, keras.layers.Conv2D)
    ][1:]
    chosen = np.linspace(
        0, len(convolutions) - 1, min(most, len(convolutions))
    ).astype(int)
    layers = [convolutions[k] for k in chosen]
    reader = keras.Model(model.inputs, [layer.input for layer in layers])
    # Whitened, so that activations of random weights keep a sensible size.
    inputs = np.stack(images).astype(np.float32) / 127.5 - 1.0
    outputs = reader(inputs, training=True)
    if len(layers) == 1:
        outputs = [outputs]
    return {
        f"{layer.name}_input": np.ascontiguousarray(output)
        for layer, output in zip(layers, outputs, strict=True)
    }
