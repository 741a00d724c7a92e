"""`dasl backbones`: the networks that a spec may name."""

from typing import Annotated

import typer

from service.cli import console

app = typer.Typer()


@app.command()
def backbones(
    pattern: Annotated[
        str,
        typer.Argument(
            metavar="PATTERN", help="Part of a name, such as dinov3, or a pattern: 'vit_*_dinov2'."
        ),
    ] = "*",
    family: Annotated[
        str | None, typer.Option(help="Show only networks of this family, such as resnet.")
    ] = None,
    tested: Annotated[
        bool,
        typer.Option("--tested", help="Show only families of which the tests train a network."),
    ] = False,
    most: Annotated[
        float | None,
        typer.Option("--max-parameters", min=0, help="Show only networks up to so many million."),
    ] = None,
    as_csv: console.AsCsv = False,
) -> None:
    """List the networks that `backbone.name` may name, smallest first. Needs no server."""
    from fnmatch import fnmatchcase

    from dasl_core.spec import BACKBONES
    from dasl_core.spec.errors import closest

    families = {info.family for info in BACKBONES.values()}
    if family is not None and family not in families:
        raise typer.BadParameter(
            f"{family!r} is not a family{closest(family, families)}", param_hint="--family"
        )
    glob = pattern if set(pattern) & set("*?[") else f"*{pattern}*"
    backbones = [
        (name, info)
        for name, info in BACKBONES.items()
        if fnmatchcase(name, glob)
        and (family is None or info.family == family)
        and (info.tested or not tested)
        and (most is None or info.parameters <= most * 1e6)
    ]
    if not backbones:
        raise console.fail(
            f"No backbone fits{closest(pattern, BACKBONES)}. List all: dasl backbones"
        )
    backbones.sort(key=lambda item: (item[1].parameters, item[0]))
    if console.as_json():
        console.print_json(
            [{"name": name, **info.model_dump(exclude={"weights"})} for name, info in backbones]
        )
        return
    headers = ["NAME", "FAMILY", "PARAMETERS", "FEATURES", "IMAGE SIZE", "PATCH", "TESTED"]
    rows = [
        [
            name,
            info.family,
            info.parameters if as_csv else f"{info.parameters / 1e6:.1f} M",
            info.features,
            info.image_size,
            info.patch_size,
            "yes" if info.tested else "no",
        ]
        for name, info in backbones
    ]
    if as_csv:
        console.print_csv(headers, rows)
        return
    console.print_table(headers, rows)
    console.note(
        f"{len(backbones)} networks. IMAGE SIZE is that of the published weights. A spec names one as backbone.name"
    )
