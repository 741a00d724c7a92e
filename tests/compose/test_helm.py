"""Static checks of the Helm chart and of the manifest that it renders; with helm installed, it is rendered."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from tests.compose.test_images import API_PORT, SETTINGS, pins, ray_ports

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "docker/helm/dasl"
VALUES_TEXT = (CHART / "values.yaml").read_text(encoding="utf-8")
VALUES = yaml.safe_load(VALUES_TEXT)
SCHEMA = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
TEMPLATES = {
    path.name: path.read_text(encoding="utf-8") for path in (CHART / "templates").iterdir()
}
MANIFEST = (ROOT / "docker/kubernetes/dasl.yaml").read_text(encoding="utf-8")
OBJECTS = {
    (each["kind"], each["metadata"]["name"]): each for each in yaml.safe_load_all(MANIFEST) if each
}
RAY = OBJECTS["RayCluster", "dasl-ray"]["spec"]


def pods() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the name and the spec of every pod."""
    for (kind, name), each in OBJECTS.items():
        if kind in ("Deployment", "Job"):
            yield name, each["spec"]["template"]["spec"]
    yield "head", RAY["headGroupSpec"]["template"]["spec"]
    for group in RAY["workerGroupSpecs"]:
        yield group["groupName"], group["template"]["spec"]


def paths(values: Any, prefix: str = "") -> Iterator[str]:
    for key, value in values.items():
        yield f"{prefix}{key}"
        if isinstance(value, dict):
            yield from paths(value, f"{prefix}{key}.")


def test_no_pod_gets_a_token_of_kubernetes() -> None:
    assert [name for name, pod in pods() if pod["automountServiceAccountToken"] is not False] == []


def test_every_value_is_explained_by_a_comment() -> None:
    lines = [line for line in VALUES_TEXT.splitlines() if line.strip()]
    second_group = next(i for i, line in enumerate(lines) if line.startswith("  - name:"))
    unexplained = []
    for index, line in enumerate(lines):
        in_second_group = second_group <= index < second_group + 9
        key = re.match(r"( *)(\w+): *\S", line)
        if key is None or in_second_group or "limits:" in line:
            continue
        above = lines[index - 1].strip()
        # Consecutive keys may share a comment, which names them in the plural.
        shared = re.match(r"\w+: *\S", above) and key[2] in ("minReplicas", "maxReplicas")
        shared = shared or key[2] == "requests"
        if not (above.startswith(("#", "- #")) or shared):
            unexplained.append(line)
    assert not unexplained


def test_schema_accepts_defaults_and_refuses_unknown_and_empty_values() -> None:
    jsonschema.Draft7Validator.check_schema(SCHEMA)
    jsonschema.validate(VALUES, SCHEMA)
    changes: tuple[dict[str, object], ...] = (
        {"unknown": 1},
        {"api": {**VALUES["api"], "replicas": -1}},
        {"database": {"secretName": "", "secretKey": "url"}},
        {"settings": {"LD_PRELOAD": "x"}},
        # Helm would write it as 1e+06.
        {"settings": {"DASL_LOG_MAX_BYTES": 1_000_000}},
        {"cache": {"size": "100Gi", "maxBytes": 60}},
        {"workerGroups": []},
    )
    for change in changes:
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(VALUES | change, SCHEMA)


def test_schema_accepts_every_setting() -> None:
    settings = {name: "x" for name in SETTINGS if name.startswith("DASL_")}
    assert "DASL_S3_PUBLIC_ENDPOINT" in settings
    jsonschema.validate(VALUES | {"settings": settings}, SCHEMA)


def test_cache_leaves_room_for_scratch_files_in_its_volume() -> None:
    volume = int(VALUES["cache"]["size"].removesuffix("Gi")) << 30
    for name, pod in pods():
        environment = {each["name"]: each.get("value") for each in pod["containers"][0]["env"]}
        if "DASL_CACHE_DIR" in environment:
            size = int(str(environment["DASL_CACHE_MAX_BYTES"]))
            assert size == int(VALUES["cache"]["maxBytes"]) <= 0.7 * volume, name


def test_templates_use_every_value_and_no_other() -> None:
    text = "".join(TEMPLATES.values())
    used = set(re.findall(r"\.Values\.([A-Za-z.]+)", text))
    known = set(paths(VALUES))
    assert used <= known
    leaves = {path for path in known if not any(other.startswith(f"{path}.") for other in known)}
    inside = {path for path in leaves if any(path.startswith(f"{each}.") for each in used)}
    assert leaves - used - inside == set()
    for key in VALUES["workerGroups"][0]:
        assert re.search(rf"\.{key}\b", text), key


def test_manifest_is_what_helm_renders() -> None:
    helm = shutil.which("helm")
    if helm is None:
        pytest.skip("helm is not installed here; the other tests check the stored manifest")
    done = subprocess.run(
        [helm, "template", "dasl", CHART], capture_output=True, text=True, check=True
    )
    assert MANIFEST.split("\n", 2)[2] == done.stdout, "run helm template, see the file's first line"


