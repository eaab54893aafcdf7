import msgspec
import pytest

from gateway import config
from gateway.config import ConfigError, GatewayConfig, load


def test_a_flag_beats_the_environment_beats_the_file_beats_the_default(tmp_path) -> None:
    file = tmp_path / "kvgate.toml"
    file.write_text('run_dir = "/file"\nadmin = "127.0.0.1:1"\nprobe = "127.0.0.1:2"\n')
    environ = {"KVGATE_RUN_DIR": "/environment", "KVGATE_ADMIN": "127.0.0.1:3"}

    settings = load({"run_dir": "/flag", "admin": None}, environ, file)

    assert settings.run_dir == "/flag"
    assert settings.admin == "127.0.0.1:3"
    assert settings.probe == "127.0.0.1:2"
    assert settings.lease_seconds == GatewayConfig().lease_seconds


def test_an_empty_variable_counts_as_not_set() -> None:
    assert load({}, {"KVGATE_POOL_SIZE": "", "KVGATE_PROBE": ""}) == load({}, {})


def test_an_unknown_variable_is_noted_and_others_are_left_alone() -> None:
    environ = {"KVGATE_POOL_SIZ": "1GiB", "KVGATE_ENGINE_NAME": "a", "KVGATE_ADMIN_TOKEN": "b", "PATH": "/bin"}

    assert load({}, environ).unknown_variables == ("KVGATE_POOL_SIZ",)


def test_an_unknown_key_of_the_file_is_refused_by_name(tmp_path) -> None:
    file = tmp_path / "kvgate.toml"
    file.write_text("pool_siz = 1\n")

    with pytest.raises(ConfigError, match="pool_siz"):
        load({}, {}, file)


@pytest.mark.parametrize("text", ['[kvgate]\npool_size = "1GiB"\n', "admin = {port = 1}\n"])
def test_a_table_is_refused_with_what_was_expected(tmp_path, text: str) -> None:
    file = tmp_path / "kvgate.toml"
    file.write_text(text)

    with pytest.raises(ConfigError, match=r"has the table \[(kvgate|admin)\], expected settings at its top level"):
        load({}, {}, file)


def test_a_file_that_is_no_text_is_named(tmp_path) -> None:
    file = tmp_path / "broken"
    file.write_bytes(b"\xff\xfe")

    with pytest.raises(ConfigError, match=r"config file .*broken cannot be read: it is no text"):
        load({}, {}, file)
    with pytest.raises(ConfigError, match=r"admin_token_file .*broken holds no text"):
        load({}, {"KVGATE_ADMIN_TOKEN_FILE": str(file)})


def test_a_setting_nearly_known_is_suggested() -> None:
    with pytest.raises(ConfigError, match="unknown setting pool_siz; did you mean pool_size"):
        load({"pool_siz": "1GiB"}, {})
    with pytest.raises(ConfigError, match="known are run_dir"):
        load({"zzz": "1"}, {})


def test_an_unknown_flag_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="pool_siz"):
        load({"pool_siz": "1GiB"}, {})


@pytest.mark.parametrize("text", ["", "run_dir = ", "\x00"])
def test_a_file_that_cannot_be_read_is_named(tmp_path, text: str) -> None:
    file = tmp_path / "broken.toml"
    if text:
        file.write_text(text)

    with pytest.raises(ConfigError, match=r"broken\.toml"):
        load({}, {}, file)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (1 << 30, 1 << 30),
        ("1073741824", 1 << 30),
        ("1GiB", 1 << 30),
        ("1 gib", 1 << 30),
        ("1.5KiB", 1536),
        ("2GB", 2 * 10**9),
        ("7B", 7),
        ("1TiB", 1 << 40),
    ],
)
def test_sizes(value: object, expected: int) -> None:
    assert config.parse_size("pool_size", value) == expected


@pytest.mark.parametrize("value", ["", "GiB", "4 GiBs", "-1GiB", "1.3B", "four", None, True, 1.5, "1e3"])
def test_what_is_no_size_is_refused_by_name(value: object) -> None:
    with pytest.raises(ConfigError, match="pool_size"):
        config.parse_size("pool_size", value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("lease_seconds", "0"),
        ("lease_seconds", "nan"),
        ("lease_seconds", "ten"),
        ("heartbeat_seconds", 61),
        ("lease_seconds", "0.9"),
        ("reservation_seconds", "1"),
        ("max_reserved_fraction", "1.1"),
        ("drain_deadline_seconds", "-1"),
        ("watchdog_seconds", True),
        ("pool_on_stop", "burn"),
        ("eviction_policy", "fifo"),
        ("log_level", "loud"),
        ("log_format", "xml"),
        ("run_dir", 7),
        ("admin", "9480"),
        ("admin", ":9480"),
        ("admin", "localhost:http"),
        ("admin", "localhost:65536"),
        ("probe", "nowhere"),
        ("slab_size", "1000"),
        ("slab_size", "8GiB"),
        ("min_chunk_bytes", "5000"),
        ("min_chunk_bytes", "192KiB"),
        ("pool_size", "1KiB"),
    ],
)
def test_a_value_out_of_range_is_refused_by_name(name: str, value: object) -> None:
    with pytest.raises(ConfigError, match=name):
        load({name: value}, {})


@pytest.mark.parametrize("pool_size", ["4KiB", "8MiB", "100MB", "4GiB", "1TiB"])
def test_slabs_left_open_fit_the_pool(pool_size: str) -> None:
    settings = load({"pool_size": pool_size}, {})

    assert settings.pool_size % settings.slab_size == 0
    assert settings.slab_size % settings.min_chunk_bytes == 0
    assert settings.pool_size > 0.9 * config.parse_size("pool_size", pool_size)


def test_settings_survive_the_way_through_the_environment() -> None:
    settings = load({"run_dir": "/x", "pool_size": "8MiB", "lease_seconds": "5", "pool_on_stop": "remove"}, {})

    assert load({}, config.to_environ(settings)) == settings


def test_a_listener_others_can_reach_needs_a_token(tmp_path) -> None:
    token = tmp_path / "token"
    token.write_text("secret\n")

    with pytest.raises(ConfigError, match="token"):
        load({"admin": "0.0.0.0:9480"}, {})
    assert load({"admin": "0.0.0.0:9480"}, {"KVGATE_ADMIN_TOKEN": "secret"}).admin == "0.0.0.0:9480"
    assert load({"admin": "0.0.0.0:9480", "admin_token_file": str(token)}, {}).admin == "0.0.0.0:9480"
    for address in ("127.0.0.1:0", "[::1]:0", "localhost:0"):
        assert load({"admin": address}, {}).admin == address


def test_a_token_file_that_holds_nothing_is_refused(tmp_path) -> None:
    empty = tmp_path / "token"
    empty.write_text("\n")

    with pytest.raises(ConfigError, match="empty"):
        load({"admin_token_file": str(empty)}, {})
    with pytest.raises(ConfigError, match="absent"):
        load({"admin_token_file": str(tmp_path / "absent")}, {})


def test_every_setting_has_a_line_in_the_docstring() -> None:
    described = GatewayConfig.__doc__ or ""
    plain = {
        "lease_seconds",
        "reservation_seconds",
        "heartbeat_seconds",
        "drain_deadline_seconds",
        "stop_deadline_seconds",
        "log_level",
    }

    assert [n for n in config.SETTINGS if f"{n}:" not in described and n not in plain] == []
    assert set(config.SETTINGS) | {"unknown_variables"} == set(msgspec.structs.asdict(GatewayConfig()))
