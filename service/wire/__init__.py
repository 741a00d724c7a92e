"""The answers of the API: the server makes them of rows, the client reads them. Needs pydantic alone."""
