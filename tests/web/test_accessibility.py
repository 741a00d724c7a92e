"""Every view for everybody: axe finds nothing serious, light, dark and on a phone."""

import pytest

from tests.support.busy_service import BusyService
from tests.web.conftest import DESKTOP, PHONE, Watched, defects

VIEWS = {
    "jobs": "baseline",
    "jobs/{baseline}": "Loss",
    "jobs/{collapsed}/settings": "augment",
    "jobs/{with-dar}/checkpoints": "final",
    "jobs/{failed}/log": "INFO",
    "compare?jobs={baseline},{with-dar}": "Newest evaluation",
    "submit": "What will run",
    "datasets": "birds",
    "datasets?add=1": "Path or URI",
    "compare?jobs={baseline},{with-dar},{paused}&by=study": "Newest evaluation",
    "jobs/{with-dar}/pictures?at=600": "Nearest neighbors",
    "jobs/{baseline}/checkpoints": "The model at work",
    "experiments": "regularizers",
    "experiments/{regularizers}": "too few seeds to say",
    "queue": "queued",
    "cluster": "Storage",
}


@pytest.mark.injects
@pytest.mark.parametrize(
    "opened",
    [
        pytest.param(("light", DESKTOP), marks=pytest.mark.slow),
        pytest.param(("dark", DESKTOP), marks=pytest.mark.slow),
        pytest.param(("light", PHONE), marks=pytest.mark.slow),
    ],
    indirect=True,
    ids=["light", "dark", "phone"],
)
def test_axe_finds_nothing_serious_and_nothing_is_cut_off(
    opened: Watched, busy: BusyService
) -> None:
    found: list[str] = []
    for path, text in VIEWS.items():
        for name, job in busy.jobs.items():
            path = path.replace(f"{{{name}}}", job)
        page = opened.open(path)
        page.get_by_text(text).first.wait_for()
        found += defects(page)
    assert found == []
