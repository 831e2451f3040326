# SPDX-License-Identifier: Apache-2.0
"""Functions called in a process of their own.

For what TensorFlow settles once a process: threads, logical devices, memory.
"""

import concurrent.futures
import multiprocessing
from collections.abc import Callable
from typing import Any

# For the server that processes are forked off, as it imports this module.
import comet_tf  # noqa: F401

# In seconds; training the largest of all models takes some 200.
_TIMEOUT = 900


def in_a_process(function: Callable[..., Any], *arguments: Any) -> Any:
    """Calls a function in a process of its own, and returns what it returns.

    The process is forked off one that has imported TensorFlow and done nothing
    else: importing it takes ten seconds and more.

    Args:
        function: Function of a module, which is found there by its name.
        arguments: Its arguments, which are pickled.

    Raises:
        Exception: Whatever the function raises.
        concurrent.futures.TimeoutError: When it hangs.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    with concurrent.futures.ProcessPoolExecutor(1, context) as executor:
        called = executor.submit(function, *arguments)
        try:
            return called.result(_TIMEOUT)
        except concurrent.futures.TimeoutError:
            # The end of the block waits for it.
            for child in multiprocessing.active_children():
                child.kill()
            raise
