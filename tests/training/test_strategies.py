# SPDX-License-Identifier: Apache-2.0
"""Training on several devices and in several processes."""

import json
import os
import pathlib
import socket
import subprocess
import sys
import threading

import pytest

from comet_tf.error_bound.history import write_json
from tests.processes import in_a_process
from tests.training import two_devices

FOLDER = pathlib.Path(__file__).parent


def start(script, *arguments, **environment):
    """Runs a script of this folder in a process of its own."""
    return subprocess.Popen(
        [sys.executable, str(FOLDER / script), *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={
            **os.environ,
            "PYTHONPATH": str(FOLDER.parents[1]),
            **environment,
        },
    )


def test_mirrored_strategy_on_two_devices():
    in_a_process(two_devices.check)


def free_ports(count):
    """Ports that nobody listens on, asked for all at once."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()


@pytest.mark.slow
def test_two_worker_processes_agree(tmp_path):
    workers = [f"127.0.0.1:{port}" for port in free_ports(2)]
    processes = [
        start(
            "worker.py",
            tmp_path / f"bounds{index}.json",
            TF_CONFIG=json.dumps(
                {
                    "cluster": {"worker": workers},
                    "task": {"type": "worker", "index": index},
                }
            ),
        )
        for index in range(2)
    ]
    try:
        outputs = [p.communicate(timeout=300) for p in processes]
    finally:
        for process in processes:
            process.kill()
    for process, (_, errors) in zip(processes, outputs, strict=True):
        assert process.returncode == 0, errors[-3000:]
    results = [json.loads(out.splitlines()[-1]) for out, _ in outputs]
    assert results[0] == results[1]
    (found, _) = results
    assert found["replicas"] == 2
    assert found["iterations"] == [1, 5, 10]
    assert found["loss"][-1] < found["loss"][0]
    assert len(found["bounds"]) >= 4
    for name, (raw, stream, _, bound) in found["streams"].items():
        assert raw > 0, name
        assert stream > 0, name
        assert bound > 0, name
    # Each worker has written what it would resume from.
    states = [
        json.loads((tmp_path / f"bounds{i}.json").read_text()) for i in (0, 1)
    ]
    assert states[0] == states[1]
    assert states[0]["collected"] == 10


def test_workers_may_share_the_file_they_resume_from(tmp_path):
    path, failures = tmp_path / "bounds.json", []

    def write():
        try:
            for index in range(300):
                write_json(str(path), {"collected": index})
        except OSError as error:
            failures.append(error)

    threads = [threading.Thread(target=write) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert json.loads(path.read_text()) == {"collected": 299}
    assert not failures
