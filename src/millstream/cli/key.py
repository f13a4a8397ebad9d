"""`millstream key create`, `list` and `revoke`: access keys of a server."""

from __future__ import annotations

import argparse
import dataclasses
from typing import Any

import msgspec

from millstream.access.key_text import new_key
from millstream.api.keys import KeyBody, create_command
from millstream.cli.asking import add_server, ask
from millstream.cli.flags import add_settings, settings_given
from millstream.clock import SystemClock
from millstream.config import Config, InvalidSetting, access_key, build_config, log_settings
from millstream.errors import InvalidRequest
from millstream.offline.first_key import store_key
from millstream.protocol.durations import decode_duration_ms
from millstream.telemetry import configure_logs

KEYS_URL = "/__millstream/keys"

_CREATE_TEXT = """\
Make an access key and print it, once: the server keeps only its hash. The first key turns access
control on and needs the scope admin.

  millstream key create --scope admin
  millstream key create --scope 'append:agents/run-*' --scope 'read:agents/**' --expires 30d
  millstream key create --data-dir data --scope admin    # no server runs on this folder

Scopes are read, append, manage and subscribe, each over a pattern of streams, and admin, which is
over everything. In a pattern * stands for what a segment holds, or a part of it, and ** for any
number of segments.
"""


def add_key(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    key = commands.add_parser("key", help="make, list and revoke access keys")
    actions = key.add_subparsers(dest="action", required=True, metavar="ACTION")
    create = actions.add_parser(
        "create",
        help="make a key and print it",
        description=_CREATE_TEXT,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    create.add_argument(
        "--scope",
        metavar="SCOPE:PATTERN",
        action="append",
        required=True,
        help="what the key may do; may be given several times",
    )
    create.add_argument(
        "--expires", metavar="TIME", help="when it ends by itself, such as 12h or 30d; else never"
    )
    create.add_argument("--name", metavar="TEXT", default="", help="shown in the list of keys")
    add_server(create)
    settings = dataclasses.fields(Config)
    add_settings(create, [each for each in settings if each.name in ("data_dir", "shards")])
    add_server(actions.add_parser("list", help="show all keys, without their secrets"))
    revoke = actions.add_parser("revoke", help="end a key, at once and for ever")
    revoke.add_argument("id", metavar="ID", help="as the list shows it")
    add_server(revoke)


def run_key(arguments: argparse.Namespace) -> int:
    if arguments.action == "create":
        return _create(arguments)
    key = access_key(arguments.key_file)
    if arguments.action == "list":
        _print_keys(ask(arguments.server, "GET", KEYS_URL, key)["keys"])
    else:
        ask(arguments.server, "DELETE", f"{KEYS_URL}/{arguments.id}", key)
        print(f"revoked {arguments.id}")
    return 0


def _create(arguments: argparse.Namespace) -> int:
    body = KeyBody(arguments.scope, _seconds(arguments.expires), arguments.name)
    if arguments.data_dir is None:
        key = access_key(arguments.key_file)
        print(ask(arguments.server, "POST", KEYS_URL, key, msgspec.to_builtins(body))["key"])
        return 0
    made = new_key()
    try:
        command = create_command(body, made, SystemClock().now_ms())
    except InvalidRequest as error:
        raise InvalidSetting(error.message) from None
    flags = settings_given(arguments)
    configure_logs(log_settings(flags)[0], "warning")  # stdout is for the key alone
    store_key(build_config(flags), command)
    print(made.text)
    return 0


def _seconds(text: str | None) -> int | None:
    if text is None:
        return None
    milliseconds = decode_duration_ms(text.encode())
    if not milliseconds or milliseconds % 1000:
        raise InvalidSetting(f"--expires: {text!r} is not a time such as 12h or 30d")
    return milliseconds // 1000


def _print_keys(keys: list[dict[str, Any]]) -> None:
    for key in keys:
        expires = key["expires_at"] or "never"
        line = f"{key['id']}  {' '.join(key['scopes'])}  expires {expires}  {key['name']}"
        print(line.rstrip())
    if not keys:
        print("no keys: access control is off unless --access keys says otherwise")
