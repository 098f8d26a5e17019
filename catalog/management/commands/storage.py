"""Manage storage profiles, and bind namespaces to them, on the command line."""

import getpass
import os
import sys
from argparse import ArgumentParser, BooleanOptionalAction
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from catalog import identifiers
from catalog.access import COMMAND
from catalog.errors import CatalogError, InvalidInput
from catalog.identifiers import Identifier, label
from catalog.models import StorageProfile
from catalog.services.storage import profile_bindings
from catalog.services.storage import profile_operations as profiles
from catalog.services.storage.profile_checks import tests as profile_tests
from catalog.services.storage.profile_checks.results import CheckStatus
from catalog.services.storage.profile_presets import PRESETS
from catalog.services.storage.profile_usage import Impact
from catalog.storage.configuration import ClientAccess, Key, ServerIdentity, StoreKind

_TEXTS = {
    "region": "region of the bucket",
    "endpoint": "URL of the store; empty: the provider's own",
    "sts_endpoint": "URL of the token service; empty: the endpoint",
    "kms_key": "key of the key management that encrypts new objects",
    "role": "ARN of the role that the server assumes, for itself or for clients",
    "external_id": "external ID that the role's trust policy requires",
}
_CHOICES = {
    "kind": (StoreKind, "kind of the store"),
    "identity": (ServerIdentity, "how the server authenticates"),
    "client_access": (ClientAccess, "how clients get access to the files of a table"),
}
_FLAGS = {
    "path_style": "the bucket is part of the URL's path, not of its host name",
    "conditional_writes": "the store supports If-None-Match",
}
_SOURCES = "-: standard input, env:NAME: an environment variable, file:PATH: a file"


class Command(BaseCommand):
    help = "Manage storage profiles, which let tables be in object stores."
    # System checks import the whole API, which takes seconds at every start.
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        actions = parser.add_subparsers(dest="action", required=True)
        actions.add_parser("list", help="list the profiles")
        show = actions.add_parser("show", help="show a profile, without its secret")
        create = actions.add_parser("create", help="create a profile")
        update = actions.add_parser("update", help="change a profile; other fields stay")
        rotate = actions.add_parser("rotate-key", help="replace the key of a profile")
        delete = actions.add_parser("delete", help="delete a profile that nothing needs")
        test = actions.add_parser("test", help="check the store, the key and the access of clients")
        for subparser in (show, create, update, rotate, delete, test):
            subparser.add_argument("name")
        create.add_argument("--preset", choices=PRESETS, help="start from the fields of a store")
        for subparser in (create, update):
            _add_fields(subparser)
        for subparser in (create, update, rotate):
            subparser.add_argument(
                "--key-id", help="access key id; for Azure the name of the storage account"
            )
            subparser.add_argument(
                "--secret-from", metavar="SOURCE", help=f"where the key's secret is. {_SOURCES}"
            )
            subparser.add_argument(
                "--token-from", metavar="SOURCE", help="where its session token is, if it has one"
            )
        for subparser in (update, delete):
            subparser.add_argument(
                "--dry-run", action="store_true", help="show what the change would break"
            )
        update.add_argument(
            "--confirm",
            action="store_true",
            help="make a change that may take the storage of tables away",
        )
        bind = actions.add_parser("bind", help="place new tables of a namespace by a profile")
        unbind = actions.add_parser("unbind", help="let a namespace inherit its storage")
        for subparser in (bind, unbind):
            subparser.add_argument("namespace", help="a namespace; $ for the root")
        bind.add_argument("name", help="the profile")

    def handle(self, *args: Any, **options: Any) -> None:
        action = options["action"].replace("-", "_")
        try:
            getattr(self, f"_{action}")(options)
        except CatalogError as refused:
            text = f"{refused.message}. {refused.detail}" if refused.detail else refused.message
            raise CommandError(text) from refused

    def _list(self, options: Mapping[str, Any]) -> None:
        token = None
        while True:
            rows, token = profiles.list_profiles(actor=COMMAND, page_token=token)
            for row in rows:
                self.stdout.write(f"{row.name:24} {row.kind:5} {' '.join(row.roots)}")
            if token is None:
                return

    def _show(self, options: Mapping[str, Any]) -> None:
        self._print(profiles.find_profile(actor=COMMAND, name=options["name"]))
        for row in profiles.list_bound_namespaces(actor=COMMAND, name=options["name"]):
            self.stdout.write(f"{'namespace':20} {label(row.identifier)}")

    def _create(self, options: Mapping[str, Any]) -> None:
        preset = PRESETS.get(options["preset"] or "")
        values: dict[str, Any] = {"kind": None, "roots": ()}
        if preset is not None:
            values |= {"kind": preset.kind, **preset.fields}
        values |= _fields(options)
        if values["kind"] is None:
            raise CommandError("kind: it is not set; use --kind or --preset")
        row = profiles.create_profile(
            actor=COMMAND, name=options["name"], key=_key(options), **values
        )
        self._print(row)

    def _update(self, options: Mapping[str, Any]) -> None:
        name = options["name"]
        changes = profiles.Changes(**_fields(options))
        if options["secret_from"]:
            changes = replace(changes, key=_key(options, self._key_id(name)))
        elif options["key_id"] is not None:
            raise CommandError("key-id: a key is replaced as a whole; add --secret-from")
        if options["dry_run"]:
            self._print_impact(profiles.preview_update(actor=COMMAND, name=name, changes=changes))
            return
        row = profiles.update_profile(
            actor=COMMAND, name=name, changes=changes, confirm=options["confirm"]
        )
        self._print(row)

    def _rotate_key(self, options: Mapping[str, Any]) -> None:
        name = options["name"]
        key = _key(options, self._key_id(name))
        if key is None:
            raise CommandError(f"secret-from: it is not set; use one of {_SOURCES}")
        self._print(profiles.rotate_key(actor=COMMAND, name=name, key=key))

    def _delete(self, options: Mapping[str, Any]) -> None:
        name = options["name"]
        if options["dry_run"]:
            self._print_impact(profiles.preview_deletion(actor=COMMAND, name=name))
            return
        profiles.delete_profile(actor=COMMAND, name=name)
        self.stdout.write(f"Storage profile '{name}' is deleted; its store is unchanged.")

    def _test(self, options: Mapping[str, Any]) -> None:
        failed = 0
        for result in profile_tests.run_at_once(actor=COMMAND, name=options["name"]):
            failed += result.status == CheckStatus.FAILED
            self.stdout.write(f"{result.status:8} {result.title:34} {result.cause}")
            if result.remedy:
                self.stdout.write(f"{'':8} remedy: {result.remedy}")
            self.stdout.flush()
        if failed:
            raise CommandError(f"{failed} checks of storage profile '{options['name']}' failed")

    def _bind(self, options: Mapping[str, Any]) -> None:
        storage = profile_bindings.bind_namespace(
            actor=COMMAND, namespace=_namespace(options), profile=options["name"]
        )
        self.stdout.write(f"New tables of {storage.namespace} are placed at {storage.location}")

    def _unbind(self, options: Mapping[str, Any]) -> None:
        storage = profile_bindings.unbind_namespace(actor=COMMAND, namespace=_namespace(options))
        self.stdout.write(f"New tables of {storage.namespace} are placed at {storage.location}")

    def _key_id(self, name: str) -> str:
        return profiles.find_profile(actor=COMMAND, name=name).key_id

    def _print(self, row: StorageProfile) -> None:
        values = {"name": row.name, **{name: getattr(row, name) for name in profiles.FIELDS}}
        if row.secret is not None:
            values |= {"key_id": row.key_id, "secret": "set, and not shown"}
        values["version"] = row.version
        for name, value in values.items():
            if value not in ("", None):
                shown = " ".join(value) if isinstance(value, list) else value
                self.stdout.write(f"{name:20} {shown}")

    def _print_impact(self, impact: Impact) -> None:
        for name, (before, after) in impact.changes.items():
            self.stdout.write(f"{name}: {before} → {after}")
        self.stdout.write(f"tables below its roots: {impact.tables}")
        self.stdout.write(f"bound namespaces: {impact.namespaces}")
        if impact.credentials_valid_until is not None:
            until = f"{impact.credentials_valid_until:%Y-%m-%d %H:%M:%S %Z}"
            self.stdout.write(f"credentials of clients remain valid until {until}")
        for obstacle in impact.obstacles:
            self.stdout.write(f"refused: {obstacle}")
        for warning in impact.warnings:
            self.stdout.write(f"needs --confirm: {warning}")


