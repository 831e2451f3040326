# SPDX-License-Identifier: Apache-2.0
"""Measures what compression does to the gradients of a model that trains.

```
python examples/gradient_error.py --model=small_resnet18
python examples/gradient_error.py --model=small_resnet18 --rounding=nearest
```

Trains a wrapped model for a while, as `train.py` does, until the last bounds
were chosen. Then the gradients of a few more batches are computed with these
bounds, and once more by the plain model. Their difference is the error of all
stored activations together: a layer's own input, and whatever the layers behind
it hand on. It is shown as a fraction of the gradient's scale, the optimizer's
momentum, of which `AdaptiveErrorBound` promises 1 % for each activation.
"""

import pathlib
from collections.abc import Iterable
from typing import Any

import _startup  # noqa: F401  Before TensorFlow and comet_tf.
import input_pipeline
import keras
import matplotlib
import measure
import models
import numpy as np
import tensorflow as tf
import training
from absl import app, flags, logging

import comet_tf
from comet_tf.error_bound.gradient_scale import momentum_scale

matplotlib.use("Agg")
from matplotlib import pyplot

FLAGS = flags.FLAGS

flags.DEFINE_enum("model", "small_resnet18", models.names(), "What to train.")
flags.DEFINE_string("dataset", "natural_crops", "A tfds data set.")
flags.DEFINE_string("data_dir", None, "Where tfds keeps its data sets.")
flags.DEFINE_integer("batch_size", 64, "Images of a step.", lower_bound=1)
flags.DEFINE_integer("seed", 0, "Seed of weights, order and dropout.")
flags.DEFINE_integer(
    "steps", 100, "Steps to train; the last chooses bounds.", lower_bound=2
)
flags.DEFINE_integer("batches", 4, "Batches to measure.", lower_bound=1)
flags.DEFINE_enum(
    "optimizer", "sgd", ["sgd", "adam"], "One that keeps a momentum."
)
flags.DEFINE_enum(
    "rounding", "dither", ["nearest", "dither"], "Rounding of the codec."
)
flags.DEFINE_float(
    "gradient_error", 0.01, "What the bounds are chosen for.", lower_bound=1e-9
)
flags.DEFINE_string("output", None, "PNG file to draw the errors into.")


class GradientErrors:
    """Gradients of a wrapped model against those of the plain one.

    Args:
        model: Compiled, wrapped model that has trained.
        loss: Function of labels and predictions.
    """

    def __init__(self, model: keras.Model, loss: Any) -> None:
        self._model = model
        self._loss = loss
        # An attention's biases have two axes, too, and that of its keys has no
        # gradient but rounding errors.
        self._kernels = [
            v
            for v in model.trainable_variables
            if v.ndim > 1 and v.name != "bias"
        ]
        # A step changes moving statistics, and the seeds of dropout.
        self._state = [(v, v.numpy()) for v in model.non_trainable_variables]

    def measure(self, batches: list[Any]) -> dict[str, float]:
        """Returns the errors, as fractions of the scale, by kernel.

        Args:
            batches: List of images and labels.

        Returns:
            Root mean square over batches and a kernel's elements, over the
            mean absolute momentum of the kernel, by its path.
        """
        wrapped = self._gradients(batches)
        comet_tf.unwrap_model(self._model)
        plain = self._gradients(batches)
        optimizer = self._model.optimizer
        trained = self._model.trainable_variables
        errors = {}
        for index, kernel in enumerate(self._kernels):
            scale = momentum_scale(optimizer, [kernel], trained).mean_abs
            squares = [
                np.mean(np.square(one[index] - other[index]))
                for one, other in zip(wrapped, plain, strict=True)
            ]
            errors[kernel.path] = float(np.sqrt(np.mean(squares)) / scale)
        return errors

    def _gradients(self, batches: Iterable[Any]) -> list[list[np.ndarray]]:
        kernels = [kernel.value for kernel in self._kernels]

        @tf.function
        def gradients(x: tf.Tensor, y: tf.Tensor) -> list[tf.Tensor]:
            with tf.GradientTape() as tape:
                loss = self._loss(y, self._model(x, training=True))
            return tape.gradient(loss, kernels)

        found = []
        for x, y in batches:
            for variable, value in self._state:
                variable.assign(value)
            found.append([g.numpy() for g in gradients(x, y)])
        return found


def draw(errors: dict[str, float], title: str, path: pathlib.Path) -> None:
    """Draws the errors of all kernels, in model order."""
    figure, axes = pyplot.subplots(figsize=(8, 4))
    axes.bar(range(len(errors)), list(errors.values()))
    axes.axhline(FLAGS.gradient_error, color="black", label="asked for")
    axes.set_xlabel("kernel, in model order")
    axes.set_ylabel("error of the gradient / its scale")
    axes.set_title(title, fontsize=9)
    axes.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def main(argv: list[str]) -> None:
    if len(argv) > 1:
        raise app.UsageError(f"Unexpected arguments: {argv[1:]}")
    logging.set_verbosity(logging.WARNING)
    try:
        data = input_pipeline.load(
            FLAGS.dataset, FLAGS.batch_size, None, FLAGS.seed, FLAGS.data_dir
        )
        keras.utils.set_random_seed(FLAGS.seed)
        model = models.build(FLAGS.model, data.image_size, data.classes)
    except (input_pipeline.DataError, models.ModelError) as error:
        raise SystemExit(f"error: {error}") from error
    comet_tf.wrap_model(
        model, comet_tf.CompressionConfig(rounding=FLAGS.rounding)
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    rate = training.OPTIMIZERS[FLAGS.optimizer]
    optimizer = (
        keras.optimizers.Adam(rate)
        if FLAGS.optimizer == "adam"
        else keras.optimizers.SGD(rate, momentum=0.9)
    )
    model.compile(optimizer, loss)
    bounds = comet_tf.AdaptiveErrorBound(
        FLAGS.gradient_error, update_interval=FLAGS.steps, warmup=0
    )
    model.fit(
        data.train,
        steps_per_epoch=FLAGS.steps,
        callbacks=[bounds],
        shuffle=False,
    )
    report = comet_tf.memory_report(model)
    batches = [batch[:2] for batch in data.train.take(FLAGS.batches)]
    errors = GradientErrors(model, loss).measure(batches)
    rows = [["kernel", "error / scale"]]
    rows += [[path, f"{error:.4f}"] for path, error in errors.items()]
    print(measure.table(rows))
    values = list(errors.values())
    print(
        f"{FLAGS.model}, {FLAGS.rounding}: mean {np.mean(values):.4f}, "
        f"largest {max(values):.4f}, asked for {FLAGS.gradient_error:g}; "
        f"ratio {report.plain_bytes / report.compressed_bytes:.1f}"
    )
    if FLAGS.output:
        path = pathlib.Path(FLAGS.output)
        path.parent.mkdir(parents=True, exist_ok=True)
        draw(errors, f"{FLAGS.model}, {FLAGS.rounding} rounding", path)
        print(f"Picture: {path}")


if __name__ == "__main__":
    app.run(main)
