"""A bare DEALER socket: sends what a well-behaved peer would not, and well-formed messages with any field set."""

import time
from pathlib import Path
from typing import Self

import msgspec
import zmq

from gateway.wire import codec
from gateway.wire.messages import (
    OLDEST_PROTOCOL_VERSION,
    POOL_FORMAT,
    PROTOCOL_VERSION,
    AnyReply,
    Hello,
    Request,
    Welcome,
)


class RawDealer:
    """One DEALER socket of its own; nothing is retried, nothing is filled in but the number."""

    def __init__(self, socket_path: Path, identity: bytes = b"") -> None:
        self._context = zmq.Context(io_threads=1)
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.LINGER, 0)
        if identity:
            self._socket.setsockopt(zmq.IDENTITY, identity)
        self._socket.connect(f"ipc://{socket_path}")
        self._number = 0
        self.boot = b""

    def send_frames(self, *frames: bytes) -> None:
        self._socket.send_multipart(frames)

    def send(self, message: Request) -> int:
        """Send a message under the next number, for the boot last welcomed unless it names one; returns its number."""
        self._number += 1
        boot = message.boot or self.boot
        self.send_frames(codec.encode(msgspec.structs.replace(message, number=self._number, boot=boot)))
        return self._number

    def receive(self, seconds: float = 5.0) -> AnyReply:
        """The next reply, whatever it answers."""
        assert self._socket.poll(round(seconds * 1000)), f"no reply within {seconds} s"
        frames = self._socket.recv_multipart()
        assert len(frames) == 1, f"a reply of {len(frames)} frames"
        return codec.decode_reply(frames[0])

    def is_silent(self, seconds: float) -> bool:
        """Whether nothing comes for so long."""
        return not self._socket.poll(round(seconds * 1000))

    def ask(self, message: Request, seconds: float = 5.0) -> AnyReply:
        """Send, and wait for the reply with this number; others are an error."""
        number = self.send(message)
        reply = self.receive(seconds)
        assert reply.number == number, f"asked {number}, answered {reply}"
        return reply

    def hello(self, seconds: float = 5.0) -> Welcome:
        reply = self.ask(
            Hello(
                number=0,
                oldest_version=OLDEST_PROTOCOL_VERSION,
                newest_version=PROTOCOL_VERSION,
                pool_format=POOL_FORMAT,
                monotonic=time.monotonic(),
                software="test",
            ),
            seconds,
        )
        assert isinstance(reply, Welcome), reply
        self.boot = reply.boot
        return reply

    def close(self) -> None:
        self._socket.close(linger=0)
        self._context.term()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_) -> None:
        self.close()
