"""Every setting, once: flags, environment names, `--help` and docs/configuration.md come from here.

Building a Config has no side effects. Precedence: flag, then MILLSTREAM_* variable, then default.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from millstream.addresses import parse_hosts, parse_origins
from millstream.config_values import (
    InvalidSetting,
    parse_choice,
    parse_cold,
    parse_count,
    parse_endpoint,
    parse_flag,
    parse_listen,
    parse_optional_listen,
    parse_promise,
    parse_public_url,
    parse_receivers,
    parse_record_places,
    parse_seconds,
    parse_size,
)
from millstream.limits import APPEND_MESSAGES_MAX, KIB, MIB, SHARDS_DEFAULT

__all__ = ["Config", "InvalidSetting", "build_config"]

ENVIRONMENT_PREFIX = "MILLSTREAM_"
KEY_VARIABLE = "MILLSTREAM_KEY"  # the access key of commands that talk to a server
_KEY = re.compile(r"ms_[0-9a-f]{1,32}_[0-9a-f]{64}")  # access/key_text.py makes them
# What Kubernetes puts into the environment beside a service that is called like us.
_ORCHESTRATED = re.compile(
    r"\w+(?:_SERVICE_HOST=|_SERVICE_PORT(?:_\w+)?=|_PORT=(?:tcp|udp|sctp):|_PORT_\d+_(?:TCP|UDP|SCTP)).*"
)


def _setting(
    default: Any,
    parse: Callable[[str], Any],
    shape: str,
    text: str,
    *,
    default_text: str = "",
    secret: bool = False,
    many: bool = False,
) -> Any:
    """`default_text` describes a default that depends; a secret stays out of every printed form;
    of `many` the flag may be given again and again, and its variable takes commas."""
    metadata = {"parse": parse, "shape": shape, "help": text, "default_text": default_text}
    metadata["many"] = many
    return field(default=default, metadata=metadata, repr=not secret)


@dataclass(frozen=True)
class Config:
    listen: str = _setting(
        "127.0.0.1:4437", parse_listen, "HOST:PORT", "address to listen on; port 0 picks a free one"
    )
    admin_listen: str = _setting(
        "",
        parse_optional_listen,
        "HOST:PORT",
        "address with the operators' routes (/metrics, /__millstream/..., /__ursula/..., "
        "/v1/server/...) alone; --listen has them too as long as it is on loopback",
        default_text="none when --listen is on loopback, else `127.0.0.1:4438`",
    )
    allowed_host: tuple[str, ...] | None = _setting(
        None,
        parse_hosts,
        "HOST",
        "name in the Host header that requests may have beside loopback names and that of "
        "--listen, *.example.org for all below; others get 421. Off loopback all may come until "
        "this is given; may be given more than once",
        many=True,
    )
    data_dir: Path = _setting(
        Path("data"), Path, "DIR", "folder that holds everything the server acknowledged"
    )
    memory: bool = _setting(
        False, parse_flag, "", "keep everything in memory only; a restart starts empty"
    )
    long_poll_timeout: float = _setting(
        20.0, parse_seconds, "TIME", "how long a long-poll waits when the request does not say"
    )
    page_bytes: int = _setting(
        0,
        parse_size,
        "SIZE",
        "most bytes in one answer to a read (at least one message always fits); 0: up to the tail, "
        "and pages of 4 MiB in live answers",
        default_text="0",
    )
    compress: str = _setting(
        "on",
        parse_choice("on", "off"),
        "on|off",
        "compress answers for clients that accept gzip or zstd",
    )
    max_body_bytes: int = _setting(
        64 * MIB, parse_size, "SIZE", "largest request body; larger ones get 413"
    )
    max_append_messages: int = _setting(
        APPEND_MESSAGES_MAX, parse_count, "N", "most messages in one append; more get 413"
    )
    max_snapshot_bytes: int = _setting(
        128 * MIB, parse_size, "SIZE", "largest snapshot; larger ones get 413"
    )
    max_header_bytes: int = _setting(
        32 * KIB, parse_size, "SIZE", "largest header block; larger ones get 431"
    )
    max_inflight_body_bytes: int = _setting(
        512 * MIB,
        parse_size,
        "SIZE",
        "bytes of request bodies in memory at once; beyond it the slowest uploads get 503",
    )
    max_connections: int = _setting(
        20_000, parse_count, "N", "connections at once; further ones get 503"
    )
    sse_lifetime: float = _setting(
        60.0, parse_seconds, "TIME", "when an SSE connection ends and the client reconnects"
    )
    sse_heartbeat: float = _setting(
        15.0, parse_seconds, "TIME", "how often an idle SSE connection gets a comment line"
    )
    idle_timeout: float = _setting(
        75.0, parse_seconds, "TIME", "when a connection without a request is closed"
    )
    append_timeout: float = _setting(
        3.0,
        parse_seconds,
        "TIME",
        "how long an append waits for the log; then 408 append_timeout, and it may be kept all the "
        "same; 0: for ever",
    )
    answer_timeout: float = _setting(
        5.0,
        parse_seconds,
        "TIME",
        "how long other requests wait for their answer to begin, a second more at most; then 408 "
        "request_timeout; not live reads, uploads of snapshots nor operators' routes; 0: for ever",
    )
    queue_requests: int = _setting(
        50_000, parse_count, "N", "requests that wait for the log at once; further appends get 429"
    )
    queue_bytes: int = _setting(
        64 * MIB,
        parse_size,
        "SIZE",
        "content that waits for the log at once; further appends get 429",
    )
    request_timeout: float = _setting(
        30.0,
        parse_seconds,
        "TIME",
        "how long a request's head, or a small body, may take to arrive",
    )
    min_body_rate: int = _setting(
        8 * KIB,
        parse_size,
        "SIZE",
        "bytes a second that a body must bring, on average over --request-timeout; else 408",
    )
    body_timeout: float = _setting(
        900.0, parse_seconds, "TIME", "how long a whole body may take to arrive; else 408"
    )
    subscriber_stall_timeout: float = _setting(
        30.0, parse_seconds, "TIME", "when a client that does not read its answer is disconnected"
    )
    shutdown_timeout: float = _setting(
        10.0, parse_seconds, "TIME", "how long a stop waits for requests under way"
    )
    skip_record: tuple[tuple[str, int], ...] | None = _setting(
        None,
        parse_record_places,
        "FILE:POSITION",
        "leave out this record of the log, which a start named because it cannot be applied; "
        "for ever, and loudly; may be given more than once",
        many=True,
    )
    wal_segment_bytes: int = _setting(64 * MIB, parse_size, "SIZE", "size of one log file")
    disk_reserve_bytes: int = _setting(
        64 * MIB,
        parse_size,
        "SIZE",
        "room kept for the day when the disk is full, so that streams can be deleted then",
    )
    checkpoint_wal_bytes: int = _setting(
        256 * MIB, parse_size, "SIZE", "log growth after which the state is checkpointed"
    )
    cold: str = _setting(
        "",
        parse_cold,
        "URL",
        "where history goes: fs:DIR, s3://bucket/prefix, gs://bucket/prefix, az://container/prefix",
        default_text="folder cold in the data folder",
    )
    cold_endpoint: str = _setting(
        "",
        parse_endpoint,
        "URL",
        "address of an S3 server that is not Amazon's, such as http://127.0.0.1:8333",
        default_text="AWS_ENDPOINT_URL_S3 or AWS_ENDPOINT_URL",
    )
    cold_region: str = _setting(
        "",
        str,
        "REGION",
        "region of the S3 bucket",
        default_text="AWS_REGION or AWS_DEFAULT_REGION",
    )
    cold_access_key_id: str = _setting(
        "", str, "ID", "S3 access key", default_text="AWS_ACCESS_KEY_ID", secret=True
    )
    cold_secret_access_key: str = _setting(
        "",
        str,
        "SECRET",
        "its secret; others on the machine can read flags, so prefer the variable",
        default_text="AWS_SECRET_ACCESS_KEY",
        secret=True,
    )
    cold_session_token: str = _setting(
        "",
        str,
        "TOKEN",
        "session token, when the key is a temporary one",
        default_text="AWS_SESSION_TOKEN",
        secret=True,
    )
    cold_timeout: float = _setting(
        30.0,
        parse_seconds,
        "TIME",
        "how long one object-store operation may take, with all its retries",
    )
    shards: int | None = _setting(
        None,
        parse_count,
        "N",
        "parts the catalog is kept in; fixed when the data folder is made, no need to repeat it",
        default_text=f"what the data folder has, {SHARDS_DEFAULT} for a new one",
    )
    hot_bytes: int = _setting(
        256 * MIB, parse_size, "SIZE", "stream content kept in memory; more waits or goes cold"
    )
    flush_bytes: int = _setting(
        8 * MIB, parse_size, "SIZE", "hot content of one shard that is worth a segment"
    )
    flush_age: float = _setting(
        300.0, parse_seconds, "TIME", "how long content stays hot only before it goes cold"
    )
    resident_streams: int = _setting(
        16_384, parse_count, "N", "streams kept in memory; idle ones beyond it rest in the catalog"
    )
    cold_cache_bytes: int = _setting(
        24 * MIB, parse_size, "SIZE", "decoded cold content kept for the next reader"
    )
    catalog_upload_interval: float = _setting(
        60.0,
        parse_seconds,
        "TIME",
        "least time between two copies of the catalog in the cold store, for `millstream restore`",
    )
    registry_stream: str = _setting(
        "on",
        parse_choice("on", "off"),
        "on|off",
        "keep the stream `__registry__`, which tells of every stream that is created, forked, "
        "deleted, expired or gets other rules; for 30 days",
    )
    metrics_stream: float = _setting(
        10.0,
        parse_seconds,
        "TIME",
        "how often the server's own numbers are written to the stream `__stream_metrics__`, while "
        "there are clients; for 7 days; 0: never",
    )
    retention_interval: float = _setting(
        60.0, parse_seconds, "TIME", "how often buckets are looked over for content to give up"
    )
    erase_within: float = _setting(
        86_400.0,
        parse_promise,
        "TIME|off",
        "when content of deleted, expired and trimmed streams is gone from every object at last",
        default_text="24h",
    )
    pipeline: str = _setting(
        "auto",
        parse_choice("auto", "off", "external"),
        "auto|off|external",
        "who tidies up cold segments: a process of ours when there is work, none, or one you run",
    )
    tls_cert: Path | None = _setting(
        None, Path, "FILE", "certificate chain (PEM); turns on HTTPS together with --tls-key"
    )
    tls_key: Path | None = _setting(None, Path, "FILE", "private key (PEM) of --tls-cert")
    access: str | None = _setting(
        None,
        parse_choice("keys", "off"),
        "keys|off",
        "keys: every request needs a key of `millstream key create`; off: none does",
        default_text="keys once there is one",
    )
    insecure_open: bool = _setting(
        False,
        parse_flag,
        "",
        "serve other machines without access control: all who reach the address may do everything",
    )
    public_url: str = _setting(
        "",
        parse_public_url,
        "URL",
        "how clients and workers reach this server, such as https://streams.example.org behind a "
        "proxy: absolute URLs in answers and webhooks begin with it",
        default_text="the Host of the request",
    )
    webhook_allow: tuple[str, ...] | None = _setting(
        None,
        parse_receivers,
        "HOST",
        "a host, host:port or network (10.0.0.0/8) that webhooks may go to though it is not "
        "public, over plain http too; may be given more than once",
        many=True,
    )
    cors_origin: tuple[str, ...] | None = _setting(
        None,
        parse_origins,
        "ORIGIN",
        "web pages that may use the server beside its own, such as https://app.example.org; * for "
        "all, empty for none; may be given more than once",
        default_text="pages on loopback",
        many=True,
    )
    log_format: str = _setting(
        "console",
        parse_choice("console", "json"),
        "console|json",
        "shape of the log lines on stderr",
    )
    log_level: str = _setting(
        "info",
        parse_choice("debug", "info", "warning", "error"),
        "LEVEL",
        "least important log line to show: debug, info, warning or error",
    )
    access_log: bool = _setting(False, parse_flag, "", "log one line per request")


def split_listen(address: str) -> tuple[str, int]:
    """Host and port of a setting that is an address."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def flag_name(setting: dataclasses.Field[Any]) -> str:
    return "--" + setting.name.replace("_", "-")


