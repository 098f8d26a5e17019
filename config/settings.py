"""Settings from the environment, which docs/operations.md lists.

A value that need not be changed is a constant in the module that uses it, not a setting.
"""

import os
from datetime import timedelta
from pathlib import Path
from urllib.parse import urlsplit

from django.core.exceptions import ImproperlyConfigured

from config import admin_site, schedule
from config.environment import (
    choice,
    database,
    database_url,
    flag,
    items,
    manifest_paths,
    maven_url,
    number,
    own_url,
    redis_url,
    secret_key,
    spark_conf,
    spark_masters,
    spark_names,
    web_url,
    wrong,
)

BASE_DIR = Path(__file__).resolve().parent.parent


# --- where things live -------------------------------------------------------------------------

MONODON_HOME = Path(os.environ.get("MONODON_HOME") or BASE_DIR / ".monodon").absolute()
MONODON_WAREHOUSE = os.environ.get("MONODON_WAREHOUSE") or str(MONODON_HOME / "warehouse")
"""The directory under which the catalog places new tables."""
MONODON_WAREHOUSE_NAME = os.environ.get("MONODON_WAREHOUSE_NAME", "monodon").strip()
"""What Iceberg clients call the whole catalog as a warehouse; empty: it has no name."""
MONODON_ALLOWED_ROOTS = items("MONODON_ALLOWED_ROOTS")
"""Further directories in which a declared or registered table may lie."""

# --- what the catalog does ---------------------------------------------------------------------

MONODON_ANONYMOUS = choice("MONODON_ANONYMOUS", "none", ("none", "read", "admin"))
MONODON_MANIFEST_PATHS = manifest_paths("MONODON_MANIFEST_PATHS")
"""Prefixes of manifest paths outside their table that are recorded, and never read or moved."""
MONODON_MAX_BODY_BYTES = number("MONODON_MAX_BODY_BYTES", 16 * 1024 * 1024)
MONODON_BODY_MEMORY_BYTES = number("MONODON_BODY_MEMORY_BYTES", 256 * 1024**2)
"""The memory for request bodies of one web process."""
MONODON_MAX_DATA_BYTES = number("MONODON_MAX_DATA_BYTES", 16 * 1024**3)
"""The most data that one request may carry as an Arrow stream."""
MONODON_MAX_MERGE_BYTES = number("MONODON_MAX_MERGE_BYTES", 1024**3)
"""The most data in memory that one request may merge into a Lance table. Lance joins it in memory, which takes
about four times as much."""
MONODON_LANCE_SECONDS = number("MONODON_LANCE_SECONDS", 600, least=0)
"""Seconds for which a request waits for Lance to merge rows, or for the next rows of a table; 0: no limit."""
MONODON_LANCE_CACHE_BYTES = number("MONODON_LANCE_CACHE_BYTES", 512 * 1024**2)
"""Size of the cache of each process for open Lance tables, their metadata and their indexes."""
MONODON_WEB_MEMORY_BYTES = number("MONODON_WEB_MEMORY_BYTES", 0, least=0)
"""Memory of a web process above which it ends if it is calling Lance; 0: 3/4 of the machine or container."""
MONODON_PREVIEW_MEMORY_BYTES = number("MONODON_PREVIEW_MEMORY_BYTES", 512 * 1024**2)
"""Memory for decoding the files of an Iceberg table, of each of two previews that a web process computes at a time."""
MONODON_INDEX_IN_REQUEST_ROWS = number("MONODON_INDEX_IN_REQUEST_ROWS", 5_000_000)
"""Maximum number of rows that a request indexes itself; for larger tables it starts a job. Rows of a
BTREE: slower types count each row several times (``index_types``)."""
MONODON_TRASH_SECONDS = number("MONODON_TRASH_SECONDS", 7 * 86_400, least=0)
"""Default retention of dropped objects, in which they can be undropped; 0: none."""
MONODON_PURGE_GRACE_SECONDS = number("MONODON_PURGE_GRACE_SECONDS", 300, least=0)
"""Seconds for which a requested or due purge can still be stopped."""
MONODON_APPROVAL_DAYS = number("MONODON_APPROVAL_DAYS", 7)
"""Days after which a pending approval request expires."""
# Number of months of the audit trail that are kept before the current one; 0: all.
MONODON_AUDIT_KEEP_MONTHS = number("MONODON_AUDIT_KEEP_MONTHS", 0, least=0)
MONODON_WEBHOOK_HOSTS = {host.lower() for host in items("MONODON_WEBHOOK_HOSTS")}
"""Receivers of webhooks that are allowed without a public address and without https."""
MONODON_EVENT_STREAMS = number("MONODON_EVENT_STREAMS", 4, least=0)
"""Maximum number of open event streams of a web process; one principal gets half of them. Each uses a thread."""
MONODON_ADMIN_USER = os.environ.get("MONODON_ADMIN_USER", "admin")
MONODON_ADMIN_PASSWORD = os.environ.get("MONODON_ADMIN_PASSWORD", "")
MONODON_ADMIN_API_KEY = os.environ.get("MONODON_ADMIN_API_KEY", "")

