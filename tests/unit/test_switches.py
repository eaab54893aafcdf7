"""Marker files: what their names say, what is none, what a change leaves behind."""

import os
import stat
from pathlib import Path

import pytest

from gateway import switches
from gateway.switches import NODE, in_force
from gateway.wire.codes import SwitchMode, SwitchScope

MODEL, ENGINE = SwitchScope.MODEL, SwitchScope.ENGINE
NODES = (SwitchScope.NODE, NODE)
STRANGE = ("meta-llama/Llama-3", "../../etc", ".", "a b%2F", "ü" * 20, "name.with.dots", "new\nline", "%")


def modes(run_dir: Path) -> dict[switches.Key, SwitchMode]:
    return switches.read(run_dir).modes()


@pytest.mark.parametrize("name", STRANGE)
def test_any_model_s_name_is_kept_safely(tmp_path: Path, name: str) -> None:
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    switches.put(run_dir, MODEL, name, SwitchMode.NO_LOAD)
    assert modes(run_dir) == {(MODEL, name): SwitchMode.NO_LOAD}
    (marker,) = run_dir.iterdir()
    assert marker.stat().st_size == 0
    assert list(tmp_path.iterdir()) == [run_dir], "nothing outside"
    switches.put(run_dir, MODEL, name, None)
    assert list(run_dir.iterdir()) == []


def test_a_change_replaces_and_repeating_it_changes_nothing(tmp_path: Path) -> None:
    for mode in (SwitchMode.OFF, SwitchMode.NO_STORE, SwitchMode.NO_STORE, SwitchMode.ON):
        switches.put(tmp_path, ENGINE, "e", mode)
        assert modes(tmp_path) == {(ENGINE, "e"): mode}
        assert len(list(tmp_path.iterdir())) == 1
    for _ in range(2):
        switches.put(tmp_path, ENGINE, "e", None)
        assert modes(tmp_path) == {}


def test_of_two_markers_for_one_name_the_stricter_counts(tmp_path: Path) -> None:
    for name in ("switch.engine.no_store.e", "switch.engine.no_load.e", "switch.engine.on.e"):
        (tmp_path / name).touch()
    assert modes(tmp_path) == {(ENGINE, "e"): SwitchMode.OFF}


@pytest.mark.parametrize(
    "name",
    [
        "switch.",
        "switch.node.off",
        "switch.node.off.all.more",
        "switch.rack.off.r1",
        "switch.engine.maybe.e",
        "switch.engine.off.e%20f",
        "switch.model.off.",
        "switch.model.off.%zz",
        "switch.model.off.a%2fb",
        "switch.model.off.%ff",
        b"switch.model.off.\xff",
    ],
)
def test_what_is_no_marker_is_named_and_ignored(tmp_path: Path, name: str | bytes) -> None:
    switches.put(tmp_path, ENGINE, "e", SwitchMode.OFF)
    os.close(os.open(os.path.join(os.fsencode(tmp_path), os.fsencode(name)), os.O_CREAT))  # noqa: PTH118
    reading = switches.read(tmp_path)
    assert reading.modes() == {(ENGINE, "e"): SwitchMode.OFF}
    (complaint,) = reading.complaints
    assert "switch." in complaint
    complaint.encode()  # whatever the name, a log can carry it


def test_no_link_is_followed(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.touch()
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    (run_dir / "switch.engine.off.e").symlink_to(target)
    (run_dir / "switch.node.off.all").mkdir()
    reading = switches.read(run_dir)
    assert reading.modes() == {}
    assert len(reading.complaints) == 2

    switches.put(run_dir, ENGINE, "e", SwitchMode.OFF)
    assert modes(run_dir) == {(ENGINE, "e"): SwitchMode.OFF}
    assert not (run_dir / "switch.engine.off.e").is_symlink()
    assert target.exists()
    assert stat.S_IMODE((run_dir / "switch.engine.off.e").stat().st_mode) == 0o600


def test_a_marker_is_as_open_as_its_directory(tmp_path: Path) -> None:
    tmp_path.chmod(0o2770)
    switches.put(tmp_path, *NODES, SwitchMode.OFF)
    assert stat.S_IMODE((tmp_path / "switch.node.off.all").stat().st_mode) == 0o660


@pytest.mark.parametrize(
    ("scope", "name"),
    [(SwitchScope.NODE, "n1"), (ENGINE, ""), (ENGINE, "a/b"), (MODEL, ""), (MODEL, "m" * 257), (MODEL, "ü" * 100)],
)
def test_a_name_that_nothing_can_have_is_refused_and_leaves_nothing(
    tmp_path: Path, scope: SwitchScope, name: str
) -> None:
    with pytest.raises(ValueError, match=r"expected|not"):
        switches.put(tmp_path, scope, name, SwitchMode.OFF)
    assert list(tmp_path.iterdir()) == []


def test_no_directory_means_no_switch(tmp_path: Path) -> None:
    assert switches.read(tmp_path / "nobody") == switches.Reading()


def test_the_strictest_of_node_model_and_engine_counts() -> None:
    set_ = {(MODEL, "m"): SwitchMode.NO_STORE, (ENGINE, "e"): SwitchMode.NO_LOAD, (ENGINE, "m"): SwitchMode.OFF}
    assert in_force(set_, "m", "other") is SwitchMode.NO_STORE
    assert in_force(set_, "other", "e") is SwitchMode.NO_LOAD
    assert in_force(set_, "m", "e") is SwitchMode.OFF
    assert in_force(set_, "other", "other") is SwitchMode.ON
    assert in_force({NODES: SwitchMode.NO_LOAD, **set_}, "other", "other") is SwitchMode.NO_LOAD
