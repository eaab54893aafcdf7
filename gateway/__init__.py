"""kvgate's daemon: one process owns a node's pool of KV chunks, another serves its operators."""

__version__ = "0.1.0"
