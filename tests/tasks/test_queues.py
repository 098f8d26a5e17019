"""Jobs and periodic tasks have queues of their own, so that neither keeps the other waiting."""

from typing import NamedTuple

import pytest
import redis
from django.conf import settings
from kombu import Connection
from kombu.transport.redis import Transport

from server import commands
from server.options import Options
from tasks.broker import Channel
from tasks.celery import app

QUEUE = settings.CELERY_TASK_DEFAULT_QUEUE
JOBS = f"{QUEUE}.jobs"


@pytest.fixture
def broker(worker_id):
    """The broker, with a key prefix of its own: other test processes use the same queues."""
    prefix = f"test-queues-{worker_id}-"
    options = {**app.conf.broker_transport_options, "global_keyprefix": prefix}
    connection = app.connection_for_write(transport_options=options)
    client = redis.Redis.from_url(settings.REDIS_URL)
    keys = [f"{prefix}{queue}" for queue in (QUEUE, JOBS)]
    client.delete(*keys)
    yield Broker(client, prefix, connection)
    client.delete(*keys)
    connection.release()
    client.close()


class Broker(NamedTuple):
    client: redis.Redis
    prefix: str
    connection: Connection

    def length(self, queue: str) -> int:
        return self.client.llen(f"{self.prefix}{queue}")


def test_jobs_have_a_queue_of_their_own(broker):
    app.send_task("tasks.maintenance.run_job", args=[1], connection=broker.connection)
    assert (broker.length(JOBS), broker.length(QUEUE)) == (1, 0)


@pytest.mark.parametrize("entry", sorted(settings.CELERY_BEAT_SCHEDULE))
def test_periodic_tasks_have_the_default_queue_and_expire_with_their_next_round(broker, entry):
    scheduled = settings.CELERY_BEAT_SCHEDULE[entry]
    app.send_task(scheduled["task"], connection=broker.connection, **scheduled["options"])
    assert (broker.length(JOBS), broker.length(QUEUE)) == (0, 1)
    assert scheduled["options"]["expires"] == scheduled["schedule"]


def test_a_worker_without_queues_takes_from_both():
    assert set(app.amqp.queues.consume_from) == {QUEUE, JOBS}


def test_the_workers_of_the_supervisor_take_from_one_queue_each():
    options = Options.from_environment({"MONODON_QUEUE": "other"})
    job_worker, task_worker = commands.job_worker(options), commands.task_worker(options)
    assert job_worker[job_worker.index("--queues") + 1] == "other.jobs"
    assert task_worker[task_worker.index("--queues") + 1] == "other"
    assert "--queues" not in commands.worker(options)


def test_a_running_task_does_not_need_the_connection_that_brought_its_message(broker, monkeypatch):
    """The broker dies while a job runs: the worker closes the connection, and the job ends later."""
    monkeypatch.setattr(Transport, "Channel", Channel)  # as in workers
    app.send_task("tasks.maintenance.run_job", args=[1], connection=broker.connection)
    channel = broker.connection.channel()
    message = channel.basic_get(JOBS)
    channel.connection.client = None
    channel.close()
    for transport in (channel.connection, None):
        channel.connection = transport
        with pytest.raises(broker.connection.connection_errors):
            message.ack()
