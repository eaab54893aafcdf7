"""The contract between engines, daemon and operators: messages, codes, codec and chunk keys."""
