"""The answers of the API, which the server builds from rows and the client reads. Needs only pydantic."""