# --- the web server's threads and limits, all of one process ------------------------------------

MONODON_WEB_THREADS = number("MONODON_WEB_THREADS", 4)
"""Number of requests that are processed concurrently."""
MONODON_DATA_THREADS = number("MONODON_DATA_THREADS", 3)
"""Number of streamed Arrow bodies that are read concurrently."""
# While this file exists, the server is draining (api/front/draining.py).
MONODON_DRAIN_FILE = os.environ.get("MONODON_DRAIN_FILE", "")
MONODON_ANSWER_STREAMS = number("MONODON_ANSWER_STREAMS", 8)
"""Maximum number of large answers that are streamed concurrently. Each uses a thread."""
MONODON_BODY_SECONDS = number("MONODON_BODY_SECONDS", 10)
"""Seconds for a request body, independent of its size."""
MONODON_BODY_MIN_RATE = number("MONODON_BODY_MIN_RATE", 16 * 1024)
"""Bytes per second: a body gets another second for each such number of bytes, and so do answers."""
MONODON_ANSWER_SECONDS = number("MONODON_ANSWER_SECONDS", 60)
"""Seconds after which a client that does not read its answer is disconnected."""
MONODON_MAX_CONNECTIONS = number("MONODON_MAX_CONNECTIONS", 4096)
MONODON_CONNECTIONS_PER_ADDRESS = number("MONODON_CONNECTIONS_PER_ADDRESS", 1024, least=0)
"""0: no limit, also for the next two settings."""
MONODON_REQUESTS_PER_ADDRESS = number("MONODON_REQUESTS_PER_ADDRESS", 256, least=0)
MONODON_REQUESTS_PER_PRINCIPAL = number("MONODON_REQUESTS_PER_PRINCIPAL", 256, least=0)

# --- proxies and authentication ----------------------------------------------------------------

MONODON_PROXIES = number("MONODON_PROXIES", 0, least=0)
"""Number of trusted proxies before the server, each of which appends to X-Forwarded-For."""
MONODON_PUBLIC_URL = os.environ.get("MONODON_PUBLIC_URL", "").strip().rstrip("/")
"""The URL of the server for browsers, such as https://catalog.example.com; empty: that of the
request."""

MONODON_OIDC_ISSUERS = [
    web_url("MONODON_OIDC_ISSUERS", issuer) for issuer in items("MONODON_OIDC_ISSUERS")
]
"""OpenID Connect issuers whose tokens authenticate principals."""
MONODON_OIDC_AUDIENCES = items("MONODON_OIDC_AUDIENCES")
"""Accepted audiences: a token must name one of them."""
MONODON_OIDC_ALGORITHMS = items("MONODON_OIDC_ALGORITHMS") or ["RS256", "PS256", "ES256", "EdDSA"]
MONODON_OIDC_NAME_CLAIM = os.environ.get("MONODON_OIDC_NAME_CLAIM") or "preferred_username"
MONODON_OIDC_GROUPS_CLAIM = os.environ.get("MONODON_OIDC_GROUPS_CLAIM") or "groups"
MONODON_OIDC_AUTO_CREATE = flag("MONODON_OIDC_AUTO_CREATE")
"""If true, an unknown subject gets a principal, without grants."""
MONODON_OIDC_KEY_DAYS = number("MONODON_OIDC_KEY_DAYS", 30, least=0)
"""Maximum lifetime in days of a key that is created with an issuer's token; 0: that of the token."""
MONODON_OIDC_CLIENT_ID = os.environ.get("MONODON_OIDC_CLIENT_ID", "")
"""The client of the web admin at the first issuer. If set, the log-in page has a sign-on button."""
MONODON_OIDC_CLIENT_SECRET = os.environ.get("MONODON_OIDC_CLIENT_SECRET", "")
MONODON_OIDC_SCOPES = os.environ.get("MONODON_OIDC_SCOPES") or "openid profile email"
MONODON_OIDC_BUTTON = os.environ.get("MONODON_OIDC_BUTTON") or "Single sign-on"
MONODON_OIDC_SIGN_OUT = flag("MONODON_OIDC_SIGN_OUT", default=True)
"""If true, a log-out after a single sign-on also signs out at the issuer."""
MONODON_OIDC_CLI_CLIENT_ID = os.environ.get("MONODON_OIDC_CLI_CLIENT_ID", "")
"""The public client of the command line at the first issuer. If set, `monodon login` offers single sign-on."""
MONODON_OIDC_CLI_SCOPES = (
    os.environ.get("MONODON_OIDC_CLI_SCOPES") or "openid profile offline_access"
)
MONODON_OIDC_STAFF_GROUPS = items("MONODON_OIDC_STAFF_GROUPS")
"""Members of one of these groups of the issuer may enter the admin."""
MONODON_OIDC_ADMIN_GROUPS = items("MONODON_OIDC_ADMIN_GROUPS")
"""Members of one of these groups have all privileges, in every interface."""