def _add_fields(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--root",
        action="append",
        dest="roots",
        metavar="LOCATION",
        help="a location below which tables may be; repeatable, the first is for new tables."
        " Replaces all roots",
    )
    for name, text in _TEXTS.items():
        parser.add_argument(_option(name), help=text)
    for name, (enum, text) in _CHOICES.items():
        choices = [member.value for member in enum if member is not StoreKind.FILE]
        parser.add_argument(_option(name), choices=choices, help=text)
    for name, text in _FLAGS.items():
        parser.add_argument(_option(name), action=BooleanOptionalAction, help=text)
    parser.add_argument(
        "--lifetime-seconds", type=int, help="seconds for which credentials of clients are valid"
    )


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _fields(options: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that the command line sets."""
    values = {name: options[name] for name in profiles.FIELDS if options[name] is not None}
    for name, (enum, _) in _CHOICES.items():
        if name in values:
            values[name] = enum(values[name])
    return values


def _key(options: Mapping[str, Any], key_id: str = "") -> Key | None:
    """The key from the sources that the command line names; None without a source."""
    if not options["secret_from"]:
        if options["key_id"] is not None or options["token_from"]:
            raise CommandError(f"secret-from: it is not set; use one of {_SOURCES}")
        return None
    token = options["token_from"]
    return Key(
        id=key_id if options["key_id"] is None else options["key_id"],
        secret=_read(options["secret_from"]),
        token=_read(token) if token else "",
    )


def _read(source: str) -> str:
    """A secret from a source. The message of a refusal never shows a text that may be the secret."""
    kind, _, name = source.partition(":")
    if source == "-":
        return (
            getpass.getpass("Secret: ") if sys.stdin.isatty() else sys.stdin.read().rstrip("\r\n")
        )
    if kind == "env" and name:
        if name not in os.environ:
            raise CommandError(f"Environment variable {name} is not set")
        return os.environ[name]
    if kind == "file" and name:
        try:
            return Path(name).read_text(encoding="utf-8").rstrip("\r\n")
        except (OSError, UnicodeDecodeError) as error:
            raise CommandError(f"The file of the secret cannot be read: {error}") from None
    raise CommandError(f"A secret is never an argument; use one of {_SOURCES}")


def _namespace(options: Mapping[str, Any]) -> Identifier:
    try:
        return identifiers.typed(options["namespace"])
    except InvalidInput as refused:
        raise CommandError(refused.message) from refused