@pytest.mark.parametrize("name", [name for name, _ in pods()])
def test_pods_have_minimal_privileges_and_resources(name: str) -> None:
    pod = dict(pods())[name]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["runAsUser"] == 10001
    for container in pod["containers"]:
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
        }
        assert {"requests", "limits"} <= container["resources"].keys()
        assert "memory" in container["resources"]["limits"]
        assert "/tmp" in [mount["mountPath"] for mount in container["volumeMounts"]]
        mounted = {mount["name"] for mount in container["volumeMounts"]}
        assert mounted == {volume["name"] for volume in pod["volumes"]}
        if name != "dasl-migrate":
            assert "livenessProbe" in container
        secrets = [v for v in container["env"] if re.search("TOKEN|DATABASE_URL", v["name"])]
        assert all("secretKeyRef" in variable["valueFrom"] for variable in secrets)


def test_ray_token_is_only_in_its_nodes_and_the_dispatcher() -> None:
    holders = {
        name
        for name, pod in pods()
        for variable in pod["containers"][0]["env"]
        if variable["name"] == "RAY_AUTH_TOKEN"
    }
    assert holders == {"head", "cpu", "gpu", "dasl-dispatcher"}


def test_jobs_get_no_cpus_of_the_head_and_groups_may_be_empty() -> None:
    start = RAY["headGroupSpec"]["rayStartParams"]
    assert (start["num-cpus"], start["num-gpus"]) == ("0", "0")
    assert all(group["minReplicas"] == 0 for group in RAY["workerGroupSpecs"])
    assert RAY["enableInTreeAutoscaling"] is False


def test_client_secret_of_the_login_is_a_secret_of_the_api_only() -> None:
    holders = {
        path.name
        for path in (CHART / "templates").iterdir()
        if "DASL_OIDC_CLIENT_SECRET" in path.read_text(encoding="utf-8")
    }
    assert holders == {"api.yaml"}
    template = (CHART / "templates" / "api.yaml").read_text(encoding="utf-8")
    assert re.search(r"DASL_OIDC_CLIENT_SECRET\s+valueFrom: {secretKeyRef: ", template)


def test_autoscaler_is_shown_the_demand_of_jobs() -> None:
    """It adds no node for a queued job otherwise."""
    template = (CHART / "templates" / "dispatcher.yaml").read_text(encoding="utf-8")
    condition = (
        r"{{- if \.Values\.autoscaler\.enabled }}\s*- {name: DASL_AUTOSCALE, value: \"true\"}"
    )
    assert re.search(condition, template)


def test_dispatcher_is_one_and_its_replacement_stops_nothing() -> None:
    about = OBJECTS["Deployment", "dasl-dispatcher"]["spec"]
    assert (about["replicas"], about["strategy"]) == (1, {"type": "Recreate"})
    pod = about["template"]["spec"]
    command, probe = pod["containers"][0]["command"], pod["containers"][0]["livenessProbe"]
    alive = command[command.index("--alive-file") + 1]
    assert f"file://{alive}" in probe["exec"]["command"]
    assert "--save-on-stop" not in command


def test_migration_runs_before_the_rest() -> None:
    hooks = OBJECTS["Job", "dasl-migrate"]["metadata"]["annotations"]["helm.sh/hook"]
    assert hooks == "pre-install,pre-upgrade"


def test_network_policies_keep_others_from_ray() -> None:
    ray = OBJECTS["NetworkPolicy", "dasl-ray"]["spec"]
    assert ray["podSelector"] == {"matchLabels": {"ray.io/cluster": "dasl-ray"}}
    sources = [
        each["podSelector"]["matchLabels"] for rule in ray["ingress"] for each in rule["from"]
    ]
    assert [
        labels.get("app.kubernetes.io/component") or labels.get("app.kubernetes.io/name") or "nodes"
        for labels in sources
    ] == ["nodes", "dispatcher", "kuberay-operator"]
    assert "ingress" not in OBJECTS["NetworkPolicy", "dasl-dispatcher"]["spec"]


def test_chart_names_ports_and_options_that_exist() -> None:
    head, http = ray_ports("--head"), {"path": "/livez", "port": "http"}
    known = {"dasl-api": {API_PORT}, "dasl-ray-head-svc": head, "head": head}
    assert pins("worker")["ray"] == {RAY["rayVersion"]}
    for group in (RAY["headGroupSpec"], *RAY["workerGroupSpecs"]):
        ray_ports(*(f"--{k}={v}".removesuffix("=true") for k, v in group["rayStartParams"].items()))
    for name, pod in pods():
        [container] = pod["containers"]
        ports = {each["name"]: each["containerPort"] for each in container.get("ports", ())}
        assert set(ports.values()) <= known.get(name, set())
        probes = [container[key] for key in container if key.endswith("Probe")]
        assert all(each.get("httpGet", http) == http for each in probes)
        for variable in container["env"]:
            for host, port in re.findall(r"^http://(.+):(\d+)$", variable.get("value", "")):
                assert int(port) in known[host], variable
    [service] = OBJECTS["Service", "dasl-api"]["spec"]["ports"]
    assert (service["port"], service["targetPort"]) == (API_PORT, "http")
    for policy, allowed in (("dasl-ray", head), ("dasl-api", {"http"})):
        rules = OBJECTS["NetworkPolicy", policy]["spec"]["ingress"]
        assert {port["port"] for rule in rules for port in rule.get("ports", ())} <= allowed
