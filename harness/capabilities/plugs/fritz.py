"""Asks a FRITZ!Box for the plugs that it knows, by AVM's AHA-HTTP interface. It was never run on a real box."""

from __future__ import annotations

import hashlib
import re
from urllib.parse import urlencode

from mixmark.harness.capabilities.plugs.http import Client, Leaves
from mixmark.harness.contracts.errors import MixmarkError

LOGIN = "/login_sid.lua?version=2"
CHALLENGE = re.compile(r"<Challenge>2\$(\d+)\$([0-9a-f]+)\$(\d+)\$([0-9a-f]+)<")
NO_SESSION = "0000000000000000"
MOST_ROUNDS = 10_000_000


class FritzBox(Client):
    _session = ""

    def leaves(self, path: str) -> Leaves:
        """The reply to a command, by the name of the command. The session ends after a while: after an error the next
        question logs in again. Raises MixmarkError."""
        try:
            self._session = self._session or self._login()
            return {path.partition("switchcmd=")[2].partition("&")[0]: self.text(f"{path}&sid={self._session}").strip()}
        except MixmarkError:
            self._session = ""
            raise

    def _login(self) -> str:
        """A session of the box, by AVM's login with PBKDF2 (FRITZ!OS 7.24 and later). Raises MixmarkError."""
        challenge = CHALLENGE.search(self.text(LOGIN))
        if challenge is None or self.account is None:
            raise MixmarkError("the box offers no login that is known: FRITZ!OS 7.24 or later is needed")
        first, salt, second, other_salt = challenge.groups()
        if max(int(first), int(second)) > MOST_ROUNDS:
            raise MixmarkError("the box asks for a login that would take minutes")
        inner = hashlib.pbkdf2_hmac("sha256", self.account[1].encode(), bytes.fromhex(salt), int(first))
        outer = hashlib.pbkdf2_hmac("sha256", inner, bytes.fromhex(other_salt), int(second))
        response = urlencode({"username": self.account[0], "response": f"{other_salt}${outer.hex()}"})
        session = re.search(r"<SID>([0-9a-f]{16})<", self.text(f"{LOGIN}&{response}"))
        if session is None or session[1] == NO_SESSION:
            raise MixmarkError("the box refuses the login: check user, password_env, and the right to smart home")
        return session[1]
