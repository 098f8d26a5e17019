"""`make stores`: object stores on loopback, in the foreground, for trying and developing.

python -m tests.stores                     versitygw, whose objects stay in .monodon/s3
python -m tests.stores --moto --azurite    other stores beside it, whose objects are lost at the end

Prints the endpoint and the keys of each store, and the command that creates a storage profile for it.
"""

import argparse
import contextlib
import shlex
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from server.options import Options
from tests.stores import components
from tests.stores.emulators import Azurite, FakeGcs
from tests.stores.processes import NotReady
from tests.stores.s3 import Moto, S3Store, Versitygw

_BUCKET = "lake"
_KEY, _SECRET = "monodon", "monodon-on-loopback"
_END = """
Then place the new tables of a namespace there:
    .venv/bin/python manage.py storage bind NAMESPACE PROFILE

Ctrl-C stops the stores."""


def main() -> int:
    arguments = _parser().parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with contextlib.ExitStack() as stack, contextlib.suppress(KeyboardInterrupt):
        try:
            for text in _start(stack, arguments):
                print(text, flush=True)
        except (components.Missing, NotReady) as error:
            print(error, file=sys.stderr)
            return 1
        print(_END, flush=True)
        signal.pause()
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.stores", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--port", type=int, default=7070, help="port of versitygw")
    parser.add_argument("--directory", type=Path, help="directory of versitygw's objects")
    parser.add_argument("--moto", action="store_true", help="also moto: S3 with roles and STS")
    parser.add_argument("--azurite", action="store_true", help="also Azurite: Azure's blobs")
    parser.add_argument("--gcs", action="store_true", help="also fake-gcs-server")
    return parser


def _start(stack: contextlib.ExitStack, arguments: argparse.Namespace) -> Iterator[str]:
    """Start the stores; yields the description of each. Raises Missing and NotReady."""
    components.build_versitygw()
    directory = arguments.directory or Options.from_environment().home / "s3"
    gateway = Versitygw(directory=directory, port=arguments.port)
    gateway.access_key, gateway.secret_key = _KEY, _SECRET
    stack.enter_context(gateway)
    _create_bucket(gateway)
    yield _described(
        "versitygw",
        f"S3 (versitygw, objects in {directory})",
        gateway.profile_fields(),
        f"s3://{_BUCKET}/tables",
    )
    if arguments.moto:
        moto = stack.enter_context(Moto())
        _create_bucket(moto)
        fields = moto.profile_fields() | {"client_access": "sts", "role": moto.role}
        # Roots of profiles never overlap, whichever store they are in.
        yield _described("moto", "S3 with roles and STS (moto)", fields, f"s3://{_BUCKET}/moto")
    if arguments.azurite:
        components.install_azurite()
        azurite = stack.enter_context(Azurite())
        host = f"{azurite.account}.dfs.core.windows.net"
        root = f"abfss://{azurite.new_container()}@{host}/tables"
        yield _described("azurite", "Azure blobs (Azurite)", azurite.profile_fields(), root)
    if arguments.gcs:
        components.build_fake_gcs()
        gcs = stack.enter_context(FakeGcs())
        yield _described(
            "fake-gcs",
            "Google Cloud Storage (fake-gcs-server)",
            gcs.profile_fields(),
            f"gs://{gcs.new_bucket()}/tables",
        )


def _create_bucket(store: S3Store) -> None:
    existing = {bucket["Name"] for bucket in store.client().list_buckets()["Buckets"]}
    if _BUCKET not in existing:
        store.client().create_bucket(Bucket=_BUCKET)


def _described(name: str, title: str, fields: dict[str, Any], root: str) -> str:
    """What a user needs: the endpoint, the key, and the command for a profile."""
    lines = [title, f"  endpoint    {fields['endpoint']}", f"  root        {root}"]
    if fields.get("key_id"):
        lines.append(f"  key id      {fields['key_id']}")
    lines += [
        f"  secret      {fields['secret']}",
        "  a profile for it:",
        f"    {_command(name, fields, root)}",
    ]
    return "\n" + "\n".join(lines)


def _command(name: str, fields: dict[str, Any], root: str) -> str:
    """The command that creates a profile; it reads the secret from standard input."""
    words = [".venv/bin/python", "manage.py", "storage", "create", name]
    words += ["--root", root]
    for field, value in fields.items():
        if field == "secret" or value in {"", False}:
            continue
        words.append(f"--{field.replace('_', '-')}")
        if value is not True:
            words.append(str(value))
    return f"printf %s {shlex.quote(fields['secret'])} | {shlex.join(words)} --secret-from -"


if __name__ == "__main__":
    sys.exit(main())
