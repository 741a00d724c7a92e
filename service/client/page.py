"""The address of the page with a login code, and the browser that opens it."""

import html
import os
import sys
import webbrowser

from service.client.config import config_path, write_private


def page_address(url: str, code: str) -> str:
    """Return the address that opens the page and logs in once.

    The code is in the URL fragment, which browsers do not send.
    """
    return f"{url}/#login={code}"


def open_page(address: str) -> bool:
    """Open the page in a browser of this desktop; return whether there is one.

    The browser reads the address from a private file, because its command line is visible to all users.
    """
    is_x11 = sys.platform.startswith("linux")
    if is_x11 and not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        return False  # `webbrowser` would start a browser in the terminal
    file = config_path().with_name("open.html")
    target = html.escape(address)
    write_private(
        file,
        f'<!doctype html><meta charset="utf-8"><title>DASL</title>\n'
        f'<meta http-equiv="refresh" content="0;url={target}">\n<a href="{target}">DASL</a>\n',
    )
    return webbrowser.open(file.absolute().as_uri())
