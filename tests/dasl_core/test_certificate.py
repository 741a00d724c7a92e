"""The certificate of a run, and what `dasl verify` finds."""

import csv
import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from safetensors.torch import load_file, save_file

from dasl_core.data.file_digests import FileDigests, merkle_root
from dasl_core.data.ingest import ingest_folder
from dasl_core.standalone import main as standalone
from dasl_core.standalone.inputs import DataOptions
from dasl_core.standalone.verify import find_kept, verify
from dasl_core.train.certificate import digest_file
from dasl_core.train.progress import digest_of
from dasl_core.train.serialization import STATE_FILES, STRUCTURE, TENSORS
from dasl_core.vocabulary import CERTIFICATE
from tests.support.training_world import image_folder, tiny_spec

LAST = "out/checkpoints/step-000000009"


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `pictures/`, their list `pictures.csv` with classes, and a finished run in `out/`."""
    folder = tmp_path_factory.mktemp("certified")
    images = sorted(image_folder(folder / "pictures").glob("*/*.png"))
    with open(folder / "pictures.csv", "w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["path", "label"])
        rows.writerows([image.relative_to(folder), image.parent.name] for image in images)
    spec = tiny_spec(
        dataset=str(folder / "pictures.csv"), dar={"labels": "class"}, train={"precision": "fp32"}
    )
    (folder / "spec.yaml").write_text(yaml.safe_dump(spec))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DASL_CACHE_DIR", str(folder / "cache"))
        patch.setenv("LOCAL_WORLD_SIZE", str(os.cpu_count()))
        patch.setattr("dasl_core.train.plotting.Plotter.publish", lambda *_: None)
        assert standalone.train(folder / "spec.yaml", DataOptions(), folder / "out", []) == 0
    return folder


@pytest.fixture
def copied(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the run and the images, on a machine with an empty cache."""
    monkeypatch.setenv("DASL_CACHE_DIR", str(tmp_path / "cache"))
    for name in ("pictures", "out"):
        shutil.copytree(trained / name, tmp_path / name)
    shutil.copy(trained / "pictures.csv", tmp_path)
    return tmp_path


def check(folder: Path, run: str = "out", **options: Any) -> int:
    data = DataOptions(str(folder / "pictures.csv"))
    return verify(folder / run, data, **{"windows": 9, **options}).code


def edit(file: Path, change: Callable[[Any], None]) -> None:
    content = json.loads(file.read_text())
    change(content)
    file.write_text(json.dumps(content))


def forge(folder: Path, change: Callable[[dict[str, Any], dict[str, Any]], object]) -> None:
    """Change certificates and training states alike, with all digests, as somebody does who knows the format.

    Args:
        change: gets a certificate and the training state that belongs to it.
    """
    for checkpoint in (folder / "out" / "checkpoints").iterdir():
        certificate, state = (
            json.loads((checkpoint / name).read_text()) for name in (CERTIFICATE, STRUCTURE)
        )
        change(certificate, state)
        link = ""
        for entry in certificate["chain"]:
            entry["link"] = link = digest_of(link, {k: v for k, v in entry.items() if k != "link"})
        state["progress"]["chain"] = certificate["chain"]
        (checkpoint / STRUCTURE).write_text(json.dumps(state))
        certificate["state"] = {name: digest_file(checkpoint / name) for name in STATE_FILES}
        (checkpoint / CERTIFICATE).write_text(json.dumps(certificate))
        (checkpoint / "manifest.json").unlink()


