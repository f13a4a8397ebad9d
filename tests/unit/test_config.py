from __future__ import annotations

import dataclasses
import importlib
from pathlib import Path
from typing import Any

import pytest

from millstream.config import (
    Config,
    InvalidSetting,
    access_key,
    build_config,
    environment_name,
    flag_name,
    java_home,
    log_settings,
    pipeline_environment,
    split_listen,
)
from millstream.config_values import (
    parse_cold,
    parse_count,
    parse_endpoint,
    parse_flag,
    parse_listen,
    parse_seconds,
    parse_size,
)

FIELDS = dataclasses.fields(Config)
REPOSITORY = Path(__file__).parents[2]


def field_named(name: str) -> dataclasses.Field[Any]:
    return next(setting for setting in FIELDS if setting.name == name)


# Precedence


def test_without_anything_given_every_setting_has_its_default() -> None:
    assert build_config({}, {}) == Config()


def test_a_flag_wins_over_its_variable_and_the_variable_over_the_default() -> None:
    environment = {"MILLSTREAM_PAGE_BYTES": "2KiB", "MILLSTREAM_LISTEN": "0.0.0.0:1"}
    config = build_config({"page_bytes": "1KiB", "listen": None}, environment)
    assert config.page_bytes == 1024
    assert config.listen == "0.0.0.0:1"
    assert config.max_body_bytes == Config().max_body_bytes


def test_an_empty_value_is_a_value() -> None:
    assert build_config({"cors_origin": ""}, {"MILLSTREAM_CORS_ORIGIN": "*"}).cors_origin == ()
    assert build_config({}, {"MILLSTREAM_CORS_ORIGIN": ""}).cors_origin == ()


def test_a_false_in_the_environment_is_false() -> None:
    assert build_config({}, {"MILLSTREAM_MEMORY": "false"}).memory is False
    assert build_config({}, {"MILLSTREAM_MEMORY": "on"}).memory is True


def test_other_variables_are_ignored() -> None:
    assert build_config({}, {"PATH": "y", "LISTEN": "z", "MILLSTREAMS": "x"}) == Config()


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("MILLSTREAM_LISTN", "did you mean MILLSTREAM_LISTEN?"),
        ("MILLSTREAM_DATADIR", "did you mean MILLSTREAM_DATA_DIR?"),
        ("MILLSTREAM_HOT_BYTE", "did you mean MILLSTREAM_HOT_BYTES?"),
        ("millstream_page_bytes", "did you mean MILLSTREAM_PAGE_BYTES?"),
        ("MILLSTREAM_PORT", "is no setting"),
        ("MILLSTREAM_QQQQQQQQQQQQQQQQ", "docs/configuration.md has them all"),
        ("MILLSTREAM_", "is no setting"),
    ],
)
def test_a_mistyped_variable_is_refused_by_name(
    monkeypatch: pytest.MonkeyPatch, name: str, hint: str
) -> None:
    with pytest.raises(InvalidSetting, match=f"^{name} is no setting") as refused:
        build_config({}, {name: "s3cret", "MILLSTREAM_MEMORY": "on"})
    assert hint in str(refused.value)
    assert "s3cret" not in str(refused.value)
    monkeypatch.setenv(name, "1")
    with pytest.raises(InvalidSetting, match=name):
        log_settings({})


def test_what_kubernetes_says_of_a_service_called_millstream_is_no_mistake() -> None:
    environment = {
        "MILLSTREAM_SERVICE_HOST": "10.0.0.1",
        "MILLSTREAM_SERVICE_PORT": "4437",
        "MILLSTREAM_SERVICE_PORT_HTTP": "4437",
        "MILLSTREAM_PORT": "tcp://10.0.0.1:4437",
        "MILLSTREAM_PORT_4437_TCP": "tcp://10.0.0.1:4437",
        "MILLSTREAM_PORT_4437_TCP_ADDR": "10.0.0.1",
        "MILLSTREAM_STAGING_SERVICE_HOST": "10.0.0.2",
    }
    assert build_config({}, environment) == Config()


