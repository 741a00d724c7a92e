"""The home folder of `dasl serve`."""

from pathlib import Path

import pytest

from service import mounts
from service.embedded import home
from service.embedded.serve import serve
from service.settings import Settings

MOUNTS = """\
21 1 252:1 / / rw,relatime shared:1 - ext4 /dev/vda1 rw
95 21 0:50 / {nfs} rw shared:2 - nfs4 10.0.0.1:/home rw
96 95 0:51 / {nfs}/local rw - xfs /dev/vdb rw
97 95 0:52 / {nfs}/a\\040b rw - xfs /dev/vdc rw
98 97 0:53 / {nfs}/a\\040b rw - cifs //10.0.0.1/share rw
99 21 0:54 / {other} rw shared:3 - fuse.sshfs me@there: rw
"""


@pytest.fixture
def mounted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on NFS, as the system's table of mounts has it."""
    table = tmp_path / "mountinfo"
    table.write_text(MOUNTS.format(nfs=tmp_path / "nfs", other=tmp_path / "other"))
    monkeypatch.setattr(mounts, "_MOUNTS", table)
    return tmp_path / "nfs"


def test_network_file_systems_are_known(mounted: Path) -> None:
    kinds = {
        "..": None,
        ".": "nfs4",
        "ada/.dasl": "nfs4",
        "local/ada": None,
        "a b/ada": "cifs",
        "../other/x": "fuse.sshfs",
    }
    for folder, kind in kinds.items():
        found = mounts.network_file_system(mounted / folder)
        assert (f"({kind})" in found) if found else kind is None, folder


def test_sqlite_on_a_network_file_system_is_refused(mounted: Path) -> None:
    settings = Settings(home=mounted / ".dasl")
    with pytest.raises(
        ValueError, match=r"\.dasl \(DASL_HOME\) is on a network file system \(nfs4\)"
    ):
        serve(settings, stop=None)  # type: ignore[arg-type]
    assert not mounted.exists()


def test_home_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with (
        pytest.raises(ValueError, match=r"file/home \(DASL_HOME\) cannot be used: Not a directory"),
        home.held(tmp_path / "file" / "home"),
    ):
        pass
    with (
        home.held(tmp_path),
        pytest.raises(ValueError, match=r"^Process \d+ of .+ serves .+ already"),
        home.held(tmp_path),
    ):
        pass
