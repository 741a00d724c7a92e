"""Static checks of docker-compose.yml and the images; `run.py` starts them for real."""

import inspect
import re
from collections.abc import Iterator, Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import yaml

from service.settings import Settings
from tests.test_docs import check_command
from tools.structure import PACKAGES

ROOT = Path(__file__).resolve().parents[2]
COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
DOCKERFILE = (ROOT / "docker/Dockerfile").read_text(encoding="utf-8")
FILES = [
    ROOT / "docker-compose.yml",
    ROOT / ".dockerignore",
    *(path for path in (ROOT / "docker").iterdir() if path.is_file()),
    *(ROOT / "requirements").glob("*.lock"),
]
# Fixed in the containers: home folder, port, and mount points, which are equal in all containers; or of no use, where
# Ray does not run on demand.
FIXED = {"DASL_HOME", "DASL_PORT", "DASL_CHECK_PATHS", "DASL_RAY_IDLE_MINUTES"}
FIELDS = Settings.model_fields
SETTINGS = {str(of.validation_alias or f"DASL_{name.upper()}") for name, of in FIELDS.items()}
API_PORT = FIELDS["port"].default
RAY_NODE = (ROOT / "docker/ray-node.sh").read_text(encoding="utf-8")
# What images, containers and probes run.
COMMANDS = {
    tuple(word for word in yaml.safe_load(found) if word != "CMD")
    for path in (*FILES, *(ROOT / "docker").glob("*/**/*.[yt]*l"))
    for found in re.findall(r"(?:command: |test: |CMD |POINT )(\[.+?\])", path.read_text("utf-8"))
} | {tuple(line.split()) for line in re.findall("^python .*(?= &$)", RAY_NODE, flags=re.M)}


def pins(lock: str) -> dict[str, set[str]]:
    """Return the versions of each package in a lock file; platforms may differ."""
    versions: dict[str, set[str]] = {}
    text = (ROOT / "requirements" / f"{lock}.lock").read_text(encoding="utf-8")
    for name, version in re.findall(r"^([a-z0-9._-]+)==([^ ;\\]+)", text, flags=re.M):
        versions.setdefault(name, set()).add(version)
    return versions


def environments() -> Iterator[tuple[str, str, Any]]:
    """Yield service, name and value of every environment variable."""
    for service, about in SERVICES.items():
        for name, value in about.get("environment", {}).items():
            yield service, name, value


def ray_ports(*arguments: str) -> set[int]:
    """Return the ports of a node after `ray start` with these arguments, which must exist."""
    from ray._private.ray_constants import DEFAULT_PORT
    from ray.scripts.scripts import start

    node = start.make_context("ray start", list(arguments)).params
    of_head = (int(node["port"] or DEFAULT_PORT), node["dashboard_port"]) if node["head"] else ()
    return {node["dashboard_agent_listen_port"], *of_head}


def check_process(command: Sequence[str]) -> None:
    """Check that a program exists in the images, with its options."""
    program, *rest = command[1:] if command[0] == "python" else command
    if program.startswith("--"):  # after those of docker/ray-node.sh
        own = re.findall(r"--[\w-]+(?:=\w+)?", re.sub(r'"\$\w+"', "1", RAY_NODE))
        ray_ports(*own, *command)
    elif program == "dasl":
        check_command(rest, "docker")
    elif program == "-m":
        package = hasattr(import_module(rest[0]), "__path__")
        main = import_module(f"{rest[0]}.__main__" if package else rest[0])
        assert 'if __name__ == "__main__":' in inspect.getsource(main)
        # A parser exits at an unknown option; with known ones, the wrong setting ends the program.
        with patch("sys.argv", rest), patch.dict("os.environ", DASL_PORT="wrong"):
            assert not rest[1:] or (hasattr(main, "argparse") and main.main() == 1)
    elif program != "pg_isready":
        folder, _, name = program.rpartition("/")
        copies = re.findall(rf"^COPY .*\bdocker/{name}\b.* {folder}/$", DOCKERFILE, flags=re.M)
        assert len(copies) == (2 if name == "health.py" else 1), "the images that need it"
        served = {f"{API_PORT}/livez", *(f"{port}/api/healthz" for port in ray_ports())}
        known = {"file:///tmp/alive", *(f"http://127.0.0.1:{each}" for each in served)}
        assert set(rest[:1]) <= known