def environment_name(setting: dataclasses.Field[Any]) -> str:
    return ENVIRONMENT_PREFIX + setting.name.upper()


def build_config(
    flags: Mapping[str, str | None],
    environment: Mapping[str, str] | None = None,
    fallbacks: Mapping[str, str] | None = None,
) -> Config:
    """`flags` maps field names to the text given, None where none was. Raises InvalidSetting.

    `fallbacks` stand in for defaults: what a pipeline knows of its server's settings.
    """
    if environment is None:
        environment = os.environ
    _refuse_unknown(environment)
    if flags.get("memory") and flags.get("data_dir"):
        raise InvalidSetting("--memory keeps nothing on disk; leave out --data-dir")
    values = {
        setting.name: value
        for setting in dataclasses.fields(Config)
        if (value := _value(setting, flags, environment, fallbacks or {})) is not None
    }
    config = Config(**values)
    _check_together(config)
    return _with_aws_variables(config, environment)


def log_settings(flags: Mapping[str, str | None]) -> tuple[str, str]:
    """Format and level of the log alone, for commands that take few other settings."""
    _refuse_unknown(os.environ)
    values: list[Any] = [
        _value(setting, flags, os.environ, {}) or setting.default
        for setting in dataclasses.fields(Config)
        if setting.name in ("log_format", "log_level")
    ]
    return values[0], values[1]


