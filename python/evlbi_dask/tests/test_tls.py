"""Scheduler and worker by Dask's commands, with TLS, as the README sets them up."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from conftest import Bench, has_ended, scheduler_address, wait_for

README = Path(__file__).parents[1] / "README.md"


def make_certificates(directory: Path) -> None:
    """Runs the README's commands."""
    directory.mkdir()
    blocks = re.findall(r"```sh\n(.*?)```", README.read_text(), re.DOTALL)
    (script,) = [block for block in blocks if block.startswith("openssl")]
    subprocess.run(
        ["sh", "-ec", script], cwd=directory, check=True, capture_output=True, timeout=300
    )


def test_tls(bench: Bench, dask: Callable[..., subprocess.Popen[bytes]], tmp_path: Path) -> None:
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    make_certificates(ours)
    make_certificates(theirs)

    def files(directory: Path, ca: str) -> list[str]:
        own = ["--tls-cert", f"{directory}/cert.pem", "--tls-key", f"{directory}/key.pem"]
        return [ca, f"{ours}/ca.pem", *own]

    # Workers cannot import the package, even if it is installed.
    hidden = tmp_path / "hidden" / "evlbi_dask"
    hidden.mkdir(parents=True)
    (hidden / "__init__.py").write_text("raise ImportError('not on workers')\n")
    environment = {
        "PYTHONPATH": str(hidden.parent),
        "DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES": "0",
    }
    without = [sys.executable, "-c", "import evlbi_dask"]
    assert subprocess.run(without, env=environment, check=False, capture_output=True).returncode

    file = tmp_path / "scheduler.json"
    listen = ["--host", "tls://127.0.0.1:0", "--dashboard-address", "127.0.0.1:0"]
    tls = files(ours, "--tls-ca-file")
    dask("scheduler", *listen, "--scheduler-file", file, *tls, **environment)
    address = scheduler_address(file)
    assert address.startswith("tls://")
    stranger = bench.start(address, *files(theirs, "--tls-ca"), 1)
    plain = bench.start(address.replace("tls:", "tcp:"), 1)
    local = ["--host", "127.0.0.1", "--dashboard-address", "127.0.0.1:0"]
    name = ["--name", "w1", "--nthreads", "1", "--local-directory", str(tmp_path)]
    dask("worker", address, *local, *name, *tls, **environment)

    bench.on(2, "kill -9 $PPID; exec sleep 600")
    status, client = bench.run(address, *files(ours, "--tls-ca"), 1)
    assert status == 0, client.messages()
    status, client = bench.run(address, *files(ours, "--tls-ca"), 2)
    assert status == 1, client.messages()
    failed = client.last_of(2)
    assert failed["status"] is None
    assert failed["host"]
    assert "workers that had this part: 1; the last was w1 (tls://" in failed["why"]
    ((program, _),) = bench.tries(2)
    wait_for(lambda: has_ended(program))
    # A client without a certificate of the scheduler's authority is refused.
    for other in stranger, plain:
        assert other.end() == 75
        assert other.events == []
        assert "cannot connect" in other.messages()
    assert len(bench.tries(1)) == 1
