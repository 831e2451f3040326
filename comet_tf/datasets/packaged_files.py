# SPDX-License-Identifier: Apache-2.0
"""Finds data files that other installed packages ship."""

import importlib.util
import pathlib

# Import name of a package -> what to ask pip for.
_DISTRIBUTIONS = {"skimage": "scikit-image", "sklearn": "scikit-learn"}


def find(package: str, relative_path: str) -> pathlib.Path:
    """Returns the path of a data file inside an installed package.

    The package is located, not imported: importing it would cost seconds and
    can start a download.

    Args:
        package: String. Import name of the package, such as `"skimage"`.
        relative_path: String. Path of the file inside the package.

    Returns:
        The path of the existing file.

    Raises:
        FileNotFoundError: If the package is not installed or does not ship
            the file; the message names the `pip install` that brings it.
    """
    distribution = _DISTRIBUTIONS.get(package, package)
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise FileNotFoundError(
            f"The data set needs a file that `{distribution}` ships, and "
            f"that package is not installed. Run `pip install {distribution}`."
        )
    root = pathlib.Path(next(iter(spec.submodule_search_locations)))
    path = root / relative_path
    if not path.is_file():
        raise FileNotFoundError(
            f"The installed `{distribution}` does not ship {relative_path!r} "
            f"(looked in {root}). Install a release that does, for example "
            f"the one that this project's `pyproject.toml` pins."
        )
    return path