def test_run_verifies_elsewhere(copied: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert check(copied, evaluate=True) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("compares bit for bit, because devices and libraries are equal\n")
    assert "Verified bit for bit: 3 of 3 windows of the 3 in the chain" in printed
    assert check(copied, windows=1, seed=4) == 0
    assert capsys.readouterr().out.count("  steps ") == 1


def test_one_checkpoint_is_enough(copied: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert check(copied, run=LAST) == 0
    assert "1 of 1 windows of the 3" in capsys.readouterr().out
    (copied / "pictures.csv").unlink()
    assert check(copied, run=LAST) == 3, "without images nothing is shown"


def test_checkpoint_without_figures_verifies(copied: Path) -> None:
    assert check(copied, run="out/checkpoints/step-000000003", evaluate=True) == 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c.update(unreadable=1), "could not be read while it ran"),
        (lambda c: c.update(own_views=True), "views or images were made by its author's code"),
        (lambda c: c["data"]["pictures.csv"].update(files=None), "made by its author's code"),
        (
            lambda c: (
                c["environments"][0].update(ranks=2),
                c["spec"]["backbone"].update(drop_path=0.1),
            ),
            "it had 2 ranks",
        ),
    ],
)
def test_what_cannot_be_repeated_here_is_no_fault(
    copied: Path,
    capsys: pytest.CaptureFixture[str],
    change: Callable[[dict[str, Any]], object],
    message: str,
) -> None:
    forge(copied, lambda c, _: change(c))
    assert check(copied) == 3
    assert message in capsys.readouterr().err


