# SPDX-License-Identifier: Apache-2.0
"""The wheel: what is in it, and that it works where it is installed."""

import email
import os
import pathlib
import shutil
import subprocess
import sys
import venv
import zipfile

import pytest
import tensorflow as tf

ROOT = pathlib.Path(__file__).resolve().parents[2]
SOURCES = (
    "LICENSE",
    "MANIFEST.in",
    "README.md",
    "comet_tf",
    "custom_ops",
    "pyproject.toml",
    "setup.py",
    "tools",
)

OBJECTS = ROOT / "build" / "ops"

pytestmark = pytest.mark.slow


def run(*command, **options):
    done = subprocess.run(
        [str(part) for part in command],
        capture_output=True,
        text=True,
        **options,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    """A copy of the source tree without a library.

    Its objects are there, if `make build` made them: a wheel takes those that
    are current, and compiling the rest twice is not what is tested here.
    """
    folder = tmp_path_factory.mktemp("sources")
    for name in SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(
                ROOT / name,
                folder / name,
                ignore=shutil.ignore_patterns(
                    "*.so", "_build_info.json", "__pycache__"
                ),
            )
        else:
            shutil.copy(ROOT / name, folder / name)
    if OBJECTS.is_dir():
        shutil.copytree(
            OBJECTS,
            folder / OBJECTS.relative_to(ROOT),
            ignore=shutil.ignore_patterns("*.so", "_build_info.json"),
        )
    return folder


@pytest.fixture(scope="module")
def wheel(sources, tmp_path_factory):
    out = tmp_path_factory.mktemp("wheel")
    run(
        *(sys.executable, "-m", "pip", "wheel", "--no-build-isolation"),
        *("--no-deps", "--no-index", "--wheel-dir", out, "."),
        cwd=sources,
        env={**os.environ, "COMET_CUDA": "0"},
    )
    (path,) = out.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """The Python of a fresh environment that has the wheel installed.

    Dependencies come from the environment that runs the tests.
    """
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    site = pathlib.Path(
        run(
            *(python, "-c"),
            "import sysconfig; print(sysconfig.get_path('purelib'))",
        ).strip()
    )
    # Last on the path: what this environment has of its own goes first.
    dependencies = pathlib.Path(tf.__file__).parents[1]
    (site / "dependencies.pth").write_text(f"{dependencies}\n")
    run(
        *(python, "-m", "pip", "install", "--no-deps", "--no-index", wheel),
    )
    return python


def test_is_for_any_python_on_this_platform(wheel):
    name = wheel.name.removesuffix(".whl").split("-")
    assert name[0] == "comet_tf"
    assert name[2:4] == ["py3", "none"]
    assert name[4].startswith("linux_")


def test_holds_the_package_and_its_library(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    assert "comet_tf/ops/_comet_ops.so" in names
    assert "comet_tf/ops/_build_info.json" in names
    modules = {
        str(path.relative_to(ROOT)) for path in ROOT.glob("comet_tf/**/*.py")
    }
    assert modules <= names
    packaged = {name.split("/")[0] for name in names}
    assert packaged == {
        "comet_tf",
        next(n for n in packaged if n.endswith(".dist-info")),
    }
    assert any(name.endswith("licenses/LICENSE") for name in names)


def test_requires_the_tensorflow_it_was_built_for(wheel):
    archive = zipfile.ZipFile(wheel)
    (name,) = (n for n in archive.namelist() if n.endswith("/METADATA"))
    metadata = email.message_from_bytes(archive.read(name))
    major, minor = tf.__version__.split(".")[:2]
    required = metadata.get_all("Requires-Dist")
    assert any(
        requirement.startswith("tensorflow")
        and f">={major}.{minor}" in requirement
        and f"<{major}.{int(minor) + 1}" in requirement
        for requirement in required
    ), required


def test_works_where_it_is_installed(installed, tmp_path):
    script = """
import comet_tf, pathlib, sys, tensorflow as tf
from comet_tf.ops import codec_ops
assert sys.prefix in comet_tf.__file__, comet_tf.__file__
x = tf.nn.relu(tf.random.normal((8, 16, 16, 8)))
stream = codec_ops.compress(x, 0.01, mode="relative")
x_hat = codec_ops.decompress(stream, x.shape)
print("error", float(tf.reduce_max(tf.abs(x - x_hat))))
"""
    out = run(installed, "-c", script, cwd=tmp_path)
    assert 0 < float(out.split()[-1]) < 0.06


def test_without_its_library_it_says_what_to_do(sources):
    # The copied sources have none: the wheel was built in a folder of its own.
    script = (
        "from comet_tf.ops.library import library\n"
        "try:\n"
        "    library()\n"
        "except ImportError as error:\n"
        "    print(error)\n"
    )
    out = run(sys.executable, "-c", script, cwd=sources)
    assert "has not been built" in out
    assert "python setup.py build_ext --inplace" in out


def test_without_tensorflow_the_build_says_what_to_do(sources, tmp_path):
    venv.create(tmp_path, with_pip=False, system_site_packages=False)
    code = (
        f"import sys; sys.path.insert(0, {str(sources)!r})\n"
        "import pathlib\n"
        "from tools import native_build\n"
        "try:\n"
        "    native_build.build(pathlib.Path('w'), pathlib.Path('o.so'))\n"
        "except native_build.BuildError as error:\n"
        "    print(error)\n"
    )
    out = run(tmp_path / "bin" / "python", "-c", code, cwd=tmp_path)
    assert "`import tensorflow` failed" in out
    assert "--no-build-isolation" in out
