"""The Helm chart: it renders with several values, and Kubernetes' schemas accept every object."""

import re
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from monodon import __version__
from tests.engines import helm, toolkit

pytestmark = [pytest.mark.engines, pytest.mark.timeout(3600)]

PROJECT = Path(__file__).resolve().parents[3]
CHART = PROJECT / "deploy" / "helm" / "monodon"
TEMPLATE = ["template", "monodon", str(CHART), "--kube-version", "1.29.0"]
SECRETS = {"DATABASE_URL", "REDIS_URL", "MONODON_SECRET_KEY"}
OBJECTS = ["--set", "warehouse.objectStoresOnly=true"]
EVERYTHING = [
    *("--set", "web.autoscaling.enabled=true", "--set", "ingress.enabled=true"),
    *("--set", "ingress.className=nginx", "--set", "ingress.tlsSecret=tls"),
    *("--set", "spark.standalone.enabled=true", "--set", "serviceMonitor.enabled=true"),
    *("--set", "publicUrl=https://catalog.example.com", "--set", "proxies=1"),
    *("--set", "imagePullSecrets[0].name=registry", "--set", "web.nodeSelector.disk=fast"),
    *("--set", "settings.MONODON_LOG_LEVEL=debug", "--set", "podAnnotations.team=data"),
]


@pytest.fixture(scope="module", autouse=True)
def prepared() -> None:
    toolkit.require(helm.prepare)


def render(*values: str) -> list[dict[str, Any]]:
    completed = helm.run(*TEMPLATE, "--set", "secret=monodon-secrets", *values)
    assert completed.returncode == 0, completed.stderr
    return [document for document in yaml.safe_load_all(completed.stdout) if document]


def refusal(*values: str) -> str:
    completed = helm.run(*TEMPLATE, *values)
    assert completed.returncode != 0
    return completed.stderr


def by_name(objects: list[dict[str, Any]]) -> dict[tuple[str, str], dict[str, Any]]:
    return {(manifest["kind"], manifest["metadata"]["name"]): manifest for manifest in objects}


def pods(objects: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {
        manifest["metadata"]["name"]: manifest["spec"]["template"]["spec"]
        for manifest in objects
        if manifest["kind"] in {"Deployment", "Job"}
    }


def test_lint() -> None:
    completed = helm.run("lint", "--strict", str(CHART), "--set", "secret=monodon-secrets")
    assert completed.returncode == 0, completed.stdout + completed.stderr


@pytest.mark.parametrize("values", [[], OBJECTS, EVERYTHING, [*EVERYTHING, *OBJECTS]])
def test_the_schemas_of_kubernetes_accept_every_object(values: list[str], monkeypatch: Any) -> None:
    monkeypatch.setattr(sys, "path", [str(helm.schemas()), *sys.path])
    import kubernetes_validate

    objects = render(*values)
    for manifest in objects:
        if (
            manifest["kind"] != "ServiceMonitor"
        ):  # of the Prometheus Operator, which has its own schema
            kubernetes_validate.validate(manifest, "1.37", strict=True)
    assert len({(manifest["kind"], manifest["metadata"]["name"]) for manifest in objects}) == len(
        objects
    )


def test_the_default_objects() -> None:
    assert sorted(by_name(render())) == [
        ("ConfigMap", "monodon"),
        *(("Deployment", f"monodon-{name}") for name in ("beat", "jobs", "tasks", "web")),
        ("Job", "monodon-bootstrap-1"),
        ("PersistentVolumeClaim", "monodon-warehouse"),
        *(("PodDisruptionBudget", f"monodon-{name}") for name in ("jobs", "web")),
        ("Service", "monodon"),
        ("ServiceAccount", "monodon"),
    ]


def test_selectors_match_the_pods() -> None:
    objects = render(*EVERYTHING)
    labels = [
        manifest["spec"]["template"]["metadata"]["labels"]
        for manifest in objects
        if manifest["kind"] in {"Deployment", "Job"}
    ]
    for manifest in objects:
        selector = manifest["spec"].get("selector") if "spec" in manifest else None
        if manifest["kind"] in {"Deployment", "PodDisruptionBudget", "Service"}:
            pairs = selector.get("matchLabels", selector).items()
            assert sum(pairs <= pod.items() for pod in labels) == 1, manifest["metadata"]["name"]


def test_pods_have_few_rights() -> None:
    for name, pod in pods(render(*EVERYTHING)).items():
        assert pod["securityContext"]["runAsNonRoot"] is True, name
        assert pod["automountServiceAccountToken"] is False, name
        for container in [*pod["containers"], *pod.get("initContainers", [])]:
            security = container["securityContext"]
            assert security == {
                "allowPrivilegeEscalation": False,
                "capabilities": {"drop": ["ALL"]},
            }
            assert container["resources"]["requests"]
            assert container["resources"]["limits"]


def test_secrets_reach_only_the_server() -> None:
    for name, pod in pods(render(*EVERYTHING)).items():
        (container,) = pod["containers"]
        sources = [
            source.get("secretRef", {}).get("name") for source in container.get("envFrom", [])
        ]
        assert ("monodon-secrets" in sources) is ("spark" not in name), name
        fixed = {variable["name"]: variable.get("value") for variable in container.get("env", [])}
        is_blank = fixed.get("MONODON_ADMIN_PASSWORD") == fixed.get("MONODON_ADMIN_API_KEY") == ""
        assert is_blank is (name != "monodon-bootstrap-1" and "spark" not in name), name


def test_values_that_are_refused() -> None:
    assert "Set `secret` to the name of a Secret" in refusal()
    for name in SECRETS:
        text = refusal("--set", "secret=s", "--set", f"settings.{name}=x")
        assert f"settings.{name}: put it into the Secret `s`" in text
    text = refusal(
        *("--set", "secret=s", "--set", "spark.master=spark://x"),
        *("--set", "spark.standalone.enabled=true"),
    )
    assert "exclude each other" in text


def test_the_local_warehouse_is_read_only_without_a_volume() -> None:
    for pod in pods(render(*OBJECTS)).values():
        (mount,) = (m for m in pod["containers"][0]["volumeMounts"] if m["name"] == "warehouse")
        assert mount["readOnly"] is True
    assert ("PersistentVolumeClaim", "monodon-warehouse") not in by_name(render(*OBJECTS))


def test_settings_are_documented_and_versions_agree() -> None:
    settings = by_name(render(*EVERYTHING))["ConfigMap", "monodon"]["data"]
    text = (PROJECT / "docs" / "operations.md").read_text()
    for name in settings:
        assert f"`{name}`" in text, name
    assert settings["MONODON_QUEUE"] == "monodon"
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["version"] == chart["appVersion"] == __version__


def test_commands_are_those_of_the_compose_file() -> None:
    """A change of the web server's or the workers' options must be made in both."""
    services = yaml.safe_load((PROJECT / "docker-compose.yml").read_text())["services"]
    rendered = pods(render())
    pairs = {"web": "web", "beat": "beat", "worker": "jobs", "tasks": "tasks"}
    for service, component in pairs.items():
        expected = services[service]["command"]
        command = rendered[f"monodon-{component}"]["containers"][0]["command"]
        assert _program(command) == _program(expected)


def _program(command: list[str]) -> list[str]:
    """The program of a container with its options, without what a shell does before it.

    The number of processes, which the chart always sets, is omitted.
    """
    if command[:2] != ["sh", "-c"]:
        return command
    text = command[2].rpartition("exec ")[2].replace("$$", "$")
    text = re.sub(r"\$\{MONODON_WORKER_CONCURRENCY:[^}]*\}|--concurrency \d+", "", text)
    return text.split()