def test_the_process_environment_is_read_when_none_is_given(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MILLSTREAM_MAX_CONNECTIONS", "7")
    assert build_config({}).max_connections == 7


def test_a_config_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Config().memory = True  # type: ignore[misc]


# Values


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("65536", 65536),
        ("1B", 1),
        ("1K", 1024),
        ("1kb", 1024),
        ("512KiB", 512 * 1024),
        ("64 MiB", 64 * 1024**2),
        ("2g", 2 * 1024**3),
        (" 5 ", 5),
    ],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize(
    "text", ["", "x", "-1", "+1", "1.5MiB", "1TiB", "MiB", "1 Mi B", "1e3", "٣", "0x10", "1_000"]
)
def test_no_sizes(text: str) -> None:
    with pytest.raises(InvalidSetting, match="not a size"):
        parse_size(text)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0", 0.0),
        ("20", 20.0),
        ("0.5", 0.5),
        ("30s", 30.0),
        ("2m", 120.0),
        ("1h", 3600.0),
        ("250ms", 0.25),
        (" 5 s ", 5.0),
    ],
)
def test_times(text: str, seconds: float) -> None:
    assert parse_seconds(text) == seconds


@pytest.mark.parametrize(
    "text", ["", "-1", ".5", "1.", "1d", "soon", "inf", "nan", "1e3", "٣", "1S"]
)
def test_no_times(text: str) -> None:
    with pytest.raises(InvalidSetting, match="not a time"):
        parse_seconds(text)


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("127.0.0.1:4437", "127.0.0.1", 4437),
        ("0.0.0.0:0", "0.0.0.0", 0),
        ("[::1]:65535", "::1", 65535),
        ("localhost:80", "localhost", 80),
    ],
)
def test_addresses(text: str, host: str, port: int) -> None:
    assert split_listen(parse_listen(text)) == (host, port)


@pytest.mark.parametrize(
    "text", ["", "4437", ":4437", "localhost", "localhost:", "a:65536", "a:-1", "a:x", "a:٣"]
)
def test_no_addresses(text: str) -> None:
    with pytest.raises(InvalidSetting, match="not an address"):
        parse_listen(text)


@pytest.mark.parametrize("text", ["1", "true", "YES", "On"])
def test_trues(text: str) -> None:
    assert parse_flag(text) is True


@pytest.mark.parametrize("text", ["", "0", "false", "NO", "Off"])
def test_falses(text: str) -> None:
    assert parse_flag(text) is False


@pytest.mark.parametrize("text", ["2", "y", "maybe", " true"])
def test_neither_true_nor_false(text: str) -> None:
    with pytest.raises(InvalidSetting):
        parse_flag(text)


@pytest.mark.parametrize("text", ["", "0", "-1", "1.5", "x", "٣", "1_0", " 1"])
def test_no_counts(text: str) -> None:
    assert parse_count("12") == 12
    with pytest.raises(InvalidSetting):
        parse_count(text)


@pytest.mark.parametrize(
    "text",
    [
        *("fs:/a/b", "fs:a", "fs:///a", "file:///a", "s3://bucket", "s3://bucket/a/b", "s3a://b"),
        *("gs://bucket/a", "az://container/a", "abfss://container@account.dfs.core.windows.net/a"),
        *("https://account.blob.core.windows.net/container", ""),
    ],
)
def test_places_for_objects(text: str) -> None:
    assert parse_cold(text) == text


@pytest.mark.parametrize(
    "text",
    [
        "/a",
        "a",
        "fs:",
        "fs://a",
        "s3:",
        "s3://",
        "s3:bucket",
        "S3://b",
        "ftp://a",
        "http://a",
        "s3",
    ],
)
def test_no_places_for_objects(text: str) -> None:
    with pytest.raises(InvalidSetting, match="not a place for objects"):
        parse_cold(text)


def test_keys_in_a_url_are_refused_and_not_repeated() -> None:
    with pytest.raises(InvalidSetting, match="--cold-access-key-id") as caught:
        build_config({"cold": "s3://someid:somesecret@bucket/a"}, {})
    assert "somesecret" not in str(caught.value)


@pytest.mark.parametrize(
    "text", ["http://127.0.0.1:8333", "https://s3.example.org", "http://[::1]:9000", "http://a_b/c"]
)
def test_endpoints(text: str) -> None:
    assert parse_endpoint(text) == parse_endpoint(text + "/") == text


@pytest.mark.parametrize(
    "text",
    ["x", "127.0.0.1:80", "ftp://a", "http://", "http://a:b", "http://a:65536", "http://a b"],
)
def test_no_endpoints(text: str) -> None:
    with pytest.raises(InvalidSetting, match="not an address"):
        parse_endpoint(text)


