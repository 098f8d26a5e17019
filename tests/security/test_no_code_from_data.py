"""Data from outside is never executed: no pickle, no eval, no YAML objects, no shell."""

import re
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[2]
OURS = ("catalog", "api", "tasks", "server", "config")
FORBIDDEN = {
    "pickle": r"^\s*(?:import|from)\s+(?:_?pickle|cPickle|cloudpickle|dill|shelve|marshal|joblib)\b",
    "unpickle": r"\bpickle\.(?:loads?|Unpickler)\b",
    "eval": r"(?<![\w.])(?:eval|exec|__import__)\(",
    "yaml": r"\byaml\.(?:load|load_all|unsafe_load|full_load|UnsafeLoader|Loader)\b",
    "shell": r"shell\s*=\s*True|\bos\.(?:system|popen)\(",
    "pickled serializers": r"""["'](?:pickle|yaml)["'].*accept_content|PickleSerializer""",
    "certificates": r"verify\s*=\s*False|CERT_NONE|_create_unverified_context",
    "mark_safe": r"\bmark_safe\(",
}
ALLOWED = {
    ("mark_safe", "catalog/admin/cells.py"),
    # The web process sends its own objects to the process that decodes files. It accepts
    # only JSON from there, since a data file may have taken over that process.
    ("pickle", "catalog/row_reader/client.py"),
    ("pickle", "catalog/row_reader/worker.py"),
    ("unpickle", "catalog/row_reader/worker.py"),
}
"""(kind, file) pairs that were reviewed and are safe."""


def files_matching(pattern: str) -> set[str]:
    return {
        str(path.relative_to(PROJECT))
        for directory in OURS
        for path in sorted((PROJECT / directory).rglob("*.py"))
        if re.search(pattern, path.read_text(encoding="utf-8"), re.MULTILINE)
    }


@pytest.mark.parametrize("kind", FORBIDDEN)
def test_own_code_does_not_execute_data(kind: str) -> None:
    assert (
        files_matching(FORBIDDEN[kind]) - {file for allowed, file in ALLOWED if allowed == kind}
        == set()
    )


@pytest.mark.parametrize(
    ("kind", "line"),
    [
        ("pickle", "import pickle"),
        ("pickle", "    from dill import loads"),
        ("unpickle", "job = pickle.loads(data)"),
        ("eval", "x = eval(text)"),
        ("yaml", "yaml.load(text)"),
        ("shell", "run(text, shell=True)"),
        ("certificates", "get(url, verify=False)"),
    ],
)
def test_the_patterns_match_forbidden_code(kind: str, line: str) -> None:
    assert re.search(FORBIDDEN[kind], line, re.MULTILINE)


def test_messages_between_processes_are_json(settings) -> None:
    from tasks import celery_app as app

    assert set(app.conf.accept_content) == {"json"}
    assert (app.conf.task_serializer, app.conf.result_serializer) == ("json", "json")
    assert settings.SESSION_SERIALIZER == "django.contrib.sessions.serializers.JSONSerializer"
