"""`/openapi.json`: the API's document, as generators of clients and linters read it."""

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel

from service.api import problems
from service.worker_api.endpoints import REPORTS


def document(app: FastAPI) -> dict[str, Any]:
    """Return the OpenAPI document of the app."""
    if app.openapi_schema is None:
        schema = get_openapi(
            title=app.title,
            version=app.version,
            summary=app.summary,
            routes=app.routes,
            servers=[{"url": "/"}],
            license_info={"name": "Apache-2.0", "identifier": "Apache-2.0"},
        )
        # Readers look for the operations of people; the workers' are first among the routes.
        paths = schema["paths"].items()
        schema["paths"] = dict(sorted(paths, key=lambda path: path[0].startswith("/worker/")))
        for operations in schema["paths"].values():
            for operation in operations.values():
                operation.setdefault("security", [])  # it needs no token
        schemas = schema.setdefault("components", {}).setdefault("schemas", {})
        models: list[type[BaseModel]] = [problems.ProblemDocument, *REPORTS]
        for model in models:
            own = model.model_json_schema(ref_template="#/components/schemas/{model}")
            schemas.update(
                {name: each for name, each in own.pop("$defs", {}).items() if name not in schemas}
            )
            schemas[model.__name__] = own
        _simplify(schema)
        app.openapi_schema = schema
    return app.openapi_schema


def _simplify(part: object) -> None:
    """Write what generators misread in another way that means the same.

    They try a `const` of a union first, and then refuse all other values; they know no arrays without `items`; and they
    name classes by the titles of fields, which differ from those of models in their case alone.
    """
    if isinstance(part, dict):
        for choice in part.get("anyOf", ()):
            if "const" in choice:
                choice["enum"] = [choice.pop("const")]
        for field in part.get("properties", {}).values():
            if isinstance(field.get("title"), str):
                del field["title"]
        items = part.get("prefixItems")
        if items and all(item == items[0] for item in items):
            part["items"] = part.pop("prefixItems")[0]
        for below in part.values():
            _simplify(below)
    elif isinstance(part, list):
        for below in part:
            _simplify(below)
