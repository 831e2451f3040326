# SPDX-License-Identifier: Apache-2.0
"""What a training that is resumed needs: the bounds, and all they build on."""

from __future__ import annotations

import dataclasses
import reprlib
from typing import Any

from comet_tf.error_bound.control import checked_snapshot
from comet_tf.error_bound.history import read_json


@dataclasses.dataclass
class TrainingState:
    """The state of `AdaptiveErrorBound`.

    Args:
        collected: Integer. Iteration of the latest collection; `None` before
            the first.
        bounds: Snapshots by control name.
        mean_abs: Mean of |gradient| by variable, a running mean.
        ranges: Value ranges by control name, at the latest collection.
        history: One dictionary a collection.
    """

    collected: int | None
    bounds: dict[str, dict[str, Any]]
    mean_abs: dict[str, float]
    ranges: dict[str, float]
    history: list[dict[str, Any]]

    def to_dict(self) -> dict[str, Any]:
        """Returns it as plain values, for JSON."""
        return {
            "collected": self.collected,
            "bounds": self.bounds,
            "mean_abs_gradient": self.mean_abs,
            "ranges": self.ranges,
            "history": self.history,
        }

    @classmethod
    def from_dict(cls, state: dict[str, Any]) -> TrainingState:
        """Makes it from what `to_dict` returned.

        Args:
            state: The dictionary, perhaps read from a file.

        Raises:
            ValueError: When it is not such a dictionary.
        """
        try:
            collected = state["collected"]
            return cls(
                None if collected is None else int(collected),
                {
                    name: checked_snapshot(name, snapshot)
                    for name, snapshot in dict(state["bounds"]).items()
                },
                _floats(state["mean_abs_gradient"]),
                _floats(state["ranges"]),
                list(state["history"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(
                "Expected what `AdaptiveErrorBound.state_dict()` returned: "
                f"{type(error).__name__}: {error}. Received: "
                f"{reprlib.repr(state)}"
            ) from error

    @classmethod
    def load(cls, path: str) -> TrainingState | None:
        """Reads it from a file.

        Args:
            path: String. The file.

        Returns:
            The state; `None` where there is no file yet.

        Raises:
            ValueError: When the file holds something else.
        """
        state = read_json(path)
        if state is None:
            return None
        try:
            return cls.from_dict(state)
        except ValueError as error:
            raise ValueError(
                f"Cannot resume from `state_path` {path!r}; delete the file "
                f"to start afresh, or name another. {error}"
            ) from error


def _floats(values: Any) -> dict[str, float]:
    return {name: float(value) for name, value in dict(values).items()}