def test_device_in_place_of_a_file_is_not_read(
    copied: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (copied / LAST / STRUCTURE).unlink()
    (copied / LAST / STRUCTURE).symlink_to("/dev/zero")
    assert check(copied) == 3
    assert "is no regular file" in capsys.readouterr().err


def test_machine_with_too_little_memory_is_no_fault(
    copied: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = "dasl_core.train.trainer.Trainer.step"
    monkeypatch.setattr(step, lambda *_: torch.empty(1 << 60))
    assert check(copied) == 3


def test_card_and_report_name_the_certificate(trained: Path) -> None:
    digest = digest_file(trained / LAST / CERTIFICATE)
    assert digest in (trained / LAST / "README.md").read_text()


# Faults of somebody who only changes a file.


def change_image(folder: Path) -> None:
    file = sorted((folder / "pictures").glob("*/*.png"))[4]
    Image.fromarray(255 - np.asarray(Image.open(file))).save(file)


def change_label(folder: Path) -> None:
    lines = (folder / "pictures.csv").read_text().splitlines()
    lines[5] = lines[5].replace(",class-0", ",class-1")
    (folder / "pictures.csv").write_text("\n".join(lines) + "\n")


def swap_exported_weights(folder: Path) -> None:
    other = folder / "out" / "checkpoints" / "step-000000003"
    shutil.copy(other / "backbone.safetensors", folder / LAST)
    (folder / LAST / "manifest.json").unlink()


def swap_state(folder: Path) -> None:
    for name in STATE_FILES:
        shutil.copy(folder / "out/checkpoints/step-000000003" / name, folder / LAST)


def edit_figure(folder: Path) -> None:
    edit(folder / LAST / CERTIFICATE, lambda c: c["figures"][-1]["metrics"].update(knn_top1=0.5))


def break_chain(folder: Path) -> None:
    edit(folder / LAST / CERTIFICATE, lambda c: c["chain"][1].update(terms="0" * 64))


# Faults of somebody who changes everything alike: only training again finds them.


def claim(path: str, value: object) -> Callable[[Path], None]:
    """Return a forgery that claims another setting of the spec."""

    def plant(folder: Path) -> None:
        def change(certificate: dict[str, Any], state: dict[str, Any]) -> None:
            for spec in (certificate["spec"], state["spec"]):
                *parents, name = path.split(".")
                for parent in parents:
                    spec = spec[parent]
                spec[name] = value

        forge(folder, change)

    return plant


def claim_trained_on_these_images(folder: Path) -> None:
    """Change an image, and claim that the run was trained on the changed one."""
    change_image(folder)
    digests = FileDigests(index := ingest_folder(folder / "pictures"), None)
    root = merkle_root(digests.complete())
    digests.close()
    assert len(index) == 27
    forge(folder, lambda c, _: c["data"]["pictures.csv"].update(files=root))


def put_in_other_weights(folder: Path) -> None:
    """Put other weights into the last checkpoint, with a chain that says so."""
    from dasl_core.train.certificate import digest_weights
    from dasl_core.train.serialization import load_state

    last = folder / LAST
    tensors = load_file(last / TENSORS)
    name = next(n for n in tensors if n.endswith("conv1.weight") and "/method/" in n)
    tensors[name] = tensors[name] + 0.01
    save_file(tensors, last / TENSORS)
    exported = load_file(last / "backbone.safetensors")
    exported["conv1.weight"] = tensors[name]
    save_file(exported, last / "backbone.safetensors")
    weights = digest_weights(load_state(last)["method"])

    def change(certificate: dict[str, Any], _: dict[str, Any]) -> None:
        for entry in certificate["chain"]:
            if entry["step"] == 9:
                entry["weights"] = weights

    forge(folder, change)


def leave_out_the_last_weights(folder: Path) -> None:
    """Truncate the chain before forged weights."""
    put_in_other_weights(folder)
    for checkpoint in (folder / "out" / "checkpoints").iterdir():
        (checkpoint / "manifest.json").touch()
    forge(folder, lambda c, _: c.update(chain=c["chain"][:2]))


def claim_earlier_step(folder: Path) -> None:
    """Claim a step before the training state's, so that a window to its entry has no step."""
    forge(folder, lambda c, _: c.update(step=c["step"] - 1))


def claim_branch(folder: Path) -> None:
    """Claim that the run began at another one's checkpoint, so that its start is not repeated."""
    forge(folder, lambda c, _: c.update(branched_at=1))


def leave_out_entries(folder: Path) -> None:
    """Claim an entry so late that to train up to it takes forever."""
    forge(folder, lambda c, _: c["chain"][0].update(step=200_000))


@pytest.mark.parametrize(
    ("plant", "found"),
    [
        (change_image, "has other files than those of the certificate"),
        (change_label, "has other labels than those of the certificate"),
        (swap_exported_weights, "has other weights than the training state"),
        (swap_state, "is not the one of the certificate"),
        (edit_figure, "the figures are not those of the training state"),
        (break_chain, "the chain is broken at step 6"),
        (claim("train.seed", 4), "the losses of its steps differ"),
        (claim("train.optimizer.lr", 1e-3), "the weights after it differ"),
        (claim("train.precision", "fp64"), "the losses of its steps differ"),
        (claim("method.temperature", 0.5), "the losses of its steps differ"),
        (claim_trained_on_these_images, "the losses of its steps differ"),
        (put_in_other_weights, "the weights after it differ"),
        (leave_out_the_last_weights, "the chain has other steps than a run"),
        (claim_earlier_step, "the training state has another step"),
        (claim_branch, "the training state has another branched_at"),
        (leave_out_entries, "it has more than 100 steps"),
    ],
    ids=lambda value: getattr(value, "__name__", "") if callable(value) else "",
)
def test_planted_fault_is_found(
    copied: Path, capsys: pytest.CaptureFixture[str], plant: Callable[[Path], None], found: str
) -> None:
    plant(copied)
    assert check(copied) == 1
    assert found in capsys.readouterr().out


def test_only_an_evaluation_finds_a_figure_claimed_everywhere(
    copied: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    claimed = {"alignment": 0.125, "linear_top1": 1.0}  # the run has no linear probe

    def change(certificate: dict[str, Any], state: dict[str, Any]) -> None:
        for figures in (certificate["figures"], state["progress"]["evaluations"]):
            figures[-1]["metrics"].update(claimed)

    forge(copied, change)
    for checkpoint in (copied / "out" / "checkpoints").iterdir():
        edit(checkpoint / "metrics.json", lambda m: m["evaluations"][-1]["metrics"].update(claimed))
    assert check(copied, windows=0) == 3
    assert check(copied, windows=1) == 0
    assert "--evaluate also checks the figures" in capsys.readouterr().out
    assert check(copied, windows=1, evaluate=True) == 1
    printed = capsys.readouterr().out
    assert "alignment of backbone is" in printed
    assert "linear_top1 of backbone is None, and 1.0 in the certificate" in printed


def test_other_device_is_compared_within_a_tolerance(
    copied: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def change(certificate: dict[str, Any], _: dict[str, Any]) -> None:
        [here] = certificate["environments"]
        certificate["environments"] = [here | {"device": "another one"}, here | {"step": 5}]
        certificate["chain"][0]["terms"] = "other bits"

    forge(copied, change)
    assert check(copied, evaluate=True) == 0
    printed = capsys.readouterr().out
    assert "compares within a tolerance, because of other device" in printed
    assert "ok      steps 3 to 6, within a tolerance\nok      steps 6 to 9\n" in printed
    assert "Verified within a tolerance: 3 of 3" in printed
    manifests = [c / "manifest.json" for c in (copied / "out" / "checkpoints").iterdir()]
    for manifest in manifests:
        manifest.touch()  # removed again by the next forgery
    claim("method.temperature", 0.5)(copied)
    assert check(copied) == 1
    assert "its first loss is" in capsys.readouterr().out


def test_folder_without_a_run_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert verify(tmp_path, DataOptions()).code == 3
    assert "it is not the folder of a run" in capsys.readouterr().err
    (tmp_path / CERTIFICATE).write_text('{"format": 1}')
    with pytest.raises(ValueError, match="is no certificate: step: Field required"):
        find_kept(tmp_path)


@given(st.lists(st.binary(min_size=32, max_size=32), min_size=1, max_size=9), st.data())
def test_merkle_root_depends_on_each_leaf_and_on_their_order(
    digests: list[bytes], data: st.DataObject
) -> None:
    def reference(leaves: list[bytes]) -> bytes:
        """Of a tree whose left part is full, as in RFC 6962."""
        if len(leaves) == 1:
            return hashlib.sha256(b"\0" + leaves[0]).digest()
        left = 1 << (len(leaves) - 1).bit_length() - 1
        parts = reference(leaves[:left]) + reference(leaves[left:])
        return hashlib.sha256(b"\1" + parts).digest()

    root = merkle_root(digests)
    assert root == reference(digests).hex()
    at = data.draw(st.integers(0, len(digests) - 1))
    changed = [*digests]
    changed[at] = bytes([changed[at][0] ^ 1]) + changed[at][1:]
    assert merkle_root(changed) != root
    if digests[0] != digests[-1]:
        assert merkle_root([digests[-1], *digests[1:-1], digests[0]]) != root


def test_digests_are_those_of_the_files_as_they_were_read(tmp_path: Path) -> None:
    index = ingest_folder(image_folder(tmp_path / "pictures"))
    files = sorted((tmp_path / "pictures").glob("*/*.png"))
    expected = [hashlib.sha256(file.read_bytes()).digest() for file in files]
    digests = FileDigests(index, tmp_path / "digests")
    assert digests.complete() == expected
    digests.close()
    files[3].unlink()
    again = FileDigests(index, tmp_path / "digests")
    assert again.complete() == expected, "the file was read before"
    again.close()
    other = FileDigests(index, None)
    assert other.complete() == [*expected[:3], bytes(32), *expected[4:]]
    other.close()


@pytest.mark.parametrize(
    ("overrides", "processor"),
    [
        pytest.param([], None, marks=pytest.mark.slow),
        (["tags={resumed: again}", "evaluate.retrieval=[1, 3]"], "another one"),
    ],
)
def test_resumed_run_has_the_chain_of_an_uninterrupted_one(
    trained: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    overrides: list[str],
    processor: str | None,
) -> None:
    run = tmp_path / "out"
    shutil.copytree(trained / "out", run)
    before = json.loads((run.parent / LAST / CERTIFICATE).read_text())
    shutil.rmtree(run.parent / LAST)
    monkeypatch.setenv("DASL_CACHE_DIR", str(trained / "cache"))
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(os.cpu_count()))
    monkeypatch.setattr("dasl_core.train.plotting.Plotter.publish", lambda *_: None)
    spec = trained / "spec.yaml"
    if processor is not None:
        monkeypatch.setattr("dasl_core.train.certificate._processor", lambda: processor)
    assert standalone.train(spec, DataOptions(), run, overrides, resume=True) == 0
    after = json.loads((run.parent / LAST / CERTIFICATE).read_text())
    assert after["chain"] == before["chain"]
    devices = [(each["step"], each["device"]) for each in after["environments"]]
    assert devices[1:] == ([] if processor is None else [(6, processor)])
    assert after == before or overrides
    data = DataOptions(str(trained / "pictures.csv"))
    assert verify(run, data, windows=1, evaluate=True).code == 0