@pytest.mark.parametrize("command", sorted(COMMANDS), ids=" ".join)
def test_programs_of_images_containers_and_probes_exist(command: tuple[str, ...]) -> None:
    check_process(command)


@cache
def is_read(name: str) -> bool:
    """Return whether the service, the workers, Ray or obstore read an environment variable."""
    if module := {"AWS": "obstore._obstore", "RAY": "ray._raylet"}.get(name[:3]):
        written = name.lower() if name[:3] == "AWS" else name.removeprefix("RAY_") + "\0"
        return written.encode() in Path(str(import_module(module).__file__)).read_bytes()
    files = [path for of in ("workers", "dasl_core") for path in (ROOT / of).rglob("*.py")]
    code = RAY_NODE + "".join(path.read_text("utf-8") for path in files)
    return name in SETTINGS or re.search(rf'["$]{name}"', code) is not None


def test_every_command_of_own_images_is_checked() -> None:
    commands = [about.get("command") for about in SERVICES.values() if "dasl-" in about["image"]]
    lines = re.findall(r"^ *(?:CMD|ENTRYPOINT) (.*)", DOCKERFILE, flags=re.M)
    written = [*filter(None, commands), *map(yaml.safe_load, lines)]
    assert {tuple(word for word in each if word != "CMD") for each in written} <= COMMANDS
    assert set(re.findall(r"^COPY (\w+) \1$", DOCKERFILE, flags=re.M)) == set(PACKAGES)


def test_variables_in_docker_and_compose_are_read() -> None:
    compose = (ROOT / "docker-compose.yml").read_text(encoding="utf-8")
    for path in {*FILES, *(path for path in (ROOT / "docker").rglob("*.*") if path.is_file())}:
        of_compose = compose if path.name in ("docker-compose.yml", "make_env.py") else ""
        for name in set(re.findall(r"\b(?:DASL|RAY|AWS)_\w+", path.read_text(encoding="utf-8"))):
            assert is_read(name) or f"${{{name}:" in of_compose, f"{path.name}: {name}"


def test_compose_names_files_and_addresses_that_exist() -> None:
    files = [ROOT / "docker-compose.yml", ROOT / "docker/make_env.py"]
    files += (ROOT / "docker/monitoring").glob("*.yml")
    text = "".join(path.read_text(encoding="utf-8") for path in files)
    assert all((ROOT / mount).is_file() for mount in re.findall(r"\./docker\S+?(?=:)", text))
    for named in re.findall(r"/(?:etc|var/lib)/\w+/[\w./-]+", text):
        assert re.search(rf"(?::|target: ){named}\b", text), f"{named} is not mounted"
    ports = {"api": {API_PORT}, "ray-head": ray_ports(*SERVICES["ray-head"]["command"])}
    ports |= {"s3": {8333}, "prometheus": {9090}}
    for host, port in re.findall(rf"\b({'|'.join(SERVICES)}):(\d{{2,5}})(?![.\d])", text):
        assert int(port) in ports[host], f"{host}:{port}"


def test_compose_publishes_only_the_api_on_loopback() -> None:
    published = {name: about["ports"] for name, about in SERVICES.items() if "ports" in about}
    assert published == {
        "api": ["127.0.0.1:${DASL_PORT:-8000}:8000"],
        "grafana": ["127.0.0.1:${DASL_GRAFANA_PORT:-3000}:3000"],
    }
    assert all("network_mode" not in about for about in SERVICES.values())
    assert COMPOSE["networks"]["private"] == {"internal": True}
    beyond = {name for name, about in SERVICES.items() if about["networks"] != ["private"]}
    assert beyond == {"api", "grafana"}


