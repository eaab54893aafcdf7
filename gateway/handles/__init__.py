"""Handle mode: the gateway copies between engines' blocks and the pool."""
