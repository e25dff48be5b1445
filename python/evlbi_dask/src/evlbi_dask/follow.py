"""Submits the tasks, follows them, and prints their states as JSON lines."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib.metadata import version
from queue import Empty, SimpleQueue
from urllib.parse import urlsplit

import dask
from distributed import CancelledError, Client, Future
from distributed.scheduler import KilledWorker

from evlbi_dask.options import Options, parse

# Timeouts in seconds: connection to the scheduler, its answers, answers that can be done without.
CONNECT_TIMEOUT, ANSWER_TIMEOUT, SHORT_TIMEOUT = 10, 60, 10
# Time between two queries of the set of workers, in seconds.
POLL_INTERVAL = 1
# Topic of the events with which workers report that a part starts.
TOPIC = "evlbi"

Outcome = dict[str, object]
RunPart = Callable[[list[str], str, str, float], Outcome]


class TryAgainError(Exception):
    """A failure of the cluster: the same may succeed later."""


class StoppedError(Exception):
    """A signal to stop."""


def main(run_part: RunPart) -> int:
    """Runs the command line and returns the exit status."""
    # As long as there are no tasks, a signal just ends the process.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    options = parse()
    # Dask logs tracebacks of the errors that are reported here.
    logging.disable()
    dask.config.set({"distributed.comm.timeouts.connect": CONNECT_TIMEOUT})
    try:
        with _connect(options) as client:
            return Run(client, options).run(run_part)
    except (TryAgainError, OSError, asyncio.TimeoutError) as error:
        print(f"evlbi_dask: {options.scheduler}: {error}", file=sys.stderr)
        return os.EX_TEMPFAIL


def _connect(options: Options) -> Client:
    try:
        # Dask's own timeout does not cover a peer that accepts a connection and stays silent.
        with limit(CONNECT_TIMEOUT + 2):
            return Client(options.scheduler, timeout=CONNECT_TIMEOUT, security=options.security)
    except Exception as error:
        # Its type depends on the protocol, the step and the version of distributed.
        raise TryAgainError(f"cannot connect: {error}") from error


class Run:
    """Tasks of one command line."""

    def __init__(self, client: Client, options: Options) -> None:
        self.client = client
        self.options = options
        # Part and future of each task that is not done, by key.
        self.pending: dict[str, tuple[int, Future[Outcome]]] = {}
        self.done = self.failed = 0
        # Futures that are done, parts that start on workers, and signals to stop.
        self.arrived: SimpleQueue[Future[Outcome] | dict[str, str] | signal.Signals] = SimpleQueue()
        # Addresses of the workers, and the host name of each, including workers that died.
        self.workers: set[str] | None = None
        self.hosts: dict[str, str] = {}

    def run(self, run_part: RunPart) -> int:
        """Submits the tasks and follows them to the end. Returns the exit status."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._on_signal)
        options = self.options
        try:
            emit(
                event="begun",
                plan_id=options.plan_id,
                parts=len(options.parts),
                scheduler=options.scheduler,
                dask=version("distributed"),
            )
            self._submit(run_part)
            self._follow()
        except StoppedError as stopped:
            return 128 + self._cancel(stopped.args[0])
        finally:
            with suppress(StoppedError):
                emit(event="end", done=self.done, failed=self.failed)
        return 1 if self.failed else 0

    def _on_signal(self, number: int, _frame: object) -> None:
        # Another signal ends the process at once.
        signal.signal(number, signal.SIG_DFL)
        self.arrived.put(signal.Signals(number))

    def _submit(self, run_part: RunPart) -> None:
        options = self.options
        self.client.subscribe_topic(TOPIC, lambda event: self.arrived.put(event[1]))
        for part in options.parts:
            command = options.command(part)
            digest = hashlib.sha256(json.dumps(command).encode()).hexdigest()[:8]
            # Clients with the same command share the task.
            key = f"{options.plan_id}-{part}-{options.copy}-{digest}"
            arguments = (command, key, TOPIC, options.retry_wait)
            future = self.client.submit(
                run_part, *arguments, key=key, pure=False, retries=options.retries
            )
            self.pending[key] = part, future
            future.add_done_callback(self.arrived.put)

    def _follow(self) -> None:
        last_worker = next_poll = time.monotonic()
        while self.pending:
            now = time.monotonic()
            if now >= next_poll:
                next_poll = now + POLL_INTERVAL
                if self._poll_workers():
                    last_worker = now
                elif now - last_worker > self.options.worker_wait:
                    raise TryAgainError(f"no worker for {self.options.worker_wait:g} s")
            try:
                arrived = self.arrived.get(timeout=max(0, next_poll - now))
            except Empty:
                continue
            if isinstance(arrived, Future):
                self._report(arrived)
            elif isinstance(arrived, signal.Signals):
                raise StoppedError(arrived)
            elif arrived["key"] in self.pending:
                part, _ = self.pending[arrived["key"]]
                emit(event="part", part=part, state="running", host=arrived["host"])

    def _poll_workers(self) -> bool:
        """Reports the workers if they have changed, and returns whether there are any."""
        if self.client.status != "running":
            raise TryAgainError("connection lost")
        with limit(ANSWER_TIMEOUT):
            workers = set(self.client.nthreads())
        if workers != self.workers:
            self.workers = workers
            if new := workers - self.hosts.keys():
                names: dict[str, str] = {}
                with suppress(TimeoutError), limit(SHORT_TIMEOUT):
                    ask = self.client.run
                    names = ask(socket.gethostname, workers=list(new), on_error="ignore")
                self.hosts |= {it: names.get(it) or urlsplit(it).hostname or it for it in new}
            hosts = sorted({self.hosts[address] for address in workers})
            emit(event="workers", workers=len(workers), hosts=hosts)
        return bool(workers)

    def _report(self, future: Future[Outcome]) -> None:
        """Reports a part that is done or failed, and forgets its task."""
        outcome = self._outcome(future)
        part, _ = self.pending.pop(str(future.key))
        future.release()
        if outcome["status"] == 0:
            self.done += 1
            state, fields = "done", ["host", "seconds"]
        else:
            self.failed += 1
            state, fields = "failed", ["host", "status", "why"]
        emit(event="part", part=part, state=state, **{field: outcome[field] for field in fields})

    def _outcome(self, future: Future[Outcome]) -> Outcome:
        host: str | None = None
        try:
            return future.result()
        except ChildProcessError as error:
            outcome: Outcome = error.args[0]
            return outcome
        except CancelledError as error:
            raise TryAgainError("connection lost, or tasks cancelled by another client") from error
        except KilledWorker as error:
            worker = error.last_worker
            host = self.hosts.get(worker.address, worker.host)
            deaths = error.allowed_failures + 1
            last = f"{worker.name} ({worker.address})"
            why = f"deaths of workers that had this part: {deaths}; the last was {last}"
        except Exception as error:
            if self.client.status != "running":
                raise TryAgainError(f"connection lost: {error}") from error
            # The task did not get as far as the program.
            why = f"{type(error).__name__}: {error}"
        return {"host": host, "status": None, "why": why}

    def _cancel(self, number: signal.Signals) -> int:
        with limit(SHORT_TIMEOUT):
            self.client.cancel([future for _, future in self.pending.values()])
        print(
            f"evlbi_dask: stopped by {number.name}: parts that had not started are cancelled;"
            " a part that runs on a worker runs to its end",
            file=sys.stderr,
        )
        return number


@contextmanager
def limit(seconds: int) -> Iterator[None]:
    """Raises TimeoutError after some seconds."""

    def on_alarm(_number: int, _frame: object) -> None:
        raise TimeoutError(f"no answer for {seconds} s")

    signal.signal(signal.SIGALRM, on_alarm)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)


def emit(**event: object) -> None:
    """Prints a line of JSON."""
    try:
        print(json.dumps(event), flush=True)
    except BrokenPipeError:
        # Nobody reads the rest. Python would complain about it at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise StoppedError(signal.SIGPIPE) from None
