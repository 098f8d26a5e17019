"""Loads a web server with wrk and one of the scripts in lua/."""

import json
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from benchmarks.errors import BadAnswers, ToolMissing
from benchmarks.stack import API_KEY

SCRIPTS = Path(__file__).with_name("lua")


@dataclass(frozen=True)
class Run:
    requests: int
    seconds: float
    p50_ms: float
    p99_ms: float


def require() -> None:
    """Raises ToolMissing."""
    if shutil.which("wrk") is None:
        raise ToolMissing(
            "The benchmarks load the servers with wrk, which is not installed.\n"
            "  Debian, Ubuntu: sudo apt install wrk      macOS: brew install wrk"
        )


def run(
    script: str,
    *,
    port: int = 0,
    address: str = "",
    credentials: str = f"x-api-key: {API_KEY}",
    connections: int,
    seconds: int,
    namespaces: int,
    tables: int,
    seed: int,
    base: int = 0,
    requests: Path | None = None,
    threads: int = 1,
) -> Run:
    """Load the server at an address, by default a port on this machine.

    ``credentials`` is the header with them. Raises BadAnswers unless every answer was a success.
    """
    address = address or f"http://127.0.0.1:{port}"
    environment = os.environ | {
        "BENCH_COMMON": str(SCRIPTS / "common.lua"),
        "BENCH_KEY": API_KEY,
        "BENCH_HOST": urlsplit(address).netloc,
        "BENCH_CREDENTIALS": credentials,
        "BENCH_NAMESPACES": str(namespaces),
        "BENCH_TABLES": str(tables),
        "BENCH_SEED": str(seed),
        "BENCH_BASE": str(base),
        "BENCH_REQUESTS": str(requests or ""),
    }
    result = subprocess.run(
        [
            *("wrk", "--threads", str(threads), "--connections", str(connections)),
            *("--duration", f"{seconds}s", "--timeout", "10s"),
            *("--script", str(SCRIPTS / f"{script}.lua"), address),
        ],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    lines = [line for line in result.stdout.splitlines() if line.startswith("RESULT ")]
    if result.returncode != 0 or not lines:
        raise BadAnswers(f"wrk failed on {script}:\n{result.stdout}{result.stderr}")
    facts = json.loads(lines[0].removeprefix("RESULT "))
    if facts["bad"] or facts["broken"] or not facts["requests"]:
        raise BadAnswers(
            f"{script}: of {facts['requests']} answers {facts['bad']} were refusals and "
            f"{facts['broken']} connections failed"
        )
    return Run(facts["requests"], facts["seconds"], facts["p50"] / 1000, facts["p99"] / 1000)
