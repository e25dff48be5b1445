"""Checks of the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from evlbi_dask.options import parse

LOOPBACK = "tcp://127.0.0.1:8786"
TLS = ["--tls-ca", "ca", "--tls-cert", "cert", "--tls-key", "key"]


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("plan").write_text(json.dumps({"plan_id": "abc", "parts": [{}, {}]}))
    Path("other").write_text("{}")
    for name in ("ca", "cert", "key"):
        Path(name).touch()
    return tmp_path


def arguments(scheduler: str, *rest: str, plan: str = "plan") -> list[str]:
    given = ["--scheduler", scheduler, "--program", "evlbi", "--plan", plan, "--out", "out"]
    return [*given, *rest]


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "localhost", "[::1]"])
def test_plain_loopback_is_accepted(host: str) -> None:
    assert parse(arguments(f"tcp://{host}:8786", "1")).security is None


def test_tls_requires_encryption() -> None:
    security = parse(arguments("tls://10.0.0.1:8786", *TLS, "1")).security
    assert security is not None
    settings = security.get_tls_config_for_role("client")
    assert [settings[name] for name in ("ca_file", "cert", "key")] == ["ca", "cert", "key"]
    assert security.require_encryption is True


def test_command_has_absolute_paths(directory: Path) -> None:
    options = parse(arguments(LOOPBACK, "--extra=--threads", "--extra=4", "2", "1", "2"))
    assert options.parts == [2, 1]
    assert parse(arguments(LOOPBACK, "1-2")).parts == [1, 2]
    assert options.plan_id == "abc"
    expected = f"evlbi correlate --plan {directory}/plan --part 2 --out {directory}/out --threads 4"
    assert options.command(2) == expected.split()
    assert parse([*arguments(LOOPBACK, "1"), "--program", "./evlbi"]).program.startswith("/")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (arguments("tcp://10.0.0.1:8786", "1"), "give tls://10.0.0.1:8786 with --tls-ca"),
        (arguments("tcp://correlator:8786", "1"), "runs code of anyone"),
        (arguments("tcp://127.0.0.1.example.org:8786", "1"), "runs code of anyone"),
        (arguments("tcp://0.0.0.0:8786", "1"), "runs code of anyone"),
        (arguments("127.0.0.1:8786", "1"), "invalid --scheduler"),
        (arguments("tcp://127.0.0.1", "1"), "invalid --scheduler"),
        (arguments("ws://127.0.0.1:8786", "1"), "invalid --scheduler"),
        (arguments("tls://10.0.0.1:8786", *TLS[:4], "1"), "needs --tls-ca, --tls-cert and"),
        (arguments("tls://10.0.0.1:8786", *TLS[:5], "none", "1"), "No such file"),
        (arguments(LOOPBACK, *TLS, "1"), "need a tls:// scheduler"),
        (arguments(LOOPBACK, "3"), "no part 3: the plan has parts 1 to 2"),
        (arguments(LOOPBACK, "0"), "no part 0"),
        (arguments(LOOPBACK, "1-99999999999"), "no part 1-99999999999"),
        (arguments(LOOPBACK, "2-1"), "no part 2-1"),
        (arguments(LOOPBACK, "all"), "'all'"),
        (arguments(LOOPBACK), "PART"),
        (arguments(LOOPBACK, "1", plan="none"), "No such file"),
        (arguments(LOOPBACK, "1", plan="ca"), "is not a plan"),
        (arguments(LOOPBACK, "1", plan="other"), "is not a plan"),
    ],
)
def test_invalid_usage_ends_with_2(
    given: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        parse(given)
    assert end.value.code == 2
    assert message in capsys.readouterr().err
