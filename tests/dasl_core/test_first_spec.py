"""`dasl init` writes a spec that is valid for the images, and says what it found."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from dasl_core.data.split import split
from dasl_core.spec import JobSpec, ResolvedJobSpec, load_spec, resolve
from dasl_core.standalone import first_spec
from service.cli.app import app
from tests.dasl_core.image_files import as_dicom
from tests.support.training_world import ingest


def save(
    folder: Path, count: int, size: tuple[int, int], dtype: str = "uint8", classes: int = 0
) -> Path:
    """Write PNGs of noise, in a folder for each class if there are any."""
    rng = np.random.default_rng(0)
    for number in range(count):
        place = folder / f"class-{number % classes}" if classes else folder
        place.mkdir(parents=True, exist_ok=True)
        shape = (size[1], size[0]) if dtype == "uint16" else (size[1], size[0], 3)
        pixels = rng.integers(0, np.iinfo(dtype).max, shape, dtype=dtype)
        Image.fromarray(pixels).save(place / f"{number:04}.png")
    return folder


def init(folder: Path, output: Path, *options: str, code: int = 0) -> str:
    done = CliRunner().invoke(app, ["init", str(folder), "-o", str(output), *options])
    assert done.exit_code == code, done.output
    return done.output


def resolved(output: Path, folder: Path) -> ResolvedJobSpec:
    return resolve(JobSpec.model_validate(load_spec(output)), ingest(folder).facts())


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DASL_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(first_spec, "usable_cores", lambda: 2)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)


def test_commands_quote_names_with_spaces(tmp_path: Path) -> None:
    folder, output = save(tmp_path / "Meine Fotos", 40, (32, 32)), tmp_path / "spec.yaml"
    init(folder, output)
    commands = " ".join(line.lstrip("# ") for line in output.read_text().splitlines())
    assert "--name 'Meine Fotos'; dasl submit" in commands
    assert "-o 'build/Meine Fotos'" in commands
    assert "fewer than 30 held-out images decide nothing" in commands


@pytest.mark.parametrize(
    ("images", "fraction", "held_out"),
    [
        (99, 0.1, 10),
        (100, 0.3, 30),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in ((150, 0.2, 30), (249, 0.13, 32), (294, 0.11, 32), (295, 0.1, 30))
        ),
    ],
)
def test_enough_images_are_held_out_to_decide_if_there_are_enough(
    tmp_path: Path, images: int, fraction: float, held_out: int
) -> None:
    folder, output = save(tmp_path / "birds", images, (32, 32)), tmp_path / "spec.yaml"
    init(folder, output)
    spec, text = resolved(output, folder), " ".join(output.read_text().split())
    assert spec.evaluate.holdout is not None
    assert spec.evaluate.holdout.fraction == fraction
    assert f"{held_out} are held out for evaluation." in text
    assert ("evaluate: holdout: fraction:" in text) == (fraction > 0.1)
    assert ("30 would be more than 30% of the images" in text) == (held_out < 30)
    assert len(split(ingest(folder), spec.evaluate.holdout).held_out) == held_out


def test_medical_images_are_not_mirrored(tmp_path: Path) -> None:
    folder, output = save(tmp_path / "scans", 12, (32, 32), "uint16"), tmp_path / "spec.yaml"
    (folder / "one.dcm").write_bytes(as_dicom(np.full((32, 32), 900, np.uint16)))
    init(folder, output)
    assert resolved(output, folder).augment.flip == 0
    assert "# There are DICOM files, and in medical images left" in output.read_text()


def test_few_icons(tmp_path: Path) -> None:
    folder, output = save(tmp_path / "icons", 60, (48, 40)), tmp_path / "spec.yaml"
    (folder / "clip.mov").write_bytes(b"not read")
    (folder / "broken.png").write_bytes(b"not an image")
    (folder / "copy.png").write_bytes((folder / "0000.png").read_bytes())
    init(folder, output)
    text = output.read_text()
    spec = resolved(output, folder)
    assert (spec.train.epochs, spec.backbone.image_size) == (11, 96)
    assert "# Images: 61, from 40 to 48 px; the median of shorter sides is 40 px." in text
    assert "# Skipped: 1, such as broken.png: " in text
    assert "# Ignored, as their endings are not those of images: 1 .mov (clip.mov)." in text
    assert "# Equal images: 1 more than needed, such as 0000.png and copy.png." in text
    assert "# This machine: 2 CPU cores, no GPU." in text
    assert "minutes on 2 cores" in text
    assert "hour" not in text
    assert "imilar images" not in text


def test_gray_images_of_16_bits(tmp_path: Path) -> None:
    folder, output = save(tmp_path / "rays", 40, (64, 64), "uint16"), tmp_path / "spec.yaml"
    init(folder, output)
    assert resolved(output, folder).dataset == "rays"
    assert "# Pixels: 40 of 1 x uint16." in output.read_text()
    assert (
        "# Values from 53.519 to 65469 are spread over its range: backbone.window."
        in output.read_text()
    )


def test_classes(tmp_path: Path) -> None:
    folder, output = save(tmp_path / "cls", 40, (32, 32), classes=4), tmp_path / "spec.yaml"
    init(folder, output, "--name", "birds")
    assert resolved(output, folder).dataset == "birds"
    assert "# Labels: 4 classes of 10 images, used only to evaluate." in output.read_text()


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(tmp_path_factory.mktemp("all") / "photos", 150, (240, 225))


@pytest.mark.parametrize(
    ("cores", "size", "epochs"), [(8, 224, 24), (4, 160, 24), (2, 128, 24), (1, 96, 24)]
)
def test_first_job_ends_in_ten_minutes(
    photos: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    cores: int,
    size: int,
    epochs: int,
) -> None:
    """With as many pixels as that allows, and only then with fewer epochs."""
    monkeypatch.setattr(first_spec, "usable_cores", lambda: cores)
    output = tmp_path / "spec.yaml"
    init(photos, output)
    spec, text = resolved(output, photos), " ".join(output.read_text().replace("#", "").split())
    assert (spec.backbone.image_size, spec.train.epochs) == (size, epochs)
    low, high = text.split("About ")[1].split(" minutes")[0].split(" to ")
    assert 1 <= int(low) < int(high) <= 10
    assert ("takes 5 to 22 minutes here, and learns more" in text) == (cores == 2)
    assert ("For all of it, remove backbone.image_size" in text) == (size < 224)


def test_networks_are_not_imported() -> None:
    """They take longer than everything else that `dasl init` does."""
    code = (
        "import sys; import dasl_core.standalone.first_spec; "
        "print(sorted({'timm', 'torchvision', 'torch.distributed.tensor'} & sys.modules.keys()))"
    )
    command = [sys.executable, "-c", code]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "[]\n"


def test_a_job_of_a_minute_is_not_from_one_to_one(tmp_path: Path) -> None:
    folder, output = save(tmp_path / "few", 6, (32, 32)), tmp_path / "spec.yaml"
    init(folder, output)
    assert "# About 1 minute on 2 cores" in output.read_text()


def test_with_a_gpu_the_time_is_not_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "NVIDIA H100")
    folder, output = save(tmp_path / "icons", 20, (32, 32)), tmp_path / "spec.yaml"
    init(folder, output)
    text = output.read_text()
    assert "2 CPU cores, 2 GPUs (NVIDIA H100)" in text
    assert "The time is not known before a first job" in text


@pytest.mark.parametrize(
    ("content", "message"),
    [({}, "no usable image"), ({"a.png": b"x", "b.png": b"y"}, "no usable image")],
    ids=["empty", "broken"],
)
def test_folder_without_an_image_is_refused(
    tmp_path: Path, content: dict[str, bytes], message: str
) -> None:
    folder, output = tmp_path / "folder", tmp_path / "spec.yaml"
    folder.mkdir()
    for name, data in content.items():
        (folder / name).write_bytes(data)
    assert message in init(folder, output, code=1)
    assert not output.exists()


def test_single_image_is_refused(tmp_path: Path) -> None:
    output = tmp_path / "spec.yaml"
    assert "has 1 image; at least" in init(save(tmp_path / "one", 1, (32, 32)), output, code=1)
    assert not output.exists()


def test_file_with_another_content_is_kept_unless_forced(tmp_path: Path) -> None:
    folder, output = save(tmp_path / "icons", 20, (32, 32)), tmp_path / "spec.yaml"
    init(folder, output)
    first = output.read_text()
    init(folder, output)
    assert output.read_text() == first
    output.write_text("dataset: mine\n")
    assert f"{output} exists. Choose another" in init(folder, output, code=1)
    assert output.read_text() == "dataset: mine\n"
    init(folder, output, "--force")
    assert output.read_text() == first


def test_output_inside_the_images_is_refused(tmp_path: Path) -> None:
    folder = save(tmp_path / "icons", 20, (32, 32))
    assert "is inside the folder of images" in init(folder, folder / "spec.yaml", code=1)


def test_control_characters_of_file_names_stay_out_of_the_spec(tmp_path: Path) -> None:
    folder, output = save(tmp_path / "icons", 20, (32, 32)), tmp_path / "spec.yaml"
    (folder / "bad\nname: x.png").write_bytes(b"not an image")
    init(folder, output)
    assert load_spec(output)["name"] == "icons-simclr"
    assert "bad?name: x.png" in " ".join(output.read_text().split())
