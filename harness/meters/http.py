"""Asks devices on the local network: a controller or a plug. It follows no redirection and reads no endless reply."""

from __future__ import annotations

import base64
import hashlib
import json
import ssl
import urllib.error
import urllib.request
from collections.abc import Mapping
from http.client import HTTPException
from typing import Any
from urllib.parse import urlsplit

from mixmark.harness.contracts.errors import MixmarkError, UsageError
from mixmark.harness.contracts.text import plain

LONGEST = 1 << 20
PATIENCE_S = 5.0  # the limit of one reply


class Client:
    """A device behind HTTP. what: `the controller`. verify: `yes`, `no`, or the path of a certificate. account: a user
    and a password, which are given if the device asks for them, by digest where it knows that.

    Its errors name neither the address nor the account, because they are stored in a result.
    """

    def __init__(
        self,
        what: str,
        url: str,
        headers: Mapping[str, str],
        verify: str = "yes",
        account: tuple[str, str] | None = None,
    ) -> None:
        self._what, self._url, self._headers = what, url.rstrip("/"), dict(headers)
        self._opener = _opener(verify, self._url, account)

    def json(self, path: str) -> dict[str, Any]:
        """The object at a path. Raises MixmarkError."""
        text = self.text(path)
        try:
            content = json.loads(text)
        except (ValueError, RecursionError):
            shown = (
                f"HTML: it has another address, or wants a login: {_begin(text)}" if "<" in text[:200] else _begin(text)
            )
            raise MixmarkError(f"{self._what} answers {_bare(path)} with no JSON: {shown}") from None
        if not isinstance(content, dict):
            raise MixmarkError(f"{self._what}'s reply for {_bare(path)} is no object")
        return content

    def text(self, path: str) -> str:
        """The text at a path. Raises MixmarkError."""
        request = urllib.request.Request(self._url + path, headers=self._headers)
        try:
            with self._opener.open(request, timeout=PATIENCE_S) as reply:
                content: bytes = reply.read(LONGEST + 1)
        except urllib.error.HTTPError as error:
            with error:
                advice = ": check user and password_env" if error.code in (401, 403) else ""
                reason = f"{error.code} {plain(str(error.reason), 60)}"
                raise MixmarkError(f"{self._what} answers {reason} for {_bare(path)}{advice}") from None
        except urllib.error.URLError as error:
            reason = str(error.reason).replace(urlsplit(self._url).hostname or self._url, "it")  # as of a certificate
            raise MixmarkError(f"{self._what} cannot be reached: {reason}") from None
        except (OSError, HTTPException, ValueError) as error:
            raise MixmarkError(f"{self._what}'s reply for {_bare(path)} cannot be read: {error}") from None
        if len(content) > LONGEST:
            raise MixmarkError(f"{self._what}'s reply for {_bare(path)} is longer than {LONGEST >> 20} MiB")
        return content.decode("utf-8", "replace")


def basic(user: str, password: str) -> str:
    """The header Authorization of an account."""
    return f"Basic {base64.b64encode(f'{user}:{password}'.encode()).decode()}"


def _bare(path: str) -> str:
    """A path without its query, which may hold a password."""
    return path.partition("?")[0]


def _begin(text: str) -> str:
    return ascii(text[:40])


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Refuses redirections, because the account is for this device only."""

    def redirect_request(self, *_: Any) -> None:
        return None


class _Digest(urllib.request.HTTPDigestAuthHandler):
    """Knows SHA-256 (RFC 7616), which urllib knows from Python 3.14 on."""

    def get_algorithm_impls(self, algorithm: str) -> Any:
        if algorithm != "SHA-256":
            return super().get_algorithm_impls(algorithm)
        return _sha256, lambda secret, data: _sha256(f"{secret}:{data}")


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _opener(verify: str, url: str, account: tuple[str, str] | None) -> urllib.request.OpenerDirector:
    try:
        context = ssl.create_default_context(cafile=None if verify in ("yes", "no", "true", "false") else verify)
    except OSError as error:
        raise UsageError(f"the certificate {verify} cannot be read: {error}") from error
    if verify in ("no", "false"):
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    handlers = [urllib.request.ProxyHandler({}), _NoRedirect(), urllib.request.HTTPSHandler(context=context)]
    if account:
        passwords = urllib.request.HTTPPasswordMgrWithDefaultRealm()
        passwords.add_password(None, url, *account)
        handlers += [_Digest(passwords), urllib.request.HTTPBasicAuthHandler(passwords)]
    return urllib.request.build_opener(*handlers)
