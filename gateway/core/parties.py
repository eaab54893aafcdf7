"""Parties: who has registered, under which engine name, and who was fenced.

Owns: registrations, ended session numbers, fences, the bounded set of model labels. Must not know: slots, leases,
reservations, locks (whether one is held is passed in). Runs on the loop's thread.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from gateway.core.types import PartySpec, Refusal
from gateway.wire.codes import ErrorCode, Role

PARTY_BYTES = 16
NAMESPACE_BYTES = 16
MAX_TEXT = 256
MAX_RANKS = 4096
MAX_CHUNK_TOKENS = 1 << 24
OTHER = "other"
_ENGINE_NAME = re.compile(r"[A-Za-z0-9._-]{1,63}")


@dataclass(slots=True, eq=False)
class Party:
    """One registered process half."""

    spec: PartySpec
    registered_at: float
    last_heartbeat_at: float
    last_ended_session: int = -1  # at or below it, a session that is not live has ended

    @property
    def id(self) -> bytes:
        """Its id."""
        return self.spec.party


class Parties:
    """All registered parties, and the fenced ones that are not proven dead."""

    def __init__(self, max_parties: int, max_models: int) -> None:
        self._max_parties = max_parties
        self._max_models = max_models
        self._parties: dict[bytes, Party] = {}
        self._fenced: dict[bytes, str] = {}  # party -> engine
        self._models: set[str] = set()

    def __iter__(self) -> Iterator[Party]:
        return iter(self._parties.values())

    def find(self, party: bytes) -> Party | None:
        """The party, if it is registered."""
        return self._parties.get(party)

    def require(self, party: bytes, role: Role) -> Party:
        """The registered party of this role.

        Raises:
            Refusal: UNKNOWN_PARTY, FENCED, or INVALID when it is the other half.
        """
        found = self._parties.get(party)
        if found is None:
            if party in self._fenced:
                raise _fenced(self._fenced[party])
            raise Refusal(ErrorCode.UNKNOWN_PARTY, f"party {party.hex()} is not registered: register first")
        if found.spec.role is not role:
            raise Refusal(ErrorCode.INVALID, f"party {party.hex()} is a {found.spec.role}, expected a {role}")
        return found

    def admit(self, spec: PartySpec) -> None:
        """Check that a party may register, or register again.

        Raises:
            Refusal: FENCED, COLLISION, LIMIT, or GEOMETRY when it contradicts a live party of its namespace.
        """
        if spec.party in self._fenced or spec.engine in self._fenced.values():
            raise _fenced(spec.engine)
        known = self._parties.get(spec.party)
        if known is not None:
            _check_same(known.spec, spec)
        elif len(self._parties) >= self._max_parties:
            raise Refusal(
                ErrorCode.LIMIT, f"{len(self._parties)} parties are registered, at most {self._max_parties} can be"
            )
        for other in self._parties.values():
            if other.id != spec.party and spec.namespace and other.spec.namespace == spec.namespace:
                _check_fits(other.spec, spec)

    def add(self, spec: PartySpec, wall: float) -> None:
        """Register an admitted party, or take over what it says anew."""
        known = self._parties.get(spec.party)
        if known is None:
            self._parties[spec.party] = Party(spec, registered_at=wall, last_heartbeat_at=wall)
        else:
            known.spec = spec
            known.last_heartbeat_at = wall

    def remove(self, party: bytes) -> bool:
        """Forget a registration. Returns whether there was one."""
        return self._parties.pop(party, None) is not None

    def namespaces(self) -> frozenset[bytes]:
        """Namespaces of registered parties."""
        return frozenset(party.spec.namespace for party in self._parties.values())

    # -- engines

    def of_engine(self, engine: str) -> frozenset[bytes]:
        """Registered parties of an engine name."""
        return frozenset(party.id for party in self._parties.values() if party.spec.engine == engine)

    def of_group(self, group: str) -> frozenset[bytes]:
        """Registered parties of one model replica."""
        return frozenset(party.id for party in self._parties.values() if party.spec.group == group)

    def workers_of(self, namespace: bytes, shard: int) -> Iterator[Party]:
        """Registered workers that hold this shard of the namespace."""
        for party in self._parties.values():
            spec = party.spec
            if spec.role is Role.WORKER and spec.namespace == namespace and spec.shard == shard:
                yield party

    def engines(self) -> frozenset[str]:
        """Names of registered and of fenced engines."""
        return frozenset(party.spec.engine for party in self._parties.values()) | frozenset(self._fenced.values())

    # -- fences

    def fence(self, party: bytes) -> None:
        """Take a party's registration away; it cannot come back before its engine is resumed."""
        self._fenced[party] = self._parties.pop(party).spec.engine

    def unfence(self, engine: str) -> None:
        """Let an engine's parties register again."""
        self._fenced = {party: name for party, name in self._fenced.items() if name != engine}

    def is_fenced(self, engine: str) -> bool:
        """Whether a fenced party of this engine name may still live."""
        return engine in self._fenced.values()

    def bury(self, party: bytes) -> bool:
        """A party is proven dead. Returns whether it had registered and not left."""
        was_fenced = self._fenced.pop(party, None) is not None
        return self.remove(party) or was_fenced

    def fenced(self) -> frozenset[bytes]:
        """Fenced parties that are not proven dead."""
        return frozenset(self._fenced)

    # -- labels

    def model_label(self, model: str) -> str:
        """The model's name as a label value: itself for the first ``max_models``, then ``other``."""
        if model not in self._models:
            if len(self._models) >= self._max_models:
                return OTHER
            self._models.add(model)
        return model