AWS = {
    "AWS_ACCESS_KEY_ID": "aws-id",
    "AWS_SECRET_ACCESS_KEY": "aws-secret",
    "AWS_SESSION_TOKEN": "aws-token",
    "AWS_DEFAULT_REGION": "aws-region",
    "AWS_ENDPOINT_URL": "http://aws",
}


def test_what_s3_needs_and_nobody_gave_comes_from_the_variables_of_aws() -> None:
    config = build_config({"cold": "s3://bucket"}, AWS)
    assert (config.cold_access_key_id, config.cold_secret_access_key) == ("aws-id", "aws-secret")
    assert config.cold_session_token == "aws-token"
    assert (config.cold_region, config.cold_endpoint) == ("aws-region", "http://aws")


def test_a_key_of_ours_is_not_mixed_with_a_token_of_aws() -> None:
    flags = {"cold": "s3://bucket", "cold_access_key_id": "id", "cold_secret_access_key": "secret"}
    config = build_config(flags, AWS | {"MILLSTREAM_COLD_REGION": "ours"})
    assert (config.cold_access_key_id, config.cold_secret_access_key) == ("id", "secret")
    assert config.cold_session_token == ""
    assert config.cold_region == "ours"


def test_the_variables_of_aws_mean_nothing_to_another_store() -> None:
    assert build_config({}, AWS) == Config()


def test_a_bad_address_in_a_variable_of_aws_is_told_by_name() -> None:
    with pytest.raises(InvalidSetting, match=r"^AWS_ENDPOINT_URL: 'x'"):
        build_config({"cold": "s3://bucket"}, {"AWS_ENDPOINT_URL": "x"})


# Every setting


@pytest.mark.parametrize("setting", FIELDS, ids=lambda setting: setting.name)
def test_every_setting_has_help_a_flag_and_a_variable(setting: dataclasses.Field[Any]) -> None:
    assert len(setting.metadata["help"]) > 10
    assert flag_name(setting) == "--" + setting.name.replace("_", "-")
    assert environment_name(setting) == "MILLSTREAM_" + setting.name.upper()
    assert (setting.metadata["shape"] == "") == isinstance(setting.default, bool)


CHECKED = [setting for setting in FIELDS if setting.metadata["parse"] not in (Path, str)]


@pytest.mark.parametrize("setting", CHECKED, ids=lambda setting: setting.name)
def test_an_invalid_value_names_the_flag_or_the_variable_it_came_from(
    setting: dataclasses.Field[Any],
) -> None:
    with pytest.raises(InvalidSetting, match=f"^{flag_name(setting)}: '!'"):
        build_config({setting.name: "!"}, {})
    with pytest.raises(InvalidSetting, match=f"^{environment_name(setting)}: '!'"):
        build_config({}, {environment_name(setting): "!"})


@pytest.mark.parametrize(
    ("name", "text"),
    [("max_connections", "9" * 5000), ("page_bytes", "9" * 5000), ("listen", "a:" + "9" * 5000)],
)
def test_an_endless_number_is_an_invalid_setting_too(name: str, text: str) -> None:
    with pytest.raises(InvalidSetting, match=f"^{flag_name(field_named(name))}"):
        build_config({name: text}, {})


@pytest.mark.parametrize("setting", FIELDS, ids=lambda setting: setting.name)
def test_every_default_is_what_its_own_text_parses_to(setting: dataclasses.Field[Any]) -> None:
    if setting.default is not None:
        assert setting.metadata["parse"](str(setting.default)) == setting.default


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        ({"tls_cert": "cert.pem"}, "--tls-key"),
        ({"tls_key": "key.pem"}, "--tls-cert"),
        ({"wal_segment_bytes": "4095"}, "--wal-segment-bytes"),
        ({"memory": "true", "data_dir": "x"}, "--data-dir"),
        ({"log_level": "INFO"}, "--log-level"),
        ({"log_format": "xml"}, "--log-format"),
        ({"cold": "s3://b", "cold_access_key_id": "k"}, "--cold-secret-access-key"),
        ({"cold": "s3://b", "cold_secret_access_key": "s"}, "--cold-access-key-id"),
        ({"cold": "s3://b", "cold_session_token": "t"}, "--cold-access-key-id"),
        ({"cold_endpoint": "http://h"}, "--cold s3://"),
        ({"cold": "gs://b", "cold_region": "r"}, "--cold s3://"),
        ({"cold_timeout": "99ms"}, "--cold-timeout"),
    ],
)
def test_settings_that_make_no_sense_are_refused_by_name(flags: dict[str, str], named: str) -> None:
    with pytest.raises(InvalidSetting, match=named):
        build_config(flags, {})