@pytest.mark.parametrize("name", SERVICES)
def test_compose_services_have_minimal_privileges(name: str) -> None:
    about = SERVICES[name]
    assert about["cap_drop"] == ["ALL"]
    assert about["security_opt"] == ["no-new-privileges:true"]
    assert not about.get("privileged")
    assert about["image"].startswith("dasl-") or about["user"] in (
        "postgres",
        "nobody",
        "472",
        "10001:10001",
    )
    assert about["restart"] == ("no" if name == "migrate" else "unless-stopped")


def test_dockerfile_images_run_as_non_root_user() -> None:
    stages = re.split(r"^FROM ", DOCKERFILE, flags=re.M)[1:]
    finals = {stage.split(" AS ")[1].split()[0]: stage for stage in stages if "\nUSER " in stage}
    assert finals.keys() == {"server", "worker"}
    for stage in finals.values():
        assert re.findall(r"^USER (.+)", stage, flags=re.M) == ["10001:10001"]
        assert "\nHEALTHCHECK " in stage


def test_compose_secrets_have_no_default_and_explain_how_to_create_them() -> None:
    secret = re.compile(r"PASSWORD|AUTH_TOKEN$|DATABASE_URL")
    required = {
        name
        for _, name, value in environments()
        if secret.search(name) and ":?create .env" in value
    }
    assert required == {
        "DASL_DATABASE_URL",
        "POSTGRES_PASSWORD",
        "RAY_AUTH_TOKEN",
        "GF_SECURITY_ADMIN_PASSWORD",
    }
    text = (ROOT / "docker-compose.yml").read_text(encoding="utf-8")
    secrets = ("DASL_POSTGRES_PASSWORD", "RAY_AUTH_TOKEN", "DASL_GRAFANA_PASSWORD")
    for variable in (*secrets, "DASL_DATA"):
        for use in re.findall(rf"\$\{{{variable}([^}}]*)\}}", text):
            assert use.startswith(":?")
            assert "docker/make_env.py" in use


def test_compose_gives_ray_token_only_to_services_that_need_it() -> None:
    modes = {
        service
        for service, name, value in environments()
        if (name, value) == ("RAY_AUTH_MODE", "token")
    }
    assert modes == {"ray-head", "worker", "gpu-worker"}
    holders = {service for service, name, _ in environments() if name == "RAY_AUTH_TOKEN"}
    assert holders == modes | {"dispatcher"}


def test_compose_passes_every_setting_to_api_or_dispatcher() -> None:
    passed = {name for service, name, _ in environments() if service in ("api", "dispatcher")}
    for name in SETTINGS:
        assert (name in passed) != (name in FIXED), name