def check_spec(spec: PartySpec, slab_bytes: int) -> None:
    """Check that what a party says of itself makes sense.

    Raises:
        Refusal: INVALID names the value and what was expected; GEOMETRY: its chunk does not fit a slab.
    """
    is_worker = spec.role is Role.WORKER
    namespace_lengths = (NAMESPACE_BYTES,) if is_worker else (0, NAMESPACE_BYTES)
    lowest_chunk = 1 if is_worker else 0
    _check(len(spec.party) == PARTY_BYTES, "party", f"{len(spec.party)} bytes", f"{PARTY_BYTES} bytes")
    _check(bool(_ENGINE_NAME.fullmatch(spec.engine)), "engine", repr(spec.engine), "1 to 63 of A-Z a-z 0-9 . _ -")
    for name, text in (("group", spec.group), ("model", spec.model)):
        _check(0 < len(text) <= MAX_TEXT, name, f"{len(text)} characters", f"1 to {MAX_TEXT} characters")
        # To Prometheus, which is told the model's name, a NUL is the end of the whole text.
        _check("\0" not in text, name, repr(text), "no NUL")
    _check(len(spec.software) <= MAX_TEXT, "software", f"{len(spec.software)} characters", f"at most {MAX_TEXT}")
    _check(
        len(spec.namespace) in namespace_lengths,
        "namespace",
        f"{len(spec.namespace)} bytes",
        f"{NAMESPACE_BYTES} bytes",
    )
    for name, count, number in (
        ("shard", spec.shard_count, spec.shard),
        ("replica", spec.replicas, spec.replica),
    ):
        _check(1 <= count <= MAX_RANKS, f"number of {name}s", str(count), f"1 to {MAX_RANKS}")
        _check(0 <= number < count, name, str(number), f"0 to {count - 1}")
    _check(spec.chunk_bytes >= lowest_chunk, "chunk_bytes", str(spec.chunk_bytes), f"at least {lowest_chunk}")
    _check(
        1 <= spec.chunk_tokens <= MAX_CHUNK_TOKENS, "chunk_tokens", str(spec.chunk_tokens), f"1 to {MAX_CHUNK_TOKENS}"
    )
    if spec.chunk_bytes > slab_bytes:
        raise Refusal(
            ErrorCode.GEOMETRY,
            f"a chunk of {spec.chunk_bytes} bytes does not fit a slab of {slab_bytes} bytes: raise the slab size",
        )


def _check(holds: bool, name: str, value: str, expected: str) -> None:
    if not holds:
        raise Refusal(ErrorCode.INVALID, f"{name} is {value}, expected {expected}")


def _check_same(known: PartySpec, spec: PartySpec) -> None:
    """A live id stays what it was; only a scheduler half may name its namespace later."""
    expected = replace(known, software=spec.software)
    if known.role is Role.SCHEDULER and not known.namespace:
        expected = replace(
            expected, namespace=spec.namespace, shard_count=spec.shard_count, chunk_tokens=spec.chunk_tokens
        )
    if spec != expected:
        raise Refusal(
            ErrorCode.COLLISION, f"party {spec.party.hex()} is registered with other facts: {known} is not {spec}"
        )


def _check_fits(other: PartySpec, spec: PartySpec) -> None:
    """Parties of one namespace agree on its shape."""
    if other.shard_count != spec.shard_count:
        raise _other_geometry("shard_count", other.shard_count, spec.shard_count)
    same_shard = other.role is spec.role is Role.WORKER and other.shard == spec.shard
    if same_shard and other.chunk_bytes != spec.chunk_bytes:
        raise _other_geometry("chunk_bytes", other.chunk_bytes, spec.chunk_bytes)


def _other_geometry(name: str, theirs: int, ours: int) -> Refusal:
    return Refusal(
        ErrorCode.GEOMETRY, f"{name} is {ours}, expected {theirs} as a registered party of the same namespace has it"
    )


def _fenced(engine: str) -> Refusal:
    return Refusal(
        ErrorCode.FENCED,
        f"engine {engine} was fenced: it may register once its old processes are dead, or it is resumed",
    )
