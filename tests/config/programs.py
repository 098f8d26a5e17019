"""Programs that start parts of the server, to be run in new processes."""

SETUP = "import django; django.setup()"
HELP = """
    import runpy
    sys.argv = ["manage.py", "--help"]
    try:
        runpy.run_path("manage.py", run_name="__main__")
    except SystemExit as end:
        assert not end.code
"""
# What `celery beat` does before it opens connections.
BEAT = """
    from celery.__main__ import main
    from celery.apps.beat import Beat
    from server import commands
    schedulers = []
    def load_scheduler(beat):
        service = beat.Service(app=beat.app, scheduler_cls=beat.scheduler_cls)
        schedulers.append(type(service.get_scheduler(lazy=True)).__name__)
    Beat.start_scheduler = load_scheduler
    sys.argv = list(commands.BEAT[1:])
    try:
        main()
    except SystemExit as end:
        assert not end.code
    assert schedulers == ["DatabaseScheduler"]
"""
WEB = "import config.rsgi"
WORKER = """
    import os
    os.environ["CELERY_SKIP_CHECKS"] = "true"  # the option --skip-checks
    from tasks import celery_app
    celery_app.Worker()
"""
