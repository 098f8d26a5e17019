"""Faults of a running installation raise their alerts within a minute."""

import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
import redis
from lance_namespace_urllib3_client import models as m

from tests.alerts import EVALUATION, SCRAPE, Scrapes
from tests.chaos.test_maintenance_storm import Upkeep
from tests.clients import pyice
from tests.clients.test_iceberg_maintenance import Jobs
from tests.ports import free_port

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(900)]
SPACE = "alerts"
_SCHEMA = pa.schema([("id", pa.int64())])
_WITHIN = 60.0
_ALL = (
    *("MonodonNoWorker", "MonodonNoTasks", "MonodonNoBeat", "MonodonBrokerDown"),
    *("MonodonQueueGrows", "MonodonJobStuck", "MonodonJobSilent", "MonodonNoSpark"),
    *("MonodonAuditSealLate", "MonodonWebhooksFail", "MonodonDiskFull"),
)
_CREATE_WEBHOOK = """
from catalog.access import SYSTEM
from catalog.services.events import webhooks
webhooks.create_webhook(actor=SYSTEM, name="dead", url={url!r})
"""


@pytest.fixture
def upkeep(live_template: None, tmp_path: Path) -> Iterator[Upkeep]:
    """With the real beat, which sends all periodic tasks."""
    started = Upkeep(tmp_path, java="", MONODON_WEBHOOK_HOSTS="127.0.0.1")
    try:
        started.server.start()
        started.server.start_worker()
        started.server.start_beat()
        started.server.client().create_namespace(m.CreateNamespaceRequest(id=[SPACE]))
        yield started
    finally:
        started.close()


class _Prometheus:
    """Scrapes a server and evaluates the alerts, at the documented intervals."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._scrapes = Scrapes()
        self.seconds: dict[str, float] = {}

    def step(self) -> None:
        with urllib.request.urlopen(f"{self._url}/metrics", timeout=60) as answer:
            self._scrapes.add(answer.read().decode(), time.monotonic())

    def wait_until_healthy(self) -> None:
        """Workers take a while to start on a busy machine."""
        deadline = time.monotonic() + 300
        quiet = 0
        while quiet < 4:
            assert time.monotonic() < deadline, self.firing()
            self.step()
            quiet = 0 if self.firing() else quiet + 1
            time.sleep(SCRAPE)

    def firing(self) -> list[str]:
        return [alert for alert in _ALL if self._scrapes.is_true(alert)]

    def expect(self, *alerts: str) -> None:
        """Wait until the alerts are raised after the faults of this moment."""
        began = time.monotonic()
        while missing := set(alerts) - self.seconds.keys():
            self.step()
            # A rule may be evaluated just before the scrape, and then at the next interval.
            now = time.monotonic() - began + EVALUATION
            for alert in missing & set(self.firing()):
                self.seconds[alert] = round(now, 1)
            assert now < _WITHIN or not missing - self.seconds.keys(), (missing, self.firing())
            time.sleep(SCRAPE)


def test_alerts_are_raised_within_a_minute(upkeep: Upkeep) -> None:
    server = upkeep.server
    prometheus = _Prometheus(server.url)
    prometheus.wait_until_healthy()

    server.manage(_CREATE_WEBHOOK.format(url=f"http://127.0.0.1:{free_port()}/"))
    # The worker of this server has no Iceberg runtime.
    pyice.connect(server.url, token=server.key).create_table((SPACE, "orders"), _SCHEMA)
    jobs = Jobs(server)
    job = jobs.start((SPACE, "orders"), "compute_statistics")
    jobs.followed(job)
    with server.database() as connection:
        connection.execute(
            "UPDATE catalog_job SET status = 'running', finished_at = NULL,"
            " started_at = now() - interval '7 h', lease_until = now() + interval '2 min'"
            " WHERE id = %s",
            [job],
        )
    prometheus.expect(
        "MonodonNoSpark", "MonodonWebhooksFail", "MonodonJobStuck", "MonodonJobSilent"
    )

    assert server._beat is not None
    server.kill_worker()
    server._beat.kill_group()
    server.client().create_namespace(m.CreateNamespaceRequest(id=[SPACE, "unsealed"]))
    queue = server._environment["MONODON_QUEUE"]
    with redis.Redis.from_url(upkeep.broker.url) as broker:
        broker.rpush(queue, *(b"{}" for _ in range(1001)))
    prometheus.expect(
        *("MonodonNoWorker", "MonodonNoTasks", "MonodonNoBeat", "MonodonQueueGrows"),
        "MonodonAuditSealLate",
    )

    upkeep.kill_broker()
    prometheus.expect("MonodonBrokerDown")
    print(prometheus.seconds)
