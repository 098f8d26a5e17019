"""Clients of LanceDB's remote protocol that the tests install: TypeScript, Rust, older Python, and frameworks."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import lancedb
import pytest

from tests.engines import cargo, toolkit
from tests.engines.toolkit import Missing, python_packages
from tests.live import LiveServer

pytestmark = [pytest.mark.engines, pytest.mark.timeout(1200)]
PROGRAMS = Path(__file__).with_name("program")
OLDER = (("lancedb==0.20.0", "pandas"), ("lancedb==0.30.2", "pandas"))
NODES = ("0.22.3", "0.39.0")
LANGCHAIN = ("langchain-community==0.4.2", "langchain-core==1.7.2", "lancedb==0.40.0", "pandas")
LLAMA_INDEX = (
    "llama-index-vector-stores-lancedb==0.6.0",
    "llama-index-core==0.14.25",
    "lancedb==0.40.0",
    "pandas",
)
RUST = Path(__file__).with_name("rust")
PROTOC = ("grpcio-tools==1.85.1",)
POLARS = ("polars==2.1.0",)
COMMON = {
    "create": 4,
    "empty": 0,
    "names": ["animals", "empty"],
    "search": [3, 4],
    "filter": [4],
    "alias": [6],
    "stats": 5,
    "text": [3],
    "columns": ["id", "name", "vector"],
    "checkout": 4,
    "drop": ["animals"],
}
WALK = COMMON | {
    "exist_ok": 4,
    "add": 2,
    "update": 1,
    "delete": 4,
    "merge": 1,
    "count": 3,
    "scan": [1, 3, 4, 5, 6],
    "plan": True,
    "fts index": None,
    "btree": None,
    "wait": None,
    "indices": ["id_idx", "name_idx"],
    "drop index": None,
    "tags": [2, []],
    "versions": 11,
    "restore": 4,
}
"""Further results of the programs in TypeScript and Rust."""


def node_packages(version: str) -> Path:
    """A directory with this version of the package for Node.js, which is kept. Raises Missing."""
    if shutil.which("npm") is None or shutil.which("node") is None:
        raise Missing("Node.js is not installed")
    target = toolkit.cache(f"lancedb-node-{version}")
    if not (target / "done").exists():
        packages = (f"@lancedb/lancedb@{version}", "apache-arrow@18.1.0")
        toolkit.run_installer(
            ["npm", "install", "--no-audit", "--no-fund", "--prefix", str(target), *packages]
        )
        (target / "done").touch()
    return target


def rust_walk() -> Path:
    """The program in Rust; its first build compiles some 530 crates. Raises Missing."""
    cargo.fetch(RUST)
    return cargo.build(RUST, toolkit.cache("lancedb-rust"), {"PROTOC": protoc()})


def protoc() -> str:
    """The compiler of Protocol Buffers that the build needs, with the types of its library. Raises Missing."""
    script = toolkit.cache("protoc") / "protoc"
    packages = python_packages(*PROTOC)
    script.write_text(
        f'#!/bin/sh\nPYTHONPATH="{packages}" exec "{sys.executable}" -m grpc_tools.protoc "$@"\n'
    )
    script.chmod(0o755)
    return str(script)


def run(server: LiveServer, database: str, *command: str, **options: Any) -> str:
    """The output of a program that gets the server, the key, and the name of a new database."""
    lancedb.connect_catalog(server.url, api_key=server.key).create_database(database)
    arguments = [*command, server.url, server.key, database]
    ended = subprocess.run(
        arguments, capture_output=True, text=True, timeout=300, check=False, **options
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def steps(output: str) -> dict[str, Any]:
    return dict(json.loads(line) for line in output.splitlines())


@pytest.mark.parametrize("version", NODES)
def test_typescript(server: LiveServer, version: str) -> None:
    toolkit.require(lambda: node_packages(version))
    program = node_packages(version) / "walk.mjs"
    shutil.copy(PROGRAMS / "walk.mjs", program)
    results = steps(run(server, f"typescript-{version}", "node", str(program)))
    assert "already exists" in results.pop("exists")["error"]
    assert "was not found" in results.pop("missing")["error"]
    schema = ["id: Float64", "name: Utf8", "vector: FixedSizeList[2]<Float32>"]
    assert results == WALK | {"schema": schema}


@pytest.mark.timeout(7200)
def test_rust(server: LiveServer) -> None:
    toolkit.require(rust_walk)
    results = steps(run(server, "rust", str(rust_walk())))
    assert "already exists" in results.pop("exists")["error"]
    assert "was not found" in results.pop("missing")["error"]
    schema = ["id: Int64", "name: Utf8", "vector: FixedSizeList(2 x Float32)"]
    assert results == WALK | {"schema": schema, "hybrid": [3, 4]}


@pytest.mark.parametrize("requirements", OLDER, ids=lambda names: names[0])
def test_older_python_clients(server: LiveServer, requirements: tuple[str, ...]) -> None:
    toolkit.require(lambda: python_packages(*requirements))
    environment = {"PYTHONPATH": str(python_packages(*requirements)), "PATH": ""}
    program = PROGRAMS / "walk.py"
    database = requirements[0].replace("==", "-")
    results = steps(run(server, database, sys.executable, str(program), env=environment))
    assert "already exists" in results.pop("exists")["error"]
    assert "was not found" in results.pop("missing")["error"]
    assert results == COMMON | {
        "open": ["id", "name", "vector"],
        "rows": 5,
        "several": [1, 3],
        "scan": [4, 5, 6],
        "indexes": ["id_idx", "name_idx"],
        "hybrid": [3],
        "versions": 10,
    }


def test_langchain(server: LiveServer) -> None:
    toolkit.require(lambda: python_packages(*LANGCHAIN))
    environment = {"PYTHONPATH": str(python_packages(*LANGCHAIN)), "PATH": ""}
    program = PROGRAMS / "texts.py"
    output = run(server, "texts", sys.executable, str(program), env=environment)
    assert output.splitlines() == ["100 96", "[7, 7, 7]", "1500"]


def test_llama_index(server: LiveServer) -> None:
    toolkit.require(lambda: python_packages(*LLAMA_INDEX))
    environment = {"PYTHONPATH": str(python_packages(*LLAMA_INDEX)), "PATH": "", "HOME": "/"}
    program = PROGRAMS / "nodes.py"
    output = run(server, "nodes", sys.executable, str(program), env=environment)
    assert output.splitlines() == ["100", "[7, 7, 7]", "True", "1400 ['vector_idx']"]


def test_polars(server: LiveServer) -> None:
    toolkit.require(lambda: python_packages(*POLARS))
    environment = {"PYTHONPATH": str(python_packages(*POLARS)), "PATH": ""}
    program = PROGRAMS / "frames.py"
    output = run(server, "frames", sys.executable, str(program), env=environment)
    assert output.splitlines() == [
        "[1, 2, 3, 4, 5] ['narwhal', 'beluga', 'orca', 'killer whale', 'minke'] {'whale'}",
        "['beluga'] Array(Float32, shape=(2,))",
    ]
