"""`dasl cache`: the decoded images on this machine."""

from __future__ import annotations

from typing import Annotated

import typer

from service.cli.output import AsJson, core_extra, print_json, print_line, size

app = typer.Typer()


@app.command()
def cache(
    clear: Annotated[
        bool, typer.Option("--clear", help="Remove what no running process uses.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show what decoded images take on this machine, or remove them: the next job decodes them again."""
    with core_extra("cache"):
        from dasl_core.data.cache import all_cache_folders, cache_root, folder_size, remove_folder
    root = cache_root()
    folders = {folder: folder_size(folder) for folder in all_cache_folders(root)}
    if clear:
        removed = {folder for folder in folders if remove_folder(folder)}
        kept = {folder: taken for folder, taken in folders.items() if folder not in removed}
        freed = sum(folders.values()) - sum(kept.values())
    else:
        removed, kept, freed = set(), folders, 0
    if as_json:
        answer = {"path": str(root), "folders": len(kept), "bytes": sum(kept.values())}
        print_json({**answer, "freed_bytes": freed})
        return
    if clear:
        print_line(f"Removed {len(removed)} of {len(folders)} folders: {size(freed)}.")
        if kept:
            print_line(f"Running processes use the others: {size(sum(kept.values()))}.")
        return
    print_line(
        f"{root}: {size(sum(kept.values()))} in {len(kept)} folders, one for each data set and size."
    )
    if kept:
        print_line("Remove them: dasl cache --clear")