_SIGNATURES = {
    *("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    *("ES256", "ES384", "ES512", "EdDSA"),
}
if not _SIGNATURES.issuperset(MONODON_OIDC_ALGORITHMS):
    # With a shared secret (HS256), anybody who can verify tokens could also create them.
    raise wrong(
        "MONODON_OIDC_ALGORITHMS",
        ",".join(MONODON_OIDC_ALGORITHMS),
        f"some of {', '.join(sorted(_SIGNATURES))}",
    )
if MONODON_PUBLIC_URL:
    web_url("MONODON_PUBLIC_URL", MONODON_PUBLIC_URL)
if MONODON_OIDC_CLIENT_ID and not MONODON_OIDC_ISSUERS:
    raise ImproperlyConfigured("MONODON_OIDC_CLIENT_ID needs MONODON_OIDC_ISSUERS")
if MONODON_OIDC_ISSUERS and not (MONODON_OIDC_AUDIENCES or MONODON_OIDC_CLIENT_ID):
    raise ImproperlyConfigured(
        "MONODON_OIDC_ISSUERS needs MONODON_OIDC_AUDIENCES: a token that is for any service must not"
        " open this one"
    )
if MONODON_OIDC_CLI_CLIENT_ID and not (MONODON_OIDC_ISSUERS and MONODON_OIDC_AUDIENCES):
    # The command line sends access tokens, whose audience is not the client.
    raise ImproperlyConfigured(
        "MONODON_OIDC_CLI_CLIENT_ID needs MONODON_OIDC_ISSUERS and MONODON_OIDC_AUDIENCES"
    )

# --- Django ------------------------------------------------------------------------------------

SECRET_KEY = secret_key(MONODON_HOME)
DEBUG = flag("MONODON_DEBUG")


def _allowed_hosts() -> list[str]:
    """The host names by which users, programs and jobs reach the server."""
    own = [os.environ.get("MONODON_HOST", "").strip(), urlsplit(MONODON_PUBLIC_URL).hostname]
    own.append(urlsplit(os.environ.get("MONODON_URL", "").strip()).hostname)
    hosts = {f"[{host}]" if ":" in host else host for host in own if host}
    hosts -= {"0.0.0.0", "[::]"}  # noqa: S104 -- no names
    return ["localhost", "127.0.0.1", "[::1]", *sorted(hosts), *items("MONODON_ALLOWED_HOSTS")]


ALLOWED_HOSTS = _allowed_hosts()
CSRF_TRUSTED_ORIGINS = items("MONODON_TRUSTED_ORIGINS")
ROOT_URLCONF = "config.urls"
WSGI_APPLICATION = "config.wsgi.application"
APPEND_SLASH = False
USE_TZ = True
TIME_ZONE = "UTC"
LANGUAGE_CODE = "en-us"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
DATA_UPLOAD_MAX_MEMORY_SIZE = MONODON_MAX_BODY_BYTES
SECURE_CONTENT_TYPE_NOSNIFF = True
# A session expires after twelve hours without a request (catalog.admin.access.sessions prolongs it).
SESSION_COOKIE_AGE = 12 * 3600
SESSION_COOKIE_HTTPONLY = CSRF_COOKIE_HTTPONLY = True
# Lax, not Strict: the redirect from the issuer of a single sign-on comes from another site.
SESSION_COOKIE_SAMESITE = CSRF_COOKIE_SAMESITE = "Lax"
SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = flag(
    "MONODON_SECURE_COOKIES", default=MONODON_PUBLIC_URL.startswith("https://")
)
if MONODON_PROXIES:
    SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https")
LOGIN_URL = "admin:login"
LOGIN_REDIRECT_URL = "admin:index"

INSTALLED_APPS = [
    "unfold",
    "unfold.contrib.filters",
    "config.apps.AdminConfig",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "django.contrib.postgres",
    "django_celery_beat",
    "axes",
    "rest_framework",
    "drf_spectacular",
    "drf_spectacular_sidecar",
    "catalog",
    "api",
    "tasks",
]

MIDDLEWARE = ["api.middleware.RequestMiddleware", "api.middleware.AdminMiddleware"]
# Middleware of the web admin, which API paths skip, and which Django's checks do not see.
ADMIN_MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "api.content_security.ContentSecurityPolicyMiddleware",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "api.pages.help.HelpMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "catalog.admin.access.sessions.SlidingSessionMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "axes.middleware.AxesMiddleware",
    "catalog.admin.site.plans.PlansMiddleware",
]
SILENCED_SYSTEM_CHECKS = ["admin.E408", "admin.E409", "admin.E410", "axes.W002"]

