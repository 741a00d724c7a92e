"""Base of the bodies of PATCH requests, in which a field that is left out stays as it is."""

from pydantic import GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from dasl_core.spec.base import StrictModel


class Changes(StrictModel):
    """Changes of a row: only the fields that a request names.

    The API's document has no defaults for them: generated clients send every default, and would change other fields.
    """

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        schema = handler(core_schema)
        for field in handler.resolve_ref_schema(schema).get("properties", {}).values():
            field.pop("default", None)
        return schema
