"""The page of `dasl serve`, printed and opened with a login code."""

import sys

from service.api import repository
from service.client import page
from service.credentials import hash_token
from service.db.session import Database
from service.sessions import service


def show_page(database: Database, url: str, token: str, *, open_page: bool) -> None:
    """Print the address of the page, and open it in a browser if requested.

    Print a login code only to a terminal: other output may be a log that others can read.
    """
    is_terminal = sys.stdout.isatty()
    address = f"{url} (log in with: dasl open)"
    if is_terminal or open_page:
        with database.write() as session:
            credential = repository.credential_by_hash(session, hash_token(token))
            assert credential is not None, "the token was checked or made just now"
            code = service.new_code(session, credential.token.id)[1]
        with_code = page.page_address(url, code)
        if is_terminal:
            address = f"{with_code} (logs in once, within ten minutes; then: dasl open)"
        if open_page and not page.open_page(with_code):
            address += "; no browser was found"
    print(f"Page: {address}", flush=True)
