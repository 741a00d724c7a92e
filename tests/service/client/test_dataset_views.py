"""What `dasl datasets show` says about the pixels of a data set."""

from __future__ import annotations

import pytest

from service.cli.dataset_views import print_dataset
from service.client.models import Dataset


@pytest.mark.parametrize(
    ("kinds", "expected"),
    [
        ({"3 x uint16": 5}, "3 x uint16"),
        (None, "3 x uint16"),  # of an older service
        ({"1 x uint16": 5}, "1 x uint16; networks get 3 x uint16"),
        (
            {"1 x uint8": 2, "3 x uint16": 5},
            "2 of 1 x uint8, 5 of 3 x uint16; networks get 3 x uint16",
        ),
    ],
)
def test_pixels_are_shown_as_the_images_have_them(
    capsys: pytest.CaptureFixture[str], kinds: dict[str, int] | None, expected: str
) -> None:
    content = {
        "id": "ds_1",
        "name": "birds",
        "state": "ready",
        "facts": {"num_images": 5, "median_size": 8, "bands": 3, "dtype": "uint16"},
        "report": {"num_images": 5} | ({"pixels": {"kinds": kinds}} if kinds else {}),
    }
    print_dataset(Dataset.model_validate(content), as_json=False)
    line = next(line for line in capsys.readouterr().out.splitlines() if "uint16" in line)
    assert line.split(maxsplit=1) == ["pixels", expected]