def _refuse_unknown(environment: Mapping[str, str]) -> None:
    """A setting with a typing error would otherwise be a setting without effect."""
    known = {environment_name(setting) for setting in dataclasses.fields(Config)} | {KEY_VARIABLE}
    for name, value in sorted(environment.items()):
        is_ours = name.upper().startswith(ENVIRONMENT_PREFIX)
        if is_ours and name not in known and not _ORCHESTRATED.fullmatch(f"{name}={value}"):
            [near] = get_close_matches(name.upper(), known, 1, cutoff=0.6) or [""]
            hint = f"did you mean {near}?" if near else "docs/configuration.md has them all"
            raise InvalidSetting(f"{name} is no setting; {hint}")


def _value(
    setting: dataclasses.Field[Any],
    flags: Mapping[str, str | None],
    environment: Mapping[str, str],
    fallbacks: Mapping[str, str],
) -> Any:
    """What flag or variable say, parsed; None when neither does."""
    given, source = flags.get(setting.name), flag_name(setting)
    if given is None:
        source = environment_name(setting)
        given = environment.get(source)
        if given == "" and setting.metadata["parse"] is Path:
            given = None  # no file or folder has an empty name
    if given is None:
        source, given = f"{flag_name(setting)} of the server", fallbacks.get(setting.name)
    if given is None:
        return None
    try:
        return setting.metadata["parse"](given)
    except ValueError as error:
        raise InvalidSetting(f"{source}: {error}") from None


