"""`/docs`: the OpenAPI document as a page (Swagger UI), which loads nothing from another origin."""

from pathlib import Path

from fastapi import APIRouter
from fastapi.responses import FileResponse

from service.api.problems import not_found

router = APIRouter(prefix="/docs", include_in_schema=False)

_FOLDER = Path(__file__).parent
_FILES = {
    "reference.js": (_FOLDER / "reference.js", "text/javascript"),
    "swagger-ui-bundle.js": (_FOLDER / "vendor" / "swagger-ui-bundle.js", "text/javascript"),
    "swagger-ui.css": (_FOLDER / "vendor" / "swagger-ui.css", "text/css"),
}
_HEADERS = {
    # The style sheet contains icons as data URLs.
    "Content-Security-Policy": "default-src 'self'; img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}


@router.get("")
def show_page() -> FileResponse:
    """Show the page."""
    return FileResponse(_FOLDER / "index.html", media_type="text/html", headers=_HEADERS)


@router.get("/{name}")
def show_file(name: str) -> FileResponse:
    """Show a file of the page."""
    if name not in _FILES:
        raise not_found("file", name)
    path, media_type = _FILES[name]
    headers = {**_HEADERS, "Cache-Control": "max-age=3600"}
    return FileResponse(path, media_type=media_type, headers=headers)