AUTHENTICATION_BACKENDS = [
    "axes.backends.AxesStandaloneBackend",
    "django.contrib.auth.backends.ModelBackend",
]
# By user and address together: nobody can lock out a user at another address.
AXES_LOCKOUT_PARAMETERS = [["username", "ip_address"]]
AXES_FAILURE_LIMIT = 5
AXES_COOLOFF_TIME = timedelta(minutes=15)
AXES_RESET_ON_SUCCESS = True
AXES_RESET_COOL_OFF_ON_FAILURE_DURING_LOCKOUT = False
AXES_LOCKOUT_CALLABLE = "catalog.admin.access.sign_on.locked_out"
AXES_IPWARE_META_PRECEDENCE_ORDER = ["REMOTE_ADDR"]
AXES_DISABLE_ACCESS_LOG = True  # the audit trail has it
AXES_ENABLE_ADMIN = False
AXES_VERBOSE = False
CSRF_FAILURE_VIEW = "catalog.admin.site.errors.csrf_failure"

TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [BASE_DIR / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ],
            "builtins": ["catalog.admin.site.glossary"],  # the tag of the "?" beside headings
        },
    }
]

STATIC_URL = "/static/"
STATIC_ROOT = MONODON_HOME / "static"
HELP_ROOT = BASE_DIR / "site"
"""The built documentation (api.pages.help), which may be missing."""
STORAGES = {
    "default": {"BACKEND": "django.core.files.storage.FileSystemStorage"},
    "staticfiles": {"BACKEND": "whitenoise.storage.CompressedManifestStaticFilesStorage"},
}

AUTH_PASSWORD_VALIDATORS = [
    {"NAME": f"django.contrib.auth.password_validation.{name}"}
    for name in (
        "UserAttributeSimilarityValidator",
        "MinimumLengthValidator",
        "CommonPasswordValidator",
        "NumericPasswordValidator",
    )
]

# --- database ----------------------------------------------------------------------------------

DATABASES = {"default": database(database_url(MONODON_HOME))}
MONODON_CONNECT_SECONDS = number("MONODON_CONNECT_SECONDS", 4, least=0)
"""Seconds for which a request retries a database that starts or recovers, before it is refused."""
MONODON_LOCK_SECONDS = number("MONODON_LOCK_SECONDS", 3)
"""Seconds for which a request waits for a lock; jobs and commands wait 30 s."""
MONODON_STATEMENT_SECONDS = number("MONODON_STATEMENT_SECONDS", 30)
"""Seconds for a statement of a request; statements of jobs and commands have no limit."""

# --- Celery ------------------------------------------------------------------------------------

REDIS_URL = redis_url(MONODON_HOME)
CELERY_BROKER_URL = (
    "redis+socket://" + REDIS_URL.removeprefix("unix://")
    if REDIS_URL.startswith("unix://")
    else REDIS_URL
)
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
# A web request that starts a job must not wait for an unreachable broker: the job is a row, and
# beat sends it again.
CELERY_BROKER_TRANSPORT_OPTIONS = {
    "socket_connect_timeout": 2,
    "socket_timeout": 5,
    "max_retries": 0,  # without it, kombu tries for six seconds to connect for a message
}
# Installations that share a broker must not take each other's jobs, which are in another database.
CELERY_TASK_DEFAULT_QUEUE = os.environ.get("MONODON_QUEUE") or "monodon"
# Jobs may take hours. In a queue of their own, with workers of their own, they do not keep short
# tasks waiting. A worker without --queues takes from both.
_JOB_QUEUE = f"{CELERY_TASK_DEFAULT_QUEUE}.jobs"
CELERY_TASK_QUEUES: dict[str, dict[str, str]] = {CELERY_TASK_DEFAULT_QUEUE: {}, _JOB_QUEUE: {}}
CELERY_TASK_ROUTES = {"tasks.maintenance.run_job": {"queue": _JOB_QUEUE}}
CELERY_TASK_PUBLISH_RETRY = False
CELERY_TASK_IGNORE_RESULT = True
CELERY_TASK_ACKS_LATE = True
CELERY_TASK_REJECT_ON_WORKER_LOST = True
CELERY_WORKER_PREFETCH_MULTIPLIER = 1
CELERY_WORKER_HIJACK_ROOT_LOGGER = False
CELERY_TIMEZONE = TIME_ZONE
CELERY_BEAT_SCHEDULE = schedule.SCHEDULE

