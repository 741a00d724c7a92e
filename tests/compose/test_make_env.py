"""`docker/make_env.py`: random secrets, created once."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "docker/make_env.py"


def make(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    # Isolated mode, because the script must run with any Python and without this project.
    return subprocess.run(
        [sys.executable, "-I", "-S", SCRIPT, *arguments], capture_output=True, text=True, timeout=60
    )


def values(file: Path) -> dict[str, str]:
    return dict(re.findall(r"^(\w+)=(.*)$", file.read_text(encoding="utf-8"), flags=re.M))


def test_secrets_are_random_and_readable_only_by_their_owner(tmp_path: Path) -> None:
    files = []
    (tmp_path / "my images").mkdir()
    for name in ("one", "two"):
        done = make("--data", tmp_path / "my images", "--output", tmp_path / name)
        assert done.returncode == 0, done.stderr
        assert (tmp_path / name).stat().st_mode & 0o777 == 0o600
        files.append(values(tmp_path / name))
        for secret in files[-1].values():
            assert secret not in done.stdout
    for variable in ("DASL_POSTGRES_PASSWORD", "RAY_AUTH_TOKEN"):
        first, second = (file[variable] for file in files)
        assert first != second
        # Valid in a URL without quoting.
        assert re.fullmatch("[0-9a-f]{64}", first)
    assert files[0]["DASL_DATA"] == f"'{tmp_path / 'my images'}'"


def test_missing_folder_is_refused(tmp_path: Path) -> None:
    done = make("--data", tmp_path / "pictuers", "--output", tmp_path / ".env")
    assert done.returncode == 1
    assert f"{tmp_path / 'pictuers'} is missing" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_existing_file_is_not_overwritten(tmp_path: Path) -> None:
    file = tmp_path / ".env"
    file.write_text("precious")
    done = make("--data", tmp_path, "--output", file)
    assert done.returncode == 1
    assert "so it is not changed" in done.stderr
    assert file.read_text() == "precious"


def test_monitoring_option_is_a_profile(tmp_path: Path) -> None:
    make("--data", tmp_path, "--output", tmp_path / ".env", "--gpu", "--monitoring")
    assert values(tmp_path / ".env")["COMPOSE_PROFILES"] == "gpu,monitoring"


def test_gpu_option_disables_cpu_workers(tmp_path: Path) -> None:
    make("--data", tmp_path, "--output", tmp_path / ".env", "--gpu")
    variables = values(tmp_path / ".env")
    assert (variables["COMPOSE_PROFILES"], variables["DASL_CPU_WORKERS"]) == ("gpu", "0")


@pytest.mark.parametrize("name", ["it's", "two\nlines"])
def test_folder_name_with_quotes_or_line_breaks_is_refused(name: str, tmp_path: Path) -> None:
    done = make("--data", tmp_path / name, "--output", tmp_path / ".env")
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_file_instead_of_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = make("--data", tmp_path / "file", "--output", tmp_path / ".env")
    assert (done.returncode, "not a folder" in done.stderr) == (1, True)
    assert not (tmp_path / ".env").exists()


def test_unreadable_data_folder_prints_a_warning(tmp_path: Path) -> None:
    (tmp_path / "private").mkdir(mode=0o700)
    done = make("--data", tmp_path / "private", "--output", tmp_path / ".env")
    assert "chmod" in done.stdout


def test_s3_option_keeps_artifacts_on_the_server_of_the_deployment(tmp_path: Path) -> None:
    for arguments, profiles in ((["--s3"], "s3"), (["--s3", "--gpu"], "gpu,s3")):
        file = tmp_path / profiles
        done = make("--data", tmp_path, "--output", file, *arguments)
        assert done.returncode == 0, done.stderr
        written = values(file)
        assert written["COMPOSE_PROFILES"] == profiles
        assert written["DASL_ARTIFACTS_URI"].startswith("s3://")
        assert re.fullmatch("[0-9a-f]{64}", written["AWS_SECRET_ACCESS_KEY"])
        assert written["AWS_SECRET_ACCESS_KEY"] not in done.stdout
