# SPDX-License-Identifier: Apache-2.0
"""Data sets that need no download; importing this registers them in tfds.

```python
import comet_tf.datasets
import tensorflow_datasets as tfds

train = tfds.load("natural_crops", split="train", as_supervised=True)
```
"""

from comet_tf.datasets.natural_crops import NaturalCrops
from comet_tf.datasets.scikit_digits import ScikitDigits

__all__ = ["NaturalCrops", "ScikitDigits"]