# --- Spark -------------------------------------------------------------------------------------

MONODON_URL = own_url()
SPARK_MASTER = os.environ.get("SPARK_MASTER", "").strip() or "local[2,4]"
"""The Spark master. The second number of a local master is the number of attempts of a task."""
MONODON_SPARK_PACKAGES = items("MONODON_SPARK_PACKAGES")
"""The Iceberg runtime and other packages as Maven coordinates."""
MONODON_SPARK_JARS = items("MONODON_SPARK_JARS")
"""The same packages as files."""
MONODON_SPARK_CONF = spark_conf(os.environ.get("MONODON_SPARK_CONF", ""))
MONODON_MAVEN_URL = maven_url(os.environ.get("MONODON_MAVEN_URL", ""))
"""The repository from which a worker fetches Iceberg's libraries, unless they are given; empty: none."""
MONODON_SPARK_CORES = number("MONODON_SPARK_CORES", 2)
"""Cores that a driver uses of a cluster; those of a local master are in SPARK_MASTER."""
MONODON_SPARK_MEMORY = os.environ.get("MONODON_SPARK_MEMORY", "").strip()
"""Memory of the driver and of each executor, such as 4g; empty: Spark's default."""
MONODON_SPARK_MASTERS = spark_masters(os.environ.get("MONODON_SPARK_MASTERS", ""))
"""Clusters that engine profiles may name, besides SPARK_MASTER."""
MONODON_SPARK_PROFILE_CONF = spark_names(os.environ.get("MONODON_SPARK_PROFILE_CONF", ""))
"""Settings of Spark that engine profiles may have, besides those that are always allowed."""
MONODON_SPARK_JOBS = number("MONODON_SPARK_JOBS", 200)
"""Jobs that a driver runs before it is replaced. With 1, each job has a driver of its own."""
MONODON_SPARK_IDLE_SECONDS = number("MONODON_SPARK_IDLE_SECONDS", 300)
"""Seconds without a job after which a driver ends."""

# --- REST framework and the OpenAPI documents --------------------------------------------------

REST_FRAMEWORK = {
    "DEFAULT_AUTHENTICATION_CLASSES": [],
    "DEFAULT_PERMISSION_CLASSES": [],
    "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.JSONRenderer"],
    "DEFAULT_PARSER_CLASSES": ["rest_framework.parsers.JSONParser"],
    "DEFAULT_SCHEMA_CLASS": "api.management.schema.ManagementSchema",
    "UNAUTHENTICATED_USER": None,
}
SPECTACULAR_SETTINGS = {
    "TITLE": "Monodon",
    "DESCRIPTION": "One catalog for Lance and Iceberg tables.",
    "VERSION": "0.1.0",  # of the product: monodon.__version__
    "OAS_VERSION": "3.1.1",
    "SERVE_INCLUDE_SCHEMA": False,
    "SWAGGER_UI_DIST": "SIDECAR",
    "SWAGGER_UI_FAVICON_HREF": "SIDECAR",
    "COMPONENT_SPLIT_REQUEST": False,
    "ENUM_ADD_EXPLICIT_BLANK_NULL_CHOICE": False,
}

# --- logs --------------------------------------------------------------------------------------

LOG_REQUESTS = choice("MONODON_LOG_REQUESTS", "failed", ("failed", "all"))
_LOG_LEVEL = choice("MONODON_LOG_LEVEL", "info", ("debug", "info", "warning", "error")).upper()
LOGGING_CONFIG = "config.logging.configure"
LOGGING = {"format": choice("MONODON_LOG_FORMAT", "text", ("text", "json")), "level": _LOG_LEVEL}

# --- the web admin -----------------------------------------------------------------------------

UNFOLD = admin_site.UNFOLD
