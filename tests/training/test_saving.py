# SPDX-License-Identifier: Apache-2.0
"""What a wrapped model saves is what the plain one saves."""

import re
import subprocess
import sys
import zipfile

import keras
import numpy as np
import pytest

import comet_tf
from tests import zoo
from tests.training.helpers import EVERYTHING

# Run where `comet_tf` cannot be imported: everything that was saved has to
# load, predict and train without it.
LOADER = """
import sys
sys.modules["comet_tf"] = None
try:
    import comet_tf
except ImportError:
    pass
else:
    raise AssertionError("comet_tf can be imported")
import keras, numpy as np, tensorflow as tf

folder = sys.argv[1]
x = np.load(f"{folder}/x.npy")
expected = np.load(f"{folder}/predictions.npy")

model = keras.models.load_model(f"{folder}/model.keras")
np.testing.assert_array_equal(model.predict(x, verbose=0), expected)
assert int(model.optimizer.iterations) == 1
model.fit(x, np.zeros(len(x)), verbose=0)

model = keras.models.model_from_json(open(f"{folder}/model.json").read())
model.load_weights(f"{folder}/model.weights.h5")
np.testing.assert_array_equal(model.predict(x, verbose=0), expected)

for name, endpoint in (("exported", "serve"), ("saved", "serving_default")):
    served = tf.saved_model.load(f"{folder}/{name}")
    if endpoint == "serve":
        found = served.serve(x)
    else:
        (found,) = served.signatures[endpoint](tf.constant(x)).values()
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
print("loaded without comet_tf")
"""


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A plain and a wrapped model, equal and saved in every format."""
    folders = []
    x, y = zoo.data()
    weights = None
    for name in ("plain", "wrapped"):
        folder = tmp_path_factory.mktemp(name)
        keras.backend.clear_session()
        _, model = zoo.pair("resnet_like")
        if name == "wrapped":
            comet_tf.wrap_model(model, EVERYTHING)
        # One step, so that files are of a model that has really trained.
        zoo.compiled(model).fit(x, y, batch_size=16, verbose=0)
        weights = weights or model.get_weights()
        model.set_weights(weights)
        model.save(folder / "model.keras")
        model.save_weights(folder / "model.weights.h5")
        (folder / "model.json").write_text(model.to_json())
        model.export(folder / "exported", verbose=False)
        tf_saved(model, folder / "saved")
        np.save(folder / "x.npy", x)
        np.save(folder / "predictions.npy", model.predict(x, verbose=0))
        folders.append(folder)
    return folders


def tf_saved(model, path):
    """A SavedModel of the user's own making."""
    import tensorflow as tf

    @tf.function(
        input_signature=[tf.TensorSpec([None, *model.input_shape[1:]])]
    )
    def serving_default(x):
        return {"predictions": model(x, training=False)}

    tf.saved_model.save(model, str(path), {"serving_default": serving_default})


def test_predictions_are_equal(saved):
    plain, wrapped = (np.load(f / "predictions.npy") for f in saved)
    np.testing.assert_array_equal(plain, wrapped)


def test_keras_files_hold_the_same_and_nothing_of_this_package(saved):
    configs = []
    for folder in saved:
        with zipfile.ZipFile(folder / "model.keras") as archive:
            assert set(archive.namelist()) == {
                "metadata.json",
                "config.json",
                "model.weights.h5",
            }
            configs.append(archive.read("config.json").decode())
    # Where the addresses of Python objects stood.
    plain, wrapped = (
        re.sub(r'"shared_object_id": \d+', "", text) for text in configs
    )
    assert plain == wrapped
    assert "comet" not in configs[1].lower()
    texts = [(folder / "model.json").read_text() for folder in saved]
    assert "comet" not in texts[1].lower()


def test_weights_files_are_equal(saved):
    import h5py

    def content(path):
        found = {}

        def visit(name, item):
            if isinstance(item, h5py.Dataset):
                found[name] = np.array(item)

        with h5py.File(path) as file:
            file.visititems(visit)
        return found

    plain, wrapped = (content(f / "model.weights.h5") for f in saved)
    assert plain.keys() == wrapped.keys()
    for name, values in plain.items():
        if name.startswith("optimizer/"):
            continue  # Its momentum is of each model's own gradients.
        np.testing.assert_array_equal(values, wrapped[name], err_msg=name)


@pytest.mark.parametrize("name", ["exported", "saved"])
def test_saved_models_have_the_same_operations(saved, name):
    from tensorflow.core.protobuf import saved_model_pb2

    def operations(folder):
        graph = saved_model_pb2.SavedModel.FromString(
            (folder / name / "saved_model.pb").read_bytes()
        )
        definition = graph.meta_graphs[0].graph_def
        nodes = list(definition.node)
        for function in definition.library.function:
            nodes += function.node_def
        return sorted(node.op for node in nodes)

    plain, wrapped = map(operations, saved)
    assert not [op for op in wrapped if op.startswith("Comet")]
    assert wrapped == plain


@pytest.mark.slow
def test_everything_loads_where_this_package_is_missing(saved):
    done = subprocess.run(
        [sys.executable, "-c", LOADER, str(saved[1])],
        capture_output=True,
        text=True,
        cwd=saved[1],
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.splitlines()[-1] == "loaded without comet_tf"
