"""What `dasl datasets show` says about the pixels of a data set."""

import pytest

from service.cli.dataset_views import print_dataset
from service.client.sync.models import Dataset
from tests.support.answers import answer_of
from tests.support.api_server import REPORT


@pytest.mark.parametrize(
    ("kinds", "expected"),
    [
        ({"3 x uint16": 5}, "3 x uint16"),
        (None, "3 x uint16"),  # of an older service
        ({"1 x uint16": 5}, "1 x uint16; read as 3 x uint16"),
        ({"1 x uint8": 2, "3 x uint16": 5}, "2 of 1 x uint8, 5 of 3 x uint16; read as 3 x uint16"),
    ],
)
def test_pixels_are_shown_as_the_images_have_them(
    capsys: pytest.CaptureFixture[str], kinds: dict[str, int] | None, expected: str
) -> None:
    content = answer_of(
        Dataset,
        facts={"num_images": 5, "median_size": 8, "bands": 3, "dtype": "uint16"},
        report={"num_images": 5} | ({"pixels": {"kinds": kinds}} if kinds else {}),
    )
    print_dataset(Dataset.model_validate(content))
    line = next(line for line in capsys.readouterr().out.splitlines() if "uint16" in line)
    assert line.split(maxsplit=1) == ["pixels", expected]


def test_options_of_the_source_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    def shown(source: dict[str, object] | None) -> list[str]:
        content = answer_of(Dataset, id="ds_1", name="birds", state="pending", source=source)
        print_dataset(Dataset.model_validate(content))
        return [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]

    assert shown(None) == ["id ds_1", "name birds", "state pending"]
    classes = [f"c{number}" for number in range(12)]
    options = {"split": "val", "labels": "none", "links": "follow", "image_column": "img"}
    lines = shown({**options, "classes": classes, "label_column": "kind", "group_column": "who"})
    assert lines[2:-1] == [
        "split val",
        f"only classes {', '.join(classes[:10])}, and 2 more",
        "labels none",
        "links follow",
        "image column img",
        "label column kind",
        "group column who",
    ]


def test_what_is_not_used_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    print_dataset(Dataset.model_validate(answer_of(Dataset, report=REPORT)))
    more = "Equal images: 1 more than needed, such as a/my photo.png and a/your photo.png."
    shown = capsys.readouterr().out.splitlines()
    assert {*REPORT["unused"], more} <= {*shown}
    report = {"unused": [], "duplicates": {"similar": {}}}
    print_dataset(Dataset.model_validate(answer_of(Dataset, report=report)))
    assert "than needed" not in capsys.readouterr().out
