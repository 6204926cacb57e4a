"""Where MLflow is, and how to say so without giving a password away."""

from __future__ import annotations

import os
import re
from base64 import b64encode
from urllib.parse import quote, unquote

# Relative to the checkout: MLflow makes the folder that a database's address names before it undoes the quoting, so an
# absolute address in a checkout with % or ? in its path would leave a folder of a wrong name beside the checkout.
DATABASE = "sqlite:///mlflow.db"
SECRET_VARIABLE = re.compile(r"_(PASSWORD|TOKEN|SECRET|ACCESS_KEY)$")
SECRET_IN_QUERY = re.compile(
    r"([?&;][\w.-]*(?:token|key|password|passwd|pwd|secret|sig|signature|auth)=)[^&;\s'\"<>]+", re.I
)
UNQUOTED = ("", "/", "@", "!#$%&'()*+,/:;=?@[]~")  # what one library or the other leaves as it is in an address
CREDENTIALS = re.compile(r"(\w[\w+.-]*://)[^\s/'\"<>]*@")


def store_address() -> str:
    """The address of MLflow's store: of MLFLOW_TRACKING_URI, else of the checkout's database."""
    return os.environ.get("MLFLOW_TRACKING_URI") or DATABASE


def is_server(address: str) -> bool:
    """Whether an address is that of a tracking server."""
    return address.lower().startswith(("http://", "https://"))


def is_local(address: str) -> bool:
    """Whether an address is that of files on this machine: no one to wait for."""
    return "://" not in address or address.lower().startswith(("sqlite:", "file:"))


def shown(address: str) -> str:
    """An address as it may be printed: without user, password, query and fragment."""
    scheme, mark, rest = address.partition("://")
    if not mark:
        return scrubbed(address)
    return scheme + mark + re.split("[?#]", rest.rpartition("@")[2])[0]  # an unquoted password may hold any sign


def scrubbed(text: str) -> str:
    """``text`` without the secrets that the environment holds, and without those of any address in it."""
    for secret in sorted(_secrets(), key=len, reverse=True):
        text = text.replace(secret, "***")
    return SECRET_IN_QUERY.sub(r"\1***", CREDENTIALS.sub(r"\1", text))


def ui_address() -> str:
    """Where ``make ui`` serves MLflow's pages.

    Raises:
        ValueError: the environment variable PORT is no port.
    """
    return f"http://127.0.0.1:{ui_port()}"


def ui_port() -> int:
    """The port of ``make ui``: PORT of the environment, else MLflow's own.

    Raises:
        ValueError: PORT is no port.
    """
    port = os.environ.get("PORT") or "5000"
    if not re.fullmatch("[0-9]{1,5}", port) or not 0 < int(port) < 65536:
        raise ValueError(f"PORT={port} is no port: choose a number from 1 to 65535.")
    return int(port)


def _secrets() -> set[str]:
    """Passwords and tokens of the environment, in every form in which they can turn up in a message."""
    plain = {value for name, value in os.environ.items() if SECRET_VARIABLE.search(name)}
    user = os.environ.get("MLFLOW_TRACKING_USERNAME", "")
    logins = {f"{user}:{os.environ.get('MLFLOW_TRACKING_PASSWORD', '')}"} if user else set()
    _, mark, rest = store_address().partition("://")
    login, at, _ = rest.rpartition("@")
    if mark and at:
        logins |= {login, unquote(login)}
    plain |= logins | {login.partition(":")[2] for login in logins}
    plain |= {unquote(text) for text in plain}
    forms = {form for text in plain if text for form in (text, repr(text)[1:-1], b64encode(text.encode()).decode())}
    return forms | {quote(text, safe=safe) for text in plain if text for safe in UNQUOTED}