def test_compose_gives_access_to_s3_to_all_that_read_or_write_artifacts() -> None:
    holders = {
        service
        for service in SERVICES
        if {"AWS_ENDPOINT_URL", "AWS_REGION", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"}
        <= {name for of, name, _ in environments() if of == service}
    }
    assert holders == {"migrate", "api", "dispatcher", "ray-head", "worker", "gpu-worker"}
    assert SERVICES["s3"]["networks"] == ["private"]
    assert re.fullmatch(r"[^:]+:[\d.]+", SERVICES["s3"]["image"]), "a pinned version"


@pytest.mark.parametrize("lock", ["server", "worker", "worker-cpu"])
def test_image_locks_have_the_driver_for_s3(lock: str) -> None:
    assert "obstore" in pins(lock)


def test_api_can_write_uploads_to_the_artifacts() -> None:
    assert "artifacts:/artifacts" in SERVICES["api"]["volumes"]
    template = (ROOT / "docker/helm/dasl/templates/api.yaml").read_text(encoding="utf-8")
    assert "{name: artifacts, mountPath: /artifacts}" in template


def test_compose_migrates_tables_before_starting_services() -> None:
    for service in ("api", "dispatcher"):
        condition = SERVICES[service]["depends_on"]["migrate"]["condition"]
        assert condition == "service_completed_successfully"
    assert SERVICES["migrate"]["depends_on"]["postgres"]["condition"] == "service_healthy"


def test_compose_reserves_gpus_only_in_the_gpu_profile() -> None:
    profiled = {name: about["profiles"] for name, about in SERVICES.items() if "profiles" in about}
    assert profiled.pop("s3") == ["s3"]
    assert profiled.pop("gpu-worker") == ["gpu"]
    assert not any("gpu" in profiles for profiles in profiled.values())
    reserving = {name for name, about in SERVICES.items() if "deploy" in about}
    assert reserving == {"gpu-worker"}


def test_compose_images_are_pinned_to_a_minor_version() -> None:
    foreign = {about["image"] for about in SERVICES.values()} - {"dasl-server", "dasl-worker"}
    assert foreign
    assert all(re.search(r":v?\d+\.\d+", image) for image in foreign), foreign


def test_compose_protects_postgres_from_memory_of_ray() -> None:
    for name, about in SERVICES.items():
        if name == "postgres":
            assert about["oom_score_adj"] < 0
        elif name == "ray-head" or "worker" in name:
            assert about["oom_score_adj"] > 0
            assert "mem_limit" in about
        else:
            assert "mem_limit" in about, name


def test_compose_asks_the_dispatcher_itself_for_its_health() -> None:
    about = SERVICES["dispatcher"]
    assert "file:///tmp/alive" in about["healthcheck"]["test"]
    assert {"--alive-file", "/tmp/alive"} <= set(about["command"])
    assert about["tmpfs"] == ["/tmp"], "the rest of the container is read-only"


def test_docker_files_name_no_external_host() -> None:
    inside = {"127.0.0.1", "api", "ray-head", "s3"}
    for path in FILES:
        hosts = re.findall(r"https?://([^/:\s\"']+)", path.read_text(encoding="utf-8"))
        assert set(hosts) <= inside, path.name


def test_dockerfile_needs_no_buildkit() -> None:
    bases = set(re.findall(r"^FROM (\S+)", DOCKERFILE, flags=re.M)) - {"base"}
    assert bases == {"python:3.11-slim-bookworm"}
    assert not re.search(r"^# *syntax=|--mount|<<", DOCKERFILE, flags=re.M)


def test_dockerignore_excludes_everything_by_default() -> None:
    lines = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    rules = [line for line in lines if line and not line.startswith("#")]
    assert rules[0] == "*"
    assert not any(re.search(r"\.env|\.git|data", rule) for rule in rules)
    assert ".env" in (ROOT / ".gitignore").read_text(encoding="utf-8").splitlines()


@pytest.mark.parametrize("lock", ["server", "worker", "worker-cpu", "build"])
def test_image_locks_match_the_tested_versions(lock: str) -> None:
    tested = pins("dev")
    for name, versions in pins(lock).items():
        assert versions <= tested[name], f"{name}: run `make lock`"
    text = (ROOT / "requirements" / f"{lock}.lock").read_text(encoding="utf-8")
    assert len(re.findall(r"^\S+==", text, flags=re.M)) <= text.count("--hash=sha256:")


def test_server_lock_has_no_torch_and_cpu_lock_no_cuda() -> None:
    heavy = re.compile(r"torch|torchvision|triton|ray|(nvidia|cuda)-.*")
    assert not [name for name in pins("server") if heavy.fullmatch(name)]
    left_out = pins("worker").keys() - pins("worker-cpu").keys()
    assert {"torch", "torchvision"} <= left_out
    assert left_out == {name for name in pins("worker") if heavy.fullmatch(name)} - {"ray"}
