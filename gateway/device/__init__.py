"""Devices: memory and events that cross processes, and copies between paged blocks and slots."""

from gateway.device.host_event import HostEvent

__all__ = ["HostEvent"]
