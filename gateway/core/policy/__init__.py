"""Which chunk goes first when room is needed. Pure; runs on the loop's thread.

Owns: the order of slots that may be evicted. Must not know: why a slot may go, what lies in it, the time.
"""
