"""Previews without a service: `dasl preview`."""

from pathlib import Path

from pydantic import ValidationError
from safetensors import SafetensorError

from dasl_core import previews
from dasl_core.spec import JobSpec, SpecError, field_problems, resolve
from dasl_core.standalone.console import fail, print_line
from dasl_core.standalone.images import open_images, print_warnings
from dasl_core.standalone.inputs import DataOptions, read_spec, start_weights
from dasl_core.standalone.run_dir import writing_to


def preview(
    spec_path: Path, options: DataOptions, output: Path, overrides: list[str], images: int
) -> int:
    """Write the preview of a spec file on a folder of images; return the exit code.

    Args:
    options: image locations as for training. Images to evaluate on are not read; with them, none is held out.
    output: folder for the files, which replace those of an earlier preview.
    images: number of images.
    """
    try:
        spec, locations = read_spec(spec_path, options, overrides)
        for location in locations.all():
            if location.contains(output):
                raise ValueError(
                    f"--output: {output} is inside the folder of images. Choose another one."
                )
        index, _ = open_images(locations.data)
        print_warnings(index)
        resolved = resolve(spec, index.facts(), start_weights(spec))
        drawing = previews.Drawing(resolved, index, images)
        with writing_to(output):
            files = previews.write(drawing, output)
    except ValidationError as error:
        return fail("\n".join(map(str, field_problems(error, JobSpec))))
    except SpecError as error:
        return fail("\n".join(map(str, error.problems)))
    except (ValueError, OSError, SafetensorError) as error:
        return fail(str(error))
    for key, reason in drawing.unreadable.items():
        print_line(f"{key} cannot be read: {reason}", "stderr")
    print_line(
        f"{output / previews.SHEET}: {drawing.images} images with {len(drawing.views)} views each; "
        f"{len(files) - 1} more files in this folder"
    )
    return 0
