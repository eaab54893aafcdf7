"""An adapter's look at the switches: when, and what both sides' word comes to."""

from adapter import AdapterConfig
from adapter.log import EngineLog
from adapter.switches import SwitchWatch
from gateway.switches import Marker, Reading
from gateway.wire.codes import SwitchMode, SwitchScope
from gateway.wire.messages import SwitchInfo

OFF = Reading((Marker(SwitchScope.ENGINE, "e", SwitchMode.OFF, 1.0),))
MODEL = Reading((Marker(SwitchScope.MODEL, "m", SwitchMode.NO_STORE, 1.0),))
CONFIG = AdapterConfig(heartbeat_seconds=1.0, engine_name="e")


class Directory:
    """Reads as it is told."""

    def __init__(self) -> None:
        self.reading: Reading | OSError = Reading()
        self.looks = 0
        self.watch = SwitchWatch("/run/x", "m", CONFIG, EngineLog("e"), self.read)

    def read(self, _: object) -> Reading:
        self.looks += 1
        if isinstance(self.reading, OSError):
            raise self.reading
        return self.reading


def test_it_looks_once_a_heartbeat() -> None:
    directory = Directory()
    assert directory.watch.look(100.0) is SwitchMode.ON
    directory.reading = OFF
    assert directory.watch.look(100.9) is SwitchMode.ON
    assert directory.watch.look(101.0) is SwitchMode.OFF
    assert directory.looks == 2


def test_the_gateway_s_word_counts_until_the_next_one() -> None:
    directory = Directory()
    directory.watch.told(SwitchMode.NO_LOAD)
    assert directory.watch.look(100.0) is SwitchMode.NO_LOAD
    directory.reading = MODEL
    assert directory.watch.look(101.0) is SwitchMode.OFF, "no load by one, no store by the other"
    directory.watch.told(SwitchMode.ON)
    assert directory.watch.look(101.5) is SwitchMode.NO_STORE


def test_what_is_in_force_is_told_with_whose_it_is() -> None:
    directory = Directory()
    others = Marker(SwitchScope.MODEL, "another", SwitchMode.OFF, 2.0)
    directory.reading = Reading((*MODEL.markers, others))
    directory.watch.look(100.0)
    mine = SwitchInfo(scope=SwitchScope.MODEL, name="m", mode=SwitchMode.NO_STORE, since_at=1.0)
    assert directory.watch.infos() == (mine,)

    directory.watch.told(SwitchMode.NO_STORE)  # the same switch, as the gateway sees it
    assert directory.watch.infos() == (mine,)
    directory.watch.told(SwitchMode.OFF)  # no marker says so: it is the gateway's setting
    node = SwitchInfo(scope=SwitchScope.NODE, name="all", mode=SwitchMode.OFF, since_at=0.0)
    assert directory.watch.infos() == (node, mine)


def test_a_switch_does_not_end_because_nobody_can_look(caplog) -> None:
    directory = Directory()
    directory.reading = OFF
    directory.watch.look(100.0)
    directory.reading = PermissionError(13, "Permission denied")
    for now in (101.0, 102.0, 103.0):
        assert directory.watch.look(now) is SwitchMode.OFF
    assert caplog.text.count("switch_ignored") == 1
