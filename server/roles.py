"""The roles of the embedded cluster: the application's, and the superuser, which cannot log in.

They are created once, while the server accepts only the operating system user that started Monodon. After
that, the application authenticates with a password that only this user can read. A socket directory of mode
0700 alone would admit other programs that run as the database's user.
"""

import base64
import hashlib
import hmac
import os
import secrets
from collections.abc import Callable
from pathlib import Path

import psycopg

from server.identity import Identity

Connect = Callable[[str, str], psycopg.Connection]
"""`connect(role, database)`"""

SUPERUSER = "monodon_superuser"
_LAYOUT = "1"
"""Changes when `_ROLES` or `_OWNERSHIP` do, so that they are applied to existing clusters again."""
_ACCESS = """\
# Written by Monodon at every start; changes are lost.
local  all  {role}  scram-sha-256
local  all  all     reject
"""
_ACCESS_OF_PREPARATION = """\
local  all  all  peer map=monodon
"""
_NAMES_OF_PREPARATION = """\
monodon  {user}  {role}
monodon  {user}  {superuser}
"""
# Clusters of older releases have the application's role as their bootstrap superuser (OID 10), which
# PostgreSQL can neither demote nor let rename itself.
_ROLES = """
UPDATE pg_authid SET rolname = '{superuser}' WHERE oid = 10;
ALTER ROLE {superuser} PASSWORD NULL;
DO $$ BEGIN
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = '{role}') THEN
        CREATE ROLE {role};
    END IF;
END $$;
ALTER ROLE {role} LOGIN NOSUPERUSER NOREPLICATION NOBYPASSRLS CREATEDB {privileges} PASSWORD '{verifier}'
"""
_EXTRA = """\
GRANT SET ON PARAMETER session_replication_role TO {role};
GRANT pg_checkpoint TO {role};
"""
# Objects of older releases belong to the superuser, for which REASSIGN OWNED is refused.
# Indexes and sequences of columns follow their tables. Objects of extensions are not changed.
_OWNERSHIP = """\
DO $$
DECLARE
    command text;
BEGIN
    EXECUTE format('ALTER DATABASE %I OWNER TO {role}', current_database());
    FOR command IN
        WITH own AS (
            SELECT oid FROM pg_namespace
            WHERE nspname NOT LIKE 'pg\\_%' AND nspname <> 'information_schema'
        ), bound AS (
            SELECT classid, objid FROM pg_depend WHERE deptype = 'e'
            UNION ALL
            SELECT classid, objid FROM pg_depend
            WHERE deptype IN ('a', 'i') AND refobjsubid <> 0 AND classid = 'pg_class'::regclass
        )
        SELECT format('ALTER SCHEMA %I OWNER TO {role}', nspname) FROM pg_namespace
        WHERE oid IN (SELECT oid FROM own) AND nspowner = 10
            AND ('pg_namespace'::regclass, oid) NOT IN (SELECT classid, objid FROM bound)
        UNION ALL
        SELECT format('ALTER TABLE %s OWNER TO {role}', oid::regclass) FROM pg_class
        WHERE relnamespace IN (SELECT oid FROM own) AND relowner = 10
            AND relkind IN ('r', 'p', 'v', 'm', 'f', 'S')
            AND ('pg_class'::regclass, oid) NOT IN (SELECT classid, objid FROM bound)
        UNION ALL
        SELECT format('ALTER ROUTINE %s OWNER TO {role}', oid::regprocedure) FROM pg_proc
        WHERE pronamespace IN (SELECT oid FROM own) AND proowner = 10 AND prokind <> 'a'
            AND ('pg_proc'::regclass, oid) NOT IN (SELECT classid, objid FROM bound)
        UNION ALL
        SELECT format('ALTER TYPE %s OWNER TO {role}', t.oid::regtype) FROM pg_type t
        LEFT JOIN pg_class c ON c.oid = t.typrelid
        WHERE typnamespace IN (SELECT oid FROM own) AND typowner = 10
            AND (typtype IN ('e', 'd', 'r') OR c.relkind = 'c')
            AND ('pg_type'::regclass, t.oid) NOT IN (SELECT classid, objid FROM bound)
    LOOP
        EXECUTE command;
    END LOOP;
END $$
"""