def _with_aws_variables(config: Config, environment: Mapping[str, str]) -> Config:
    """What S3 needs and our own settings leave open. A key is only completed by its own parts."""
    if not config.cold.startswith(("s3:", "s3a:")):
        return config

    def first(*names: str, parse: Callable[[str], str] = str) -> str:
        name = next((name for name in names if environment.get(name)), None)
        try:
            return parse(environment[name]) if name else ""
        except InvalidSetting as error:
            raise InvalidSetting(f"{name}: {error}") from None

    found: dict[str, Any] = {}
    if not config.cold_endpoint:
        found["cold_endpoint"] = first(
            "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", parse=parse_endpoint
        )
    if not config.cold_region:
        found["cold_region"] = first("AWS_REGION", "AWS_DEFAULT_REGION")
    if not config.cold_access_key_id:
        found["cold_access_key_id"] = first("AWS_ACCESS_KEY_ID")
        found["cold_secret_access_key"] = first("AWS_SECRET_ACCESS_KEY")
        found["cold_session_token"] = first("AWS_SESSION_TOKEN")
    return dataclasses.replace(config, **found)


def _check_together(config: Config) -> None:
    if (config.tls_cert is None) != (config.tls_key is None):
        raise InvalidSetting("--tls-cert and --tls-key go together")
    if config.wal_segment_bytes < 4 * KIB:
        raise InvalidSetting("--wal-segment-bytes must be at least 4KiB")
    if config.memory and config.access == "keys":
        raise InvalidSetting("--access keys needs keys, and those are made in a --data-dir")
    if config.shards is not None and config.shards > 1024:
        raise InvalidSetting("--shards must be at most 1024")
    if config.hot_bytes < 64 * KIB:
        raise InvalidSetting("--hot-bytes must be at least 64KiB")
    _check_cold(config)


