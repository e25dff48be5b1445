"""Runs one Dask task per part of a plan: `python3 -m evlbi_dask --help`.

The workers do not need this package. Dask sends functions of `__main__`, the module that is run, by
value; therefore everything that runs on a worker is in this file.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections import deque

from distributed import get_worker

from evlbi_dask.follow import main

# Becomes the program, which gets SIGTERM if its worker dies: no program outlives its worker.
# `preexec_fn` could do the same, but is not safe in a process with threads.
START = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG
if os.getppid() != int(sys.argv[1]):
    sys.exit("the worker died")
signal.signal(signal.SIGPIPE, signal.SIG_DFL)
try:
    os.execvp(sys.argv[2], sys.argv[2:])
except OSError as error:
    print(f"cannot run {sys.argv[2]}: {error.strerror}", file=sys.stderr)
    sys.exit(127)
"""


def run_part(command: list[str], key: str, topic: str, retry_wait: float) -> dict[str, object]:
    """Runs the program on a worker. Returns its host, time, exit status and last lines of stderr.

    Raises ChildProcessError with the same after status 75 or a signal, so that Dask tries again.
    """
    host = socket.gethostname()
    get_worker().log_event(topic, {"key": key, "host": host})
    started = time.monotonic()
    with subprocess.Popen(
        [sys.executable, "-ISc", START, str(os.getpid()), *command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
    ) as process:
        lines = deque(filter(None, map(str.strip, process.stderr or ())), maxlen=5)
    status = process.returncode
    if status < 0:
        lines.append(f"killed by signal {-status}")
    outcome = {
        "host": host,
        "seconds": round(time.monotonic() - started, 3),
        "status": status if status >= 0 else None,
        "why": "\n".join(lines)[-2000:],
    }
    # What was killed may have had too little memory.
    if status == os.EX_TEMPFAIL or status < 0:
        # The last try waits, too: a task does not know how many are left.
        time.sleep(retry_wait)
        raise ChildProcessError(outcome)
    return outcome


if __name__ == "__main__":
    sys.exit(main(run_part))