def test_settings_that_go_together_are_taken_together() -> None:
    config = build_config({"tls_cert": "c", "tls_key": "k", "wal_segment_bytes": "4KiB"}, {})
    assert (config.tls_cert, config.tls_key) == (Path("c"), Path("k"))
    assert config.wal_segment_bytes == 4096


def test_the_configuration_page_is_up_to_date() -> None:
    docs = importlib.import_module("millstream.cli.docs")
    written = (REPOSITORY / "docs" / "configuration.md").read_text()
    assert written == docs.configuration_markdown(), "run `make docs`"


def test_the_configuration_page_has_a_row_for_every_setting() -> None:
    docs = importlib.import_module("millstream.cli.docs")
    page = docs.configuration_markdown()
    assert [name for name in map(flag_name, FIELDS) if f"`{name}" not in page] == []
    assert [name for name in map(environment_name, FIELDS) if f"`{name}`" not in page] == []


def test_fallbacks_stand_in_for_defaults_only() -> None:
    fallbacks = {"cold": "s3://bucket/x", "cold_region": "eu-1", "cold_endpoint": "http://h:1"}
    environment = {"MILLSTREAM_COLD_REGION": "eu-2"}
    config = build_config({"cold_endpoint": "http://h:2"}, environment, fallbacks)
    assert (config.cold, config.cold_region) == ("s3://bucket/x", "eu-2")
    assert config.cold_endpoint == "http://h:2"


def test_a_bad_fallback_is_told_as_the_servers() -> None:
    with pytest.raises(InvalidSetting, match="--cold of the server: 'nonsense'"):
        build_config({}, {}, {"cold": "nonsense"})


def test_the_log_settings_need_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILLSTREAM_COLD_ACCESS_KEY_ID", "only half of a key")
    monkeypatch.setenv("MILLSTREAM_LOG_LEVEL", "error")
    assert log_settings({"log_format": "json"}) == ("json", "error")
    assert log_settings({"log_level": "debug"}) == ("console", "debug")


def test_java_home_is_a_folder_or_none() -> None:
    assert java_home({"JAVA_HOME": "/opt/java"}) == Path("/opt/java")
    assert java_home({"JAVA_HOME": ""}) is None
    assert java_home({}) is None


def test_places_of_records_come_one_by_one_or_with_commas() -> None:
    places = (("0000000000000001.wal", 64), ("/data/wal/0000000000000002.wal", 128))
    text = "0000000000000001.wal:64,/data/wal/0000000000000002.wal:128"
    assert build_config({"skip_record": text}, {}).skip_record == places
    assert build_config({}, {"MILLSTREAM_SKIP_RECORD": text}).skip_record == places
    for bad in ("x", "x:", ":7", "x:-1", "x:7,y"):
        with pytest.raises(InvalidSetting, match=r"^--skip-record"):
            build_config({"skip_record": bad}, {})


KEY = "ms_0123456789ab_" + "0f" * 32


def test_the_key_of_a_command_comes_from_its_file_or_the_variable(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text(KEY + "\n")
    assert access_key(None, {}) is None
    assert access_key(None, {"MILLSTREAM_KEY": ""}) is None
    assert access_key(None, {"MILLSTREAM_KEY": KEY}) == KEY
    assert access_key(str(file), {"MILLSTREAM_KEY": "other"}) == KEY
    build_config({}, {"MILLSTREAM_KEY": KEY})  # it is no unknown setting


@pytest.mark.parametrize("text", ["", "hush", KEY + "\nhush", KEY[:-1], "hush\r\nx: y", "é hush"])
def test_what_is_no_key_is_refused_and_not_shown(text: str, tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text(text)
    with pytest.raises(InvalidSetting) as refused:
        access_key(str(file), {})
    assert "hush" not in str(refused.value)
    assert KEY[20:40] not in str(refused.value)


def test_a_memory_server_has_no_way_to_get_its_first_key_when_it_wants_one_at_once() -> None:
    with pytest.raises(InvalidSetting, match="--access keys"):
        build_config({"memory": "true", "access": "keys"}, {})


def test_a_pipeline_gets_its_key_by_its_environment() -> None:
    assert pipeline_environment(Config(), KEY)["MILLSTREAM_KEY"] == KEY
