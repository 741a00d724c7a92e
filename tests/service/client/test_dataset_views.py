"""What `dasl datasets show` says about the pixels of a data set."""

import pytest

from service.cli.dataset_views import print_dataset
from service.client.sync.models import Dataset
from tests.support.answers import answer_of


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


@pytest.mark.parametrize(
    ("report", "expected"),
    [
        ({"num_ignored": 0}, []),
        (
            {"num_ignored": 1, "ignored_endings": {".mp4": 1}},
            ["Ignored 1 file without the ending of an image: 1 .mp4."],
        ),
        (
            {"num_ignored": 1203, "ignored_endings": {"": 1, ".heics": 1200, ".mp4": 2}},
            [
                "Ignored 1,203 files without the ending of an image: 1200 .heics, 2 .mp4, 1 without an ending."
            ],
        ),
    ],
)
def test_endings_of_ignored_files_are_shown(
    capsys: pytest.CaptureFixture[str], report: dict[str, object], expected: list[str]
) -> None:
    content = answer_of(Dataset, report=report)
    print_dataset(Dataset.model_validate(content))
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line.startswith("Ignored")] == expected
