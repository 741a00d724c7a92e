"""`dasl cache`: the decoded images on this machine."""

from typing import Annotated

import typer

from service.cli import console
from service.cli.formats import size

app = typer.Typer()


@app.command()
def cache(
    clear: Annotated[
        bool, typer.Option("--clear", help="Remove what no running process uses.")
    ] = False,
) -> None:
    """Show what decoded images take on this machine, or remove them: the next job decodes them again."""
    with console.core_extra("cache"):
        from dasl_core.data.cache import all_cache_folders, cache_root, folder_size, remove_folder
    root = cache_root()
    folders = {folder: folder_size(folder) for folder in all_cache_folders(root)}
    removed = [folder for folder in folders if clear and remove_folder(folder)]
    freed = sum(folders.pop(folder) for folder in removed)
    rest, total = len(folders), sum(folders.values())
    if console.as_json():
        answer = {"path": str(root), "folders": rest, "bytes": total, "freed_bytes": freed}
        console.print_json(answer)
    elif clear:
        console.print_line(
            f"Removed {len(removed)} of {len(removed) + rest} folders: {size(freed)}."
        )
        if rest:
            console.print_line(f"Running processes use the others: {size(total)}.")
    else:
        console.print_line(
            f"{root}: {size(total)} in {rest} folders, one for each data set and size."
        )
        if rest:
            console.print_line("Remove them: dasl cache --clear")