class Roles:
    """The roles of one data directory. `password_file` has libpq's format, and only the current
    user can read it."""

    def __init__(self, data_dir: Path, identity: Identity, *, role: str, extra: bool) -> None:
        self._data_dir = data_dir
        self._identity = identity
        self._role = role
        self._extra = extra
        self._marker = data_dir / "monodon.roles"
        self.password_file = data_dir.with_name(data_dir.name + ".password")

    @property
    def are_prepared(self) -> bool:
        return self._marker.exists() and self._marker.read_text() == self._state()

    def allow_preparation(self) -> None:
        """Let the next server accept only the current user, as either role."""
        names = {"role": self._role, "superuser": SUPERUSER, "user": self._identity.client_name()}
        self._write(self._data_dir / "pg_hba.conf", _ACCESS_OF_PREPARATION)
        self._write(self._data_dir / "pg_ident.conf", _NAMES_OF_PREPARATION.format(**names))

    def allow_application(self) -> None:
        """Let the next server accept only the application's role, with its password."""
        self._write(self._data_dir / "pg_hba.conf", _ACCESS.format(role=self._role))
        self._write(self._data_dir / "pg_ident.conf", "")

    def prepare(self, connect: Connect, database: str) -> None:
        """Create the roles, and make the application's role the owner of its database's objects.

        This can be repeated after a kill.
        """
        names = {"role": self._role, "superuser": SUPERUSER}
        verifier = scram_verifier(self._password())
        privileges = "CREATEROLE" if self._extra else "NOCREATEROLE"
        with self._superuser(connect) as connection:
            connection.execute(
                _ROLES.format(**names, privileges=privileges, verifier=verifier).encode()
            )
            if self._extra:
                connection.execute(_EXTRA.format(**names).encode())
            query = "SELECT 1 FROM pg_database WHERE datname = %s"
            has_database = connection.execute(query, [database]).fetchone() is not None
        if has_database:
            with connect(SUPERUSER, database) as connection:
                connection.execute(_OWNERSHIP.format(**names).encode())
        self._write(self._marker, self._state())

    def _superuser(self, connect: Connect) -> psycopg.Connection:
        try:
            return connect(SUPERUSER, "postgres")
        except psycopg.OperationalError as exc:
            if f'role "{SUPERUSER}" does not exist' not in str(exc):
                raise
        return connect(self._role, "postgres")  # a cluster of an older release

    def _state(self) -> str:
        digest = hashlib.sha256(self._password().encode()).hexdigest()
        return f"{_LAYOUT} {self._extra} {digest}\n"

    def _password(self) -> str:
        """The password of the application's role, generated if there is none."""
        try:
            return self.password_file.read_text().strip().rpartition(":")[2]
        except FileNotFoundError:
            password = secrets.token_urlsafe(32)
        draft = self.password_file.with_name(self.password_file.name + ".new")
        draft.unlink(missing_ok=True)
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(f"*:*:*:{self._role}:{password}\n")
        draft.rename(self.password_file)
        return password

    def _write(self, path: Path, content: str) -> None:
        """Replace a file of the cluster, which belongs to the user of the database."""
        if path.is_file() and path.read_text() == content:
            return
        draft = path.with_name(path.name + ".new")
        draft.unlink(missing_ok=True)
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(content)
        os.chown(draft, *self._identity.owner)
        draft.rename(path)


def scram_verifier(password: str, iterations: int = 4096) -> str:
    """The form of a password that PostgreSQL stores (RFC 5803), so that no statement contains the
    password."""
    salt = secrets.token_bytes(16)
    salted = hashlib.pbkdf2_hmac("sha256", password.encode(), salt, iterations)
    stored = hashlib.sha256(hmac.digest(salted, b"Client Key", "sha256")).digest()
    server = hmac.digest(salted, b"Server Key", "sha256")
    encoded = [base64.b64encode(piece).decode() for piece in (salt, stored, server)]
    return f"SCRAM-SHA-256${iterations}:{encoded[0]}${encoded[1]}:{encoded[2]}"
