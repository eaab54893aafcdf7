"""A way to the gateway that delays what passes and breaks: a run directory of its own before the real one."""

import contextlib
import random
import socket
import threading
import time
from pathlib import Path

_PUMP_BYTES = 65536


class RoughLine:
    """``run_dir`` looks like the gateway's: the pool is the same file, the socket is ours and passes everything on."""

    def __init__(self, run_dir: Path, real: Path, seed: int) -> None:
        self.run_dir = run_dir
        self._real = real
        self._random = random.Random(seed)
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self.delay_until = 0.0
        self.num_cut = 0
        run_dir.mkdir(mode=0o700)
        (run_dir / "pool").symlink_to(real / "pool")
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(run_dir / "gateway.sock"))
        self._listener.listen()
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """Break every connection in the middle of whatever it carries."""
        with self._lock:
            doomed = list(self._open)
        for end in doomed:
            self._close(end)
        self.num_cut += len(doomed)

    def delay(self, seconds: float) -> None:
        """Hold back, each for a while, what passes in the next seconds."""
        self.delay_until = time.monotonic() + seconds

    def close(self) -> None:
        """Break everything for good."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts, as closing alone would not
        self._listener.close()
        self.cut()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            far = socket.socket(socket.AF_UNIX)
            try:
                far.connect(str(self._real / "gateway.sock"))
            except OSError:
                near.close()
                far.close()
                continue
            with self._lock:
                self._open |= {near, far}
            for source, sink in ((near, far), (far, near)):
                threading.Thread(target=self._pump, args=(source, sink), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(_PUMP_BYTES):
                if time.monotonic() < self.delay_until:
                    time.sleep(self._random.uniform(0.0, 0.3))
                sink.sendall(data)
        self._close(source)
        self._close(sink)

    def _close(self, end: socket.socket) -> None:
        with self._lock:
            if end not in self._open:
                return
            self._open.discard(end)
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)  # wakes the pump that reads from it
        end.close()
