# SPDX-License-Identifier: Apache-2.0
"""Packages comet_tf and builds its op library (`python setup.py build_ext`).

The library is tied to one minor version of TensorFlow, so the wheel requires
just that one. `COMET_CUDA=0` leaves the GPU kernels out, `COMET_CUDA=1`
insists on them; by default they are built where nvcc is found, for the GPUs in
`COMET_CUDA_ARCHITECTURES` (such as `80,90`) or for all that are supported.
"""

from __future__ import annotations

import importlib.metadata
import pathlib
import sys

import setuptools
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

ROOT = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT))

from tools import native_build  # noqa: E402

LIBRARY = "comet_tf.ops._comet_ops"


def version() -> str:
    """The package's version, read without importing the package."""
    scope: dict[str, str] = {}
    exec((ROOT / "comet_tf" / "version.py").read_text(), scope)
    return scope["__version__"]


def tensorflow_requirement() -> str:
    """The TensorFlow that the library of this build can be loaded into."""
    for name in ("tensorflow", "tensorflow-cpu"):
        try:
            major, minor = importlib.metadata.version(name).split(".")[:2]
        except importlib.metadata.PackageNotFoundError:
            continue
        return f"{name}>={major}.{minor},<{major}.{int(minor) + 1}"
    return "tensorflow>=2.16,<2.22"


class BuildOps(build_ext):
    """Builds the op library with the compilers it needs."""

    def build_extension(self, ext: setuptools.Extension) -> None:
        target = pathlib.Path(self.get_ext_fullpath(ext.name)).resolve()
        try:
            native_build.build(ROOT / "build" / "ops", target)
        except native_build.BuildError as error:
            sys.exit(f"error: {error}")

    def copy_extensions_to_source(self) -> None:
        for ext in self.extensions:
            name = self.get_ext_filename(ext.name)
            native_build.install(
                pathlib.Path(self.build_lib) / name, ROOT / name
            )

    def get_ext_filename(self, fullname: str) -> str:
        # No Python version in the name: the library does not use Python.
        return fullname.replace(".", "/") + ".so"


class PlatformWheel(bdist_wheel):
    """Tags the wheel for any Python 3 of this platform."""

    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]


setuptools.setup(
    version=version(),
    packages=setuptools.find_packages(include=["comet_tf", "comet_tf.*"]),
    package_data={"comet_tf.ops": ["_comet_ops.so", "_build_info.json"]},
    ext_modules=[setuptools.Extension(LIBRARY, sources=[])],
    cmdclass={"build_ext": BuildOps, "bdist_wheel": PlatformWheel},
    install_requires=[
        tensorflow_requirement(),
        "keras>=3.5",
        "numpy",
        "absl-py",
    ],
    extras_require={
        "datasets": [
            "tensorflow-datasets",
            "importlib_resources",  # It imports this but does not ask for it.
            "scikit-image",
            "scikit-learn",
        ],
        "cuda-build": [
            "nvidia-cuda-nvcc",
            "nvidia-cuda-runtime",
            "nvidia-cuda-crt",
            "nvidia-nvvm",
            "nvidia-cuda-cccl",
        ],
    },
    zip_safe=False,
)
