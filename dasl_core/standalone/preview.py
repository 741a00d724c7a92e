"""Previews without a service: `dasl preview`."""

from pathlib import Path

from dasl_core import previews
from dasl_core.outputs import PREVIEW_MARK, check_folder
from dasl_core.spec import resolve
from dasl_core.standalone.console import USER_ERRORS, fail, print_line
from dasl_core.standalone.images import open_images, print_warnings
from dasl_core.standalone.inputs import DataOptions, read_spec, start_weights
from dasl_core.standalone.run_dir import writing_to


def preview(
    spec_path: Path,
    options: DataOptions,
    output: Path,
    overrides: list[str],
    images: int,
    *,
    force: bool = False,
) -> int:
    """Write the preview of a spec file on a folder of images; return the exit code.

    Args:
        options: image locations as for training. Images to evaluate on are not read; with them, none is held out.
        output: folder for the files, which replace those of an earlier preview.
        images: number of images.
        force: use an output folder that has files of something else.
    """
    try:
        spec, locations = read_spec(spec_path, options, overrides)
        for location in locations.all():
            location.check_outside(output)
        check_folder(output, PREVIEW_MARK, force=force)
        index, _ = open_images(locations.data)
        print_warnings(index)
        resolved = resolve(spec, index.facts(), start_weights(spec))
        drawing = previews.Drawing(resolved, index, images)
        with writing_to(output):
            output.mkdir(parents=True, exist_ok=True)
            (output / PREVIEW_MARK).touch()
            files = previews.write(drawing, output)
    except USER_ERRORS as error:
        return fail(error)
    for key, reason in drawing.unreadable.items():
        print_line(f"{key} cannot be read: {reason}", "stderr")
    print_line(
        f"{output / previews.SHEET}: {drawing.images} images with {len(drawing.views)} views each; "
        f"{len(files) - 1} more files in this folder"
    )
    return 0
