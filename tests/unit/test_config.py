"""Settings: every variable, its refusals, and what is not one."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from rdmatensor import Context, InvalidArgumentError, Settings
from rdmatensor._config.variables import NATIVE_NAMES, NATIVE_VARIABLES, VARIABLES
from rdmatensor.config import FOREIGN_NAMES, Options, check_native, from_environment

GOOD = {
    "TRANSPORT": ("TCP", "transport", "tcp"),
    "REQUIRE": ("verbs", "require", "verbs"),
    "IFNAME": ("eth0", "ifname", "eth0"),
    "ADDR": ("::1", "addr", "::1"),
    "PORTS": ("20000-20010", "ports", (20000, 20010)),
    "LOOPBACK": ("1", "loopback", True),
    "SECRET": ("hush", "secret", b"hush"),
    "TIMEOUT_S": ("2.5", "timeout_s", 2.5),
    "PEER_TIMEOUT_S": ("3", "peer_timeout_s", 3.0),
    "ARENA_MIB": ("128", "arena_mib", 128),
    "ARENA_MAX_MIB": ("256", "arena_max_mib", 256),
    "TCP_STREAMS": ("4", "tcp_streams", 4),
    "ADOPT": ("0", "adopt", False),
    "HOOKS": ("0", "hooks", False),
    "PLAN": ("off", "plan", "off"),
    "VERIFY": ("CRC32C", "verify", "crc32c"),
    "METRICS_PORTS": ("9400-9401", "metrics_ports", (9400, 9401)),
    "TRACE_DIR": ("/var/tmp", "trace_dir", "/var/tmp"),
    "LOG_LEVEL": ("debug", "log_level", "debug"),
}
BAD = {
    "TRANSPORT": ["udp", "shm,tcp"],
    "REQUIRE": ["shm", "any"],
    "IFNAME": [" eth0", "a\nb"],
    "ADDR": ["localhost", "300.1.1.1", "10.0.0.1/8"],
    "PORTS": ["0-5", "10-5", "1-70000", "x-y", "5-", "-5"],
    "LOOPBACK": ["ja", "2"],
    "TIMEOUT_S": ["0", "-1", "inf", "nan", "soon", "1e9"],
    "PEER_TIMEOUT_S": ["0", "never"],
    "ARENA_MIB": ["0", "-1", "1.5", "64M", "99999999999"],
    "ARENA_MAX_MIB": ["0", "x"],
    "TCP_STREAMS": ["0", "17", "x"],
    "METRICS_PORTS": ["0", "on", "9401-9400"],
    "LOG_LEVEL": ["loud", "3"],
}


def test_an_empty_environment_gives_the_defaults() -> None:
    assert from_environment({}) == Settings()
    assert (
        from_environment({"PATH": "/bin", "RDMA_X": "1", "RDMATENSOR_LOG_LEVEL": ""}) == Settings()
    )


BAD_FIELDS: dict[str, list[object]] = {
    "transport": ["foo", "TCP", None, 1],
    "require": ["shm", None],
    "ifname": ["", " eth0", 5],
    "addr": ["localhost", 2130706433, ""],
    "ports": [(5,), (5, 4), (0, 5), (1, 70000), "5-6", (1.0, 2.0), [1, 2], 7],
    "loopback": [1, "1", None],
    "secret": ["text", b"", b"x" * 5000],
    "secret_source": ["moon"],
    "timeout_s": ["5", True, None, 0, -1.0, float("nan"), float("inf")],
    "peer_timeout_s": ["5", True, None, 0, -1.0, float("nan"), float("inf")],
    "arena_mib": [0, -1, 1.5, "64", True, None, 1 << 40],
    "arena_max_mib": [0, -1, "64"],
    "tcp_streams": [0, 17, 1.0],
    "hooks": [1, "1"],
    "adopt": [1, "1"],
    "plan": ["", " auto", "plan.json"],
    "trace_dir": ["", " a", 3],
    "verify": ["", "md5", "CRC32C", True],
    "metrics_ports": [9400, (0, 1), (2, 1), "9400"],
    "log_level": ["x", 3, None],
}


def test_every_field_has_wrong_values_here() -> None:
    assert set(BAD_FIELDS) == set(Settings.__dataclass_fields__)


@pytest.mark.parametrize(
    ("name", "wrong"), [(name, wrong) for name, values in BAD_FIELDS.items() for wrong in values]
)
def test_settings_made_by_hand_are_checked_as_variables_are(name: str, wrong: object) -> None:
    with pytest.raises(InvalidArgumentError, match=f"^{name}=.*: ") as caught:
        Settings(**{name: wrong})  # type: ignore[arg-type]
    assert name != "secret" or not wrong or repr(wrong) not in str(caught.value)


@pytest.mark.parametrize("name", sorted(GOOD))
def test_each_variable_sets_its_field(name: str) -> None:
    text, field, value = GOOD[name]
    assert getattr(from_environment({f"RDMATENSOR_{name}": text}), field) == value


@pytest.mark.parametrize(("name", "text"), [(n, t) for n, texts in BAD.items() for t in texts])
def test_bad_values_are_refused_with_the_form_they_must_have(name: str, text: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        from_environment({f"RDMATENSOR_{name}": text})
    message = str(caught.value)
    variable = next(variable for variable in VARIABLES if variable.name == name)
    assert f"RDMATENSOR_{name}={text!r}" in message
    assert variable.form in message


def test_one_port_is_a_range() -> None:
    assert from_environment({"RDMATENSOR_PORTS": "4000"}).ports == (4000, 4000)


def test_the_tests_know_every_variable() -> None:
    assert {variable.name for variable in VARIABLES} == {*GOOD, "SECRET_FILE"}


@pytest.mark.parametrize(
    ("wrong", "near"),
    [("RDMATENSOR_TRANSPROT", "RDMATENSOR_TRANSPORT"), ("RDMATENSOR_PORT", "RDMATENSOR_PORTS"),
     ("RDMATENSOR_TIMEOUT", "RDMATENSOR_TIMEOUT_S")],
)  # fmt: skip
def test_an_unknown_name_is_refused_with_the_nearest(wrong: str, near: str) -> None:
    with pytest.raises(InvalidArgumentError, match=rf"{wrong} .* did you mean {near}\?"):
        from_environment({wrong: "1"})


def test_a_name_like_none_gets_the_list() -> None:
    with pytest.raises(InvalidArgumentError, match=r"known are .*RDMATENSOR_ADDR"):
        from_environment({"RDMATENSOR_QQQQQQ": "1"})


def test_the_project_s_own_programs_have_names_too() -> None:
    own = {"RDMATENSOR_DEMO_RUN": "x", "RDMATENSOR_TEST_MEETINGS": "x"}
    assert from_environment(own) == Settings()
    for near in ("RDMATENSOR_TEST_Y", "RDMATENSOR_DEMO_RUNS", "RDMATENSOR_BENCH_"):
        with pytest.raises(InvalidArgumentError, match=f"{near} is not a setting"):
            from_environment({near: "1"})


def test_the_project_s_own_names_are_all_used() -> None:
    root = Path(__file__).parents[2]
    files = [
        path
        for folder in ("bench", "ci", "examples", "tests")
        for path in root.glob(f"{folder}/**/*")
    ]
    text = "".join(path.read_text() for path in files if path.suffix in (".py", ".sh"))
    for name in FOREIGN_NAMES:
        assert len(re.findall(rf"\b{name}\b", text)) > 0, name


def test_a_secret_file_is_read_without_its_last_line_break(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_bytes(b" two words \n\r\n")
    settings = from_environment({"RDMATENSOR_SECRET_FILE": str(path)})
    assert settings.secret == b" two words \n"
    assert settings.secret_source == "file"
    assert from_environment({"RDMATENSOR_SECRET": "x"}).secret_source == "environment"


def test_secret_files_that_are_refused(tmp_path: Path) -> None:
    empty, large = tmp_path / "empty", tmp_path / "large"
    empty.write_bytes(b"\n")
    large.write_bytes(b"x" * 5000)
    for path in (empty, large, tmp_path / "absent", tmp_path):
        with pytest.raises(InvalidArgumentError, match="RDMATENSOR_SECRET_FILE"):
            from_environment({"RDMATENSOR_SECRET_FILE": str(path)})
    with pytest.raises(InvalidArgumentError, match="both set"):
        from_environment({"RDMATENSOR_SECRET_FILE": str(empty), "RDMATENSOR_SECRET": "x"})


def test_a_secret_is_never_shown() -> None:
    assert "hush" not in repr(from_environment({"RDMATENSOR_SECRET": "hush"}))


def test_what_the_c_library_reads_itself_is_known() -> None:
    assert from_environment({"RDMATENSOR_VERBS_QPS": "4"}) == from_environment({})
    with pytest.raises(InvalidArgumentError, match="did you mean RDMATENSOR_VERBS_QPS"):
        from_environment({"RDMATENSOR_VERBS_QP": "4"})


def test_the_defaults_listed_are_those_of_settings() -> None:
    for variable in VARIABLES:
        value = getattr(Settings(), str(variable.field), None)
        shown = f"{value:g}" if isinstance(value, float | bool) else str(value)
        assert variable.default == ("unset" if value is None else shown), variable.name


NATIVE = {
    "ALGO": (["ring", "halving-doubling"], ["rign", "Ring"]),
    "DETERMINISTIC": (["0", "1", "true"], ["2", "yea"]),
    "COST_TABLE": (["/tmp/costs"], []),
    "TEST_HOST": (["a.b-c_9"], ["a b", "x" * 64]),
    "VERBS_DEVICES": (["mlx5_0", "mlx5_0:1,rxe1"], ["mlx5_0:0", "mlx5_0:256", "a,,b", "x" * 256]),
    "VERBS_GID_INDEX": (["3", "rxe0=1,rxe1=255"], ["-1", "256", "=1", "a="]),
    "VERBS_QPS": (["1", "8"], ["0", "9", "99", "two"]),
    "VERBS_LINKS": (["4"], ["5"]),
    "VERBS_MTU": (["1024", "4096"], ["1000", "8192"]),
    "VERBS_PKEY": (["0x8001", "1"], ["0", "0x10000"]),
    "VERBS_PKEY_INDEX": (["0"], ["-1", "65536"]),
    "VERBS_TIMEOUT": (["31", "017"], ["0", "32"]),
    "VERBS_RETRY": (["0"], ["7"]),
    "VERBS_SL": (["15"], ["16"]),
    "VERBS_TC": (["254"], ["255"]),
    "VERBS_NOTIFY": (["auto"], ["both"]),
    "VERBS_FLAG_UNSAFE": (["1", "on"], ["2"]),
}


def test_every_variable_of_the_c_library_has_values_here() -> None:
    assert {variable.name for variable in NATIVE_VARIABLES} == set(NATIVE)


@pytest.mark.parametrize("name", sorted(NATIVE))
def test_what_the_c_library_reads_is_checked_by_its_form(name: str) -> None:
    good, bad = NATIVE[name]
    for text in ("", *good):
        check_native({f"RDMATENSOR_{name}": text})
    for text in bad:
        with pytest.raises(InvalidArgumentError, match=f"RDMATENSOR_{name}='.*it is written as"):
            check_native({f"RDMATENSOR_{name}": text})


@pytest.mark.parametrize(
    ("text", "value"),
    [("1", True), ("true", True), ("ON", True), ("yes", True), ("0", False), ("False", False)],
)
def test_flags_have_several_words(text: str, value: bool) -> None:
    assert from_environment({"RDMATENSOR_LOOPBACK": text}).loopback is value


def test_options_replace_their_variables_only() -> None:
    environment = {"RDMATENSOR_TIMEOUT_S": "7", "RDMATENSOR_ARENA_MIB": "8"}
    found = from_environment(environment, Options(timeout_s=3.0, secret=b"hush"))
    assert (found.timeout_s, found.arena_mib) == (3.0, 8)
    assert (found.secret, found.secret_source) == (b"hush", "argument")
    assert from_environment(environment, Options()) == from_environment(environment)
    assert "hush" not in repr(Options(secret=b"hush"))
    with pytest.raises(InvalidArgumentError, match="arena_mib=0"):
        Options(arena_mib=0)


def test_options_ask_for_loopback_of_an_open_context() -> None:
    with pytest.raises(InvalidArgumentError, match=r"another loopback: False.*RDMATENSOR_LOOPBACK"):
        Options(loopback=True)._check_match(Settings())
    Options(loopback=True)._check_match(Settings(loopback=True))
    # Chosen where all ranks share a host.
    Options(loopback=False)._check_match(Settings(loopback=True))


@pytest.mark.parametrize("wish", [{"addr": "192.0.2.1"}, {"ifname": "eth9"}])
def test_loopback_and_another_address_are_refused(
    wish: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rendezvous = pytest.importorskip("rdmatensor._backend.rendezvous")
    options = Options(loopback=True, arena_mib=1, **wish)  # type: ignore[arg-type]
    opened: list[Settings] = []

    def default_context(settings: Callable[[], Settings]) -> Context:
        opened.append(settings())
        return Context(opened[0])

    monkeypatch.setattr(rendezvous, "default_context", default_context)
    with pytest.raises(InvalidArgumentError, match=r"RDMATENSOR_(LOOPBACK|ADDR|IFNAME)"):
        rendezvous.open_and_meet(lambda: None, 1, options)
    assert opened[0].loopback
    assert rendezvous._with_loopback(Settings(), True).loopback
    assert not rendezvous._with_loopback(Settings(addr="127.0.0.1"), True).loopback


def test_options_have_the_fields_of_settings() -> None:
    assert {*Options.__dataclass_fields__, "secret_source"} == set(Settings.__dataclass_fields__)


def test_what_the_c_library_reads_is_in_the_list() -> None:
    csrc = Path(__file__).parents[2] / "csrc"
    code = "".join(path.read_text() for path in sorted(csrc.glob("**/*.c")))
    # In code a name is a string of its own; in a message it is a part of one.
    read = set(re.findall(r'"(RDMATENSOR_\w+)"', code)) - {"RDMATENSOR_SECRET"}
    assert len(read) > 10
    assert read == set(NATIVE_NAMES)


def test_only_config_reads_the_environment() -> None:
    import rdmatensor

    for path in Path(rdmatensor.__file__).parent.rglob("*.py"):
        if path.name != "config.py":  # what launchers set is theirs, and may be read elsewhere
            found = re.findall(r"(?:environ\b|getenv).{0,20}RDMATENSOR_\w+", path.read_text())
            assert not found, path.name
