"""Which devices there are, by name.

Owns: the list. Must not know: what they do. Any thread; a device's library is imported when it is asked for.
"""

import os

from gateway.device.base import Device, DeviceError
from gateway.device.host import HostDevice
from gateway.device.passing import Inlet

#: Names of all devices. ROCm's tensors call themselves ``cuda`` too.
NAMES = ("cpu", "cuda")


def open_device(name: str, run_dir: str | os.PathLike[str], inlet: Inlet | None = None) -> Device:
    """The device of this name.

    Args:
        name: as a tensor's device calls itself, with or without an index.
        run_dir: the gateway's shared directory.
        inlet: where the CPU's memory arrives; None: nothing is opened here.

    Raises:
        DeviceError: there is no such device, or it cannot do what this needs; the message names it.
    """
    kind, _, index = name.partition(":")
    if kind == "cpu":
        return HostDevice(run_dir, inlet)
    if kind == "cuda" and (not index or index.isdecimal()):
        try:
            from gateway.device.cuda import CudaDevice  # noqa: PLC0415 - PyTorch, for those who have such a device only
        except ImportError as error:
            raise DeviceError(f"device {name!r} cannot be used without PyTorch: {error}") from None
        return CudaDevice(int(index or 0))
    raise DeviceError(f"device {name!r} has no events that cross processes here; known are {', '.join(NAMES)}")