def _check_cold(config: Config) -> None:
    if config.cold_timeout < 0.1:
        raise InvalidSetting("--cold-timeout must be at least 100ms")
    if bool(config.cold_access_key_id) != bool(config.cold_secret_access_key):
        raise InvalidSetting("--cold-access-key-id and --cold-secret-access-key go together")
    if config.cold_session_token and not config.cold_access_key_id:
        raise InvalidSetting("--cold-session-token needs --cold-access-key-id")
    for_s3 = config.cold_endpoint or config.cold_region or config.cold_access_key_id
    if for_s3 and not config.cold.startswith(("s3:", "s3a:")):
        raise InvalidSetting(
            "--cold-endpoint, --cold-region and the keys need --cold s3://bucket/prefix"
        )


def java_home(environment: Mapping[str, str] | None = None) -> Path | None:
    """Where the Java is that the environment names."""
    if environment is None:
        environment = os.environ
    found = environment.get("JAVA_HOME")
    return Path(found) if found else None


def access_key(key_file: str | None, environment: Mapping[str, str] | None = None) -> str | None:
    """What a command shows a server: the content of the file, or the variable's; None: nothing.

    Raises InvalidSetting, which never shows what was found.
    """
    if environment is None:
        environment = os.environ
    source, found = KEY_VARIABLE, environment.get(KEY_VARIABLE, "").strip()
    if key_file is not None:
        source = f"--key-file {key_file}"
        try:
            found = Path(key_file).read_text(encoding="utf-8", errors="replace").strip()
        except OSError as error:
            raise InvalidSetting(f"{source}: {error.strerror}") from None
    elif not found:
        return None
    if not _KEY.fullmatch(found):
        raise InvalidSetting(f"{source} holds no key of `millstream key create`")
    return found


def pipeline_environment(config: Config, key: str | None = None) -> dict[str, str]:
    """For a pipeline beside this server: ours, and our settings of the cold tier and of the log.

    `key` is what it shows us. Only this user's programs can see the environment of another.
    """
    environment = dict(os.environ)
    if key is not None:
        environment[KEY_VARIABLE] = key
    for setting in dataclasses.fields(Config):
        if setting.name.startswith("cold_") or setting.name in ("log_format", "log_level"):
            value = getattr(config, setting.name)
            if value != setting.default:
                environment[environment_name(setting)] = str(value)
    return environment
