"""The same work as plain SQL statements, as a lower bound of PostgreSQL's time."""

import os
import re
import subprocess
import tempfile
from pathlib import Path

from benchmarks.errors import BadAnswers
from benchmarks.wrk import Run
from server.postgres import DATABASE, USER, Postgres

SELECT = r"""
\set id random(:first_table, :last_table)
SELECT uuid, location, properties, state, managed_versioning, format
FROM catalog_table WHERE id = :id AND state <> 'dropped';
"""

# The writes of a commit of one version, each in one statement.
CREATE = r"""
\set id random(:first_table, :last_table)
\set number random(1, 9000000000000000000)
BEGIN;
SELECT id, uuid, location, state, now() FROM catalog_table WHERE id = :id FOR NO KEY UPDATE;
INSERT INTO catalog_transaction (id, status, actor, request_id, operations, properties)
VALUES (md5(:number::text)::uuid, 'Succeeded', 'benchmark', '',
        '[{"operation": "CreateTableVersion", "target": "ns0000.t0000", "version": 1}]', '{}');
INSERT INTO catalog_tableversion
    (table_id, branch, version, manifest_path, manifest_size, transaction_id)
VALUES (:id, '', nextval('benchmark_version'), 'bench/ns0000/t0000/1.manifest', 461,
        md5(:number::text)::uuid);
INSERT INTO catalog_auditevent (actor, action, target, after, request_id, transaction_id)
VALUES ('benchmark', 'version.create', 'ns0000.t0000',
        '{"version": 1, "manifest_path": "bench/ns0000/t0000/1.manifest"}', '',
        md5(:number::text)::uuid);
COMMIT;
"""

# What a catalog of Iceberg tables cannot do without: a pointer that moves, and a ledger of where it was.
SWAP = r"""
\set id random(1, 10000)
BEGIN;
SELECT location FROM benchmark_pointer WHERE id = :id FOR UPDATE;
UPDATE benchmark_pointer SET location = 'bench/ns0000/t0000/00001.metadata.json' WHERE id = :id;
INSERT INTO benchmark_ledger (table_id, location) VALUES (:id, 'bench/ns0000/t0000/00001.metadata.json');
COMMIT;
"""

SCRIPTS = {"select": SELECT, "create": CREATE, "swap": SWAP}
PREPARE = """
    CREATE SEQUENCE IF NOT EXISTS benchmark_version START 1000000000000;
    CREATE TABLE IF NOT EXISTS benchmark_pointer (id bigint PRIMARY KEY, location text);
    CREATE TABLE IF NOT EXISTS benchmark_ledger (
        id bigserial PRIMARY KEY, table_id bigint, location text, at timestamptz DEFAULT now()
    );
    INSERT INTO benchmark_pointer SELECT n, '' FROM generate_series(1, 10000) n ON CONFLICT DO NOTHING
"""


def run(
    script: str,
    *,
    postgres: Postgres,
    protocol: str,
    connections: int,
    seconds: int,
    tables: tuple[int, int],
) -> Run:
    """Raises BadAnswers when a statement failed."""
    with tempfile.TemporaryDirectory(prefix="pgbench-") as directory:
        path = Path(directory) / f"{script}.sql"
        path.write_text(SCRIPTS[script])
        result = subprocess.run(
            [
                *(str(postgres.program("pgbench")), "--no-vacuum", "--protocol", protocol),
                *("--client", str(connections), "--jobs", "1", "--time", str(seconds)),
                *("--log", "--sampling-rate", "0.1", "--log-prefix", f"{directory}/log"),
                *("--define", f"first_table={tables[0]}", "--define", f"last_table={tables[1]}"),
                *("--host", str(postgres.socket_dir), "--username", USER),
                *("--file", str(path), DATABASE),
            ],
            env={**os.environ, "PGPASSFILE": str(postgres.password_file)},
            capture_output=True,
            text=True,
            check=False,
        )
        transactions = re.search(r"transactions actually processed: (\d+)", result.stdout)
        rate = re.search(r"tps = ([\d.]+)", result.stdout)
        if result.returncode != 0 or transactions is None or rate is None:
            raise BadAnswers(f"pgbench failed on {script}:\n{result.stdout}{result.stderr}")
        times = sorted(
            int(line.split()[2])
            for log in Path(directory).glob("log.*")
            for line in log.read_text().splitlines()
        )
    requests = int(transactions.group(1))
    if not times:
        raise BadAnswers(f"pgbench logged nothing of {requests} transactions of {script}")
    return Run(
        requests,
        requests / float(rate.group(1)),
        times[len(times) // 2] / 1000,
        times[len(times) * 99 // 100] / 1000,
    )
