import socket

import pytest

from gateway.listener import ListenError, listen


def test_a_free_address_is_listened_on() -> None:
    with listen("admin", "127.0.0.1:0") as listener, socket.create_connection(listener.getsockname()):
        pass


def test_a_taken_port_is_named_with_its_setting() -> None:
    with listen("probe", "127.0.0.1:0") as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ListenError, match=f"probe address .*another process listens on port {port}.*--probe") as e:
            listen("probe", f"127.0.0.1:{port}")
    assert e.value.is_taken


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        ("192.0.2.1:0", "192.0.2.1 is no address of this machine"),
        ("nothere.invalid:0", "there is no host nothere.invalid"),
        ("a..b:0", "there is no host a..b"),
        (f"{'a' * 300}:0", "there is no host aaa"),
    ],
)
def test_an_address_that_cannot_be_is_one_sentence(address: str, reason: str) -> None:
    with pytest.raises(ListenError, match=reason) as e:
        listen("admin", address)
    assert not e.value.is_taken
