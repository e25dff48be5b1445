"""A fake evlbi program, and the package as `evlbi distribute` starts it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import pytest
from distributed import LocalCluster

SOURCE = Path(__file__).parents[1] / "src"
PARTS = 6
# evlbi correlate --plan PLAN --part K --out DIR: notes the try, then does what DIR/part-K.sh says.
PROGRAM = """#!/bin/sh
echo "$$ $PPID" >> "$7/tries-$5"
try=$(wc -l < "$7/tries-$5")
echo "arguments: $*" >&2
[ ! -e "$7/part-$5.sh" ] || . "$7/part-$5.sh"
"""


class Client:
    """A run of the package."""

    def __init__(self, command: list[str], stderr: IO[str]) -> None:
        self.stderr = stderr
        environment = os.environ | {"PYTHONPATH": str(SOURCE)}
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=stderr, text=True, env=environment
        )
        self.events: list[dict[str, Any]] = []

    def until(self, event: str, **fields: object) -> dict[str, Any]:
        """Returns the next event of this kind with these values."""
        wanted = {"event": event, **fields}
        while True:
            assert self.process.stdout is not None
            line = self.process.stdout.readline()
            assert line, f"no {wanted} among {self.events}; {self.messages()}"
            self.events.append(json.loads(line))
            if self.events[-1].items() >= wanted.items():
                return self.events[-1]

    def end(self) -> int:
        """Reads all events and returns the exit status."""
        assert self.process.stdout is not None
        self.events.extend(json.loads(line) for line in self.process.stdout)
        return self.process.wait()

    def last_of(self, part: int) -> dict[str, Any]:
        """Returns the last event of a part."""
        return [event for event in self.events if event.get("part") == part][-1]

    def messages(self) -> str:
        """Returns the lines on stderr."""
        self.stderr.seek(0)
        return self.stderr.read()


class Bench:
    """A plan, a fake program, and runs of the package with them."""

    def __init__(self, directory: Path) -> None:
        self.out = directory / "out"
        self.out.mkdir()
        self.program = directory / "evlbi"
        self.program.write_text(PROGRAM)
        self.program.chmod(0o755)
        self.plan = directory / "job.chunks.json"
        plan = {"schema": "evlbi.chunks/1", "plan_id": directory.name, "parts": [{}] * PARTS}
        self.plan.write_text(json.dumps(plan))
        self.clients: list[Client] = []

    def on(self, part: int, script: str) -> None:
        """Makes the program run a script for a part; `$try` counts from 1."""
        (self.out / f"part-{part}.sh").write_text(script)

    def start(self, scheduler: str, *arguments: str | float) -> Client:
        """Starts the package."""
        paths = ["--program", self.program, "--plan", self.plan, "--out", self.out]
        rest = map(str, (*paths, "--retry-wait", 0.1, *arguments))
        command = [sys.executable, "-m", "evlbi_dask", "--scheduler", scheduler, *rest]
        stderr = (self.out / f"stderr-{len(self.clients)}").open("w+")
        self.clients.append(Client(command, stderr))
        return self.clients[-1]

    def run(self, scheduler: str, *arguments: str | float) -> tuple[int, Client]:
        """Runs the package to its end."""
        client = self.start(scheduler, *arguments)
        return client.end(), client

    def tries(self, part: int) -> list[tuple[int, int]]:
        """Returns the process ids of the program and of its worker for each try of a part."""
        path = self.out / f"tries-{part}"
        lines = path.read_text().splitlines() if path.exists() else []
        return [(int(line.split()[0]), int(line.split()[1])) for line in lines]


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path)
    yield bench
    (bench.out / "go").touch()
    for client in bench.clients:
        client.process.kill()
        client.process.wait()
        client.stderr.close()


@pytest.fixture(scope="session")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(
        n_workers=2, threads_per_worker=1, host="127.0.0.1", dashboard_address=None
    ) as cluster:
        yield cluster


@pytest.fixture
def dask(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Starts `dask scheduler` or `dask worker`."""
    processes = []

    def start(*arguments: str | Path, **environment: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "dask", *map(str, arguments)]
        with (tmp_path / "dask.log").open("a") as log:
            process = subprocess.Popen(command, stderr=log, env=os.environ | environment)
        processes.append(process)
        return process

    yield start
    for process in reversed(processes):
        process.send_signal(signal.SIGTERM)
        process.wait()


def wait_for(what: Callable[[], object]) -> None:
    """Waits until something is true. The limit only ends a test that has failed."""
    deadline = time.monotonic() + 120
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def has_ended(process: int) -> bool:
    """Returns whether a process has ended."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return True
    return False


def scheduler_address(file: Path) -> str:
    """Returns the address in a scheduler file, which appears when the scheduler is there."""

    def address() -> str:
        try:
            return str(json.loads(file.read_text())["address"])
        except (OSError, ValueError):
            return ""

    wait_for(address)
    return address()
