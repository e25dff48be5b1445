"""Command line: checks what can be checked without the scheduler."""

from __future__ import annotations

import argparse
import ipaddress
import json
import os
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

from distributed import Security


class Options(argparse.Namespace):
    """Parts to run, how, and on which cluster."""

    scheduler: str
    security: Security | None
    program: str
    plan: str
    plan_id: str
    out: str
    extra: list[str]
    parts: list[int]
    copy: int
    retries: int
    retry_wait: float
    worker_wait: float

    def command(self, part: int) -> list[str]:
        """Returns the command of a part."""
        arguments = ["--plan", self.plan, "--part", str(part), "--out", self.out, *self.extra]
        return [self.program, "correlate", *arguments]


def parse(arguments: Sequence[str] | None = None) -> Options:
    """Returns the options. Ends the process with status 2 if they are invalid."""
    parser = argparse.ArgumentParser(
        prog="python3 -m evlbi_dask",
        description="Run parts of a correlation plan as Dask tasks and report them as JSON lines.",
        allow_abbrev=False,
    )

    def add(name: str, text: str, metavar: str, default: Any = None, **rest: Any) -> None:
        shown = f" [default: {default}]" if default else ""
        parser.add_argument(name, help=text + shown, metavar=metavar, default=default, **rest)

    add("--scheduler", "tls://HOST:PORT, or tcp://127.0.0.1:PORT", "ADDRESS", required=True)
    add("--program", "evlbi program on the workers", "EVLBI", required=True)
    add("--plan", "plan, at the same path on all workers", "FILE", required=True)
    add("--out", "directory of the parts, the same on all workers", "DIR", required=True)
    add("--tls-ca", "certificate of the authority that signed the others", "FILE")
    add("--tls-cert", "certificate of this client", "FILE")
    add("--tls-key", "private key of this client", "FILE")
    add("--retries", "further tries after status 75 or a signal", "N", 3, type=int)
    add("--retry-wait", "time before a further try, in seconds", "S", 5, type=float)
    add("--worker-wait", "maximum time without workers, in seconds", "S", 300, type=float)
    add("--copy", "number of this copy of the tasks", "N", 1, type=int)
    add("--extra", "further argument of the program", "ARG", [], action="append")
    add("numbers", "number of a part, or first and last: 7 or 1-64", "PART", nargs="+")
    options = parser.parse_args(arguments, Options())
    try:
        options.security = _security(options)
        options.plan_id, count = _read_plan(options.plan)
        options.parts = _parts(options.numbers, count)
    except (OSError, ValueError) as error:
        parser.error(str(error))
    # A worker has another working directory. A program without a slash is found by its PATH.
    if "/" in options.program:
        options.program = os.path.abspath(options.program)
    options.plan, options.out = os.path.abspath(options.plan), os.path.abspath(options.out)
    return options


def _parts(numbers: list[str], count: int) -> list[int]:
    """Returns the numbered parts, each once."""
    parts: dict[int, None] = {}
    for text in numbers:
        first, _, last = text.partition("-")
        wanted = range(int(first), int(last or first) + 1)
        if not wanted or wanted[0] < 1 or wanted[-1] > count:
            raise ValueError(f"no part {text}: the plan has parts 1 to {count}")
        parts.update(dict.fromkeys(wanted))
    return list(parts)


def _read_plan(path: str) -> tuple[str, int]:
    """Returns the id of a plan and its number of parts."""
    with open(path, encoding="utf-8") as file:
        try:
            plan = json.load(file)
            return str(plan["plan_id"]), len(plan["parts"])
        except (ValueError, TypeError, KeyError) as error:
            raise ValueError(f"{path} is not a plan of `evlbi plan chunks`: {error!r}") from error


def _security(options: Options) -> Security | None:
    """Returns the TLS settings, or None where a plain connection is safe."""
    address = urlsplit(options.scheduler)
    files = [options.tls_ca, options.tls_cert, options.tls_key]
    if address.scheme not in ("tcp", "tls") or not address.hostname or not address.port:
        raise ValueError(
            f"invalid --scheduler {options.scheduler}: give tls://HOST:PORT or tcp://127.0.0.1:PORT"
        )
    if address.scheme == "tls":
        if None in files:
            raise ValueError("a tls:// scheduler needs --tls-ca, --tls-cert and --tls-key")
        for file in files:
            open(file, "rb").close()
        ca, certificate, key = files
        return Security(
            require_encryption=True, tls_ca_file=ca, tls_client_cert=certificate, tls_client_key=key
        )
    if any(files):
        raise ValueError("--tls-ca, --tls-cert and --tls-key need a tls:// scheduler")
    if not _is_loopback(address.hostname):
        raise ValueError(
            f"refusing {options.scheduler}: a Dask scheduler without TLS runs code of anyone who"
            " can reach its port; start scheduler and workers with TLS, and give"
            f" tls://{address.netloc} with --tls-ca, --tls-cert and --tls-key"
        )
    return None


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
