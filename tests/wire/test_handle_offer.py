"""The bytes of what a worker in handle mode offers at registration, and of a gateway that says who copies."""

import msgspec

from gateway.wire import codec, messages
from gateway.wire.codes import TransferMode
from tests.wire.samples import REPLIES, REQUESTS

OFFER = messages.HandleOffer(
    device="cuda:1",
    memories=(messages.SharedMemory(b"handle-1", 1 << 20),),
    regions=(messages.SharedRegion(0, 4096, 65536, 32768),),
    num_blocks=16,
    board=messages.SharedMemory(b"board", 8192),
)
RECORDED = (
    "85a6646576696365a6637564613a31a86d656d6f726965739192c40868616e646c652d31ce00100000a7726567696f6e73919400cd1000ce"
    "00010000cd8000aa6e756d5f626c6f636b7310a5626f61726492c405626f617264cd2000"
)


def test_an_offer_is_encoded_as_it_always_was() -> None:
    assert msgspec.msgpack.encode(OFFER).hex() == RECORDED


def test_a_registration_carries_it() -> None:
    [register] = [one for one in REQUESTS if isinstance(one, messages.Register)]
    offering = msgspec.structs.replace(register, transfer=TransferMode.HANDLE, offer=OFFER)

    assert codec.decode_request(codec.encode(offering)) == offering


def test_who_does_not_speak_of_copying_copies_in_the_engine() -> None:
    [register] = [one for one in REQUESTS if isinstance(one, messages.Register)]
    [welcome] = [one for one in REPLIES if isinstance(one, messages.Welcome)]

    assert (register.transfer, welcome.transfer) == (TransferMode.POOL, TransferMode.POOL)
    assert b"transfer" not in codec.encode(register)
