"""Parts on a real cluster of two worker processes."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from conftest import Bench, has_ended, scheduler_address, wait_for
from distributed import LocalCluster
from distributed.scheduler import TaskState

HERE = socket.gethostname()
WAIT = 'while [ ! -e "$7/go" ]; do sleep 0.1; done'
KILL_WORKER = "kill -9 $PPID; exec sleep 600"


def tasks(cluster: LocalCluster) -> dict[str, TaskState]:
    """Returns the tasks of the scheduler by key."""
    assert cluster.scheduler is not None
    return {str(key): task for key, task in cluster.scheduler.tasks.items()}


def test_all_parts_are_done(bench: Bench, cluster: LocalCluster) -> None:
    bench.on(2, '[ "$8 $9" = "--threads 4" ]')
    status, client = bench.run(cluster.scheduler_address, "--extra=--threads", "--extra=4", 1, 2, 3)
    assert status == 0, client.messages()
    begun, workers = client.events[:2]
    assert (begun["event"], begun["parts"]) == ("begun", 3)
    assert (begun["plan_id"], begun["scheduler"]) == (
        bench.plan.parent.name,
        cluster.scheduler_address,
    )
    assert begun["dask"]
    assert workers == {"event": "workers", "workers": 2, "hosts": [HERE]}
    for part in 1, 2, 3:
        done = client.last_of(part)
        assert done.pop("seconds") >= 0
        assert done == {"event": "part", "part": part, "state": "done", "host": HERE}
        assert len(bench.tries(part)) == 1
    assert client.events[-1] == {"event": "end", "done": 3, "failed": 0}


def test_statuses(bench: Bench, cluster: LocalCluster) -> None:
    bench.on(2, "[ $try != 1 ] || exit 75")
    bench.on(3, "for line in 1 2 3 4 5 6; do echo $line >&2; done; exit 1")
    bench.on(4, "echo disk full >&2; exit 75")
    bench.on(5, "kill -9 $$")
    status, client = bench.run(cluster.scheduler_address, "--retries", 1, 1, 2, 3, 4, 5)
    assert status == 1, client.messages()
    assert [len(bench.tries(part)) for part in (1, 2, 3, 4, 5)] == [1, 2, 1, 2, 2]
    assert [client.last_of(part)["state"] for part in (1, 2)] == ["done", "done"]
    failed = {"event": "part", "state": "failed", "host": HERE}
    assert client.last_of(3) == failed | {"part": 3, "status": 1, "why": "2\n3\n4\n5\n6"}
    last = client.last_of(4)
    assert last["why"].endswith("disk full")
    assert last == failed | {"part": 4, "status": 75, "why": last["why"]}
    last = client.last_of(5)
    assert last["why"].endswith("killed by signal 9")
    assert last == failed | {"part": 5, "status": None, "why": last["why"]}
    assert client.events[-1] == {"event": "end", "done": 2, "failed": 3}


def test_missing_program_fails(bench: Bench, cluster: LocalCluster) -> None:
    status, client = bench.run(cluster.scheduler_address, "--program", "/none/evlbi", 1)
    assert status == 1
    last = client.last_of(1)
    assert last["status"] == 127
    assert last["why"] == "cannot run /none/evlbi: No such file or directory"


def test_part_of_a_killed_worker_runs_again(bench: Bench, cluster: LocalCluster) -> None:
    bench.on(1, f"[ $try != 1 ] || {{ {KILL_WORKER}; }}")
    status, client = bench.run(cluster.scheduler_address, 1, 2)
    assert status == 0, client.messages()
    (program, killed), (_, other) = bench.tries(1)
    assert killed != other
    wait_for(lambda: has_ended(program))
    wait_for(lambda: len(cluster.scheduler_info["workers"]) == 2)


@pytest.mark.parametrize(("number", "name"), [(2, "SIGINT"), (15, "SIGTERM")])
def test_signal_cancels_what_has_not_started(
    bench: Bench, cluster: LocalCluster, number: int, name: str
) -> None:
    for part in range(1, 7):
        bench.on(part, f'{WAIT}; touch "$7/done-{part}"')
    client = bench.start(cluster.scheduler_address, "1-6")
    running = {client.until("part", state="running")["part"] for _ in range(2)}
    client.process.send_signal(number)
    assert client.end() == 128 + number
    assert f"stopped by {name}" in client.messages()
    assert client.events[-1] == {"event": "end", "done": 0, "failed": 0}
    wait_for(lambda: not tasks(cluster))
    # Dask does not end a running task: the program goes on, its part is complete.
    (bench.out / "go").touch()
    for part in running:
        wait_for((bench.out / f"done-{part}").exists)
        (program, _), *again = bench.tries(part)
        assert not again
        wait_for(partial(has_ended, program))
    # Both workers are free again, and the other parts did not get to them.
    for part in running:
        bench.on(part, "")
    assert bench.run(cluster.scheduler_address, *running)[0] == 0
    assert {part for part in range(1, 7) if bench.tries(part)} == running


def test_clients_with_the_same_command_share_tasks(bench: Bench, cluster: LocalCluster) -> None:
    bench.on(1, WAIT)
    first = bench.start(cluster.scheduler_address, 1)
    first.until("part", state="running")
    second = bench.start(cluster.scheduler_address, 1)
    wait_for(lambda: [len(task.who_wants or ()) for task in tasks(cluster).values()] == [2])
    key = next(iter(tasks(cluster)))
    assert key.startswith(f"{bench.plan.parent.name}-1-1-")
    # The end of one client does not cancel the task of the other.
    first.process.terminate()
    assert first.end() == 128 + 15
    third = bench.start(cluster.scheduler_address, "--copy", 2, 1)
    third.until("part", state="running")
    (bench.out / "go").touch()
    assert (second.end(), third.end()) == (0, 0)
    assert len(bench.tries(1)) == 2


def test_end_of_the_reader_cancels(bench: Bench, cluster: LocalCluster) -> None:
    bench.on(1, WAIT)
    client = bench.start(cluster.scheduler_address, 1, 2)
    client.until("part", state="running", part=1)
    assert client.process.stdout is not None
    client.process.stdout.close()
    (bench.out / "go").touch()
    assert client.process.wait() == 128 + 13
    wait_for(lambda: not tasks(cluster))
    assert "Traceback" not in client.messages()


def test_no_scheduler_and_no_workers(
    bench: Bench, dask: Callable[..., subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        unreachable = bench.start(f"tcp://127.0.0.1:{silent.getsockname()[1]}", 1)
        file = tmp_path / "scheduler.json"
        scheduler = dask(
            *("scheduler", "--host", "tcp://127.0.0.1:0", "--dashboard-address", "127.0.0.1:0"),
            *("--scheduler-file", file),
        )
        address = scheduler_address(file)
        status, client = bench.run(address, "--worker-wait", 0.1, 1)
        assert status == 75
        assert "no worker for 0.1 s" in client.messages()
        assert client.events[1:] == [
            {"event": "workers", "workers": 0, "hosts": []},
            {"event": "end", "done": 0, "failed": 0},
        ]

        client = bench.start(address, 1)
        client.until("workers", workers=0)
        scheduler.kill()
        assert client.end() == 75
        assert "connection lost" in client.messages().splitlines()[-1]
        assert client.events[-1] == {"event": "end", "done": 0, "failed": 0}

        assert unreachable.end() == 75
        assert unreachable.events == []
        assert "cannot connect" in unreachable.messages()
