"""The scheduler half of the connector: what of a prompt is loaded, and which chunks are stored when.

Owns: for each request, what was asked, promised, planned and stored. Must not know: copies, tensors. vLLM's objects
are read by attribute; nothing here imports it. Runs on the engine core's thread, and waits for the gateway for
``LOOKUP_WAIT_SECONDS`` a step at most.

The rules that vLLM sets, and where they are kept:

- A request that is asked again before its lookup is answered gets None again; nothing else happens (``matched``).
- What one block would bring is computed: the last token has to be, whatever is found.
- The first blocks of a chunk may be vLLM's own, shared with running requests: they are skipped (``planned_load``).
- After a failed load vLLM asks again. The answer is 0 until the request was preempted or ended: the chunk that failed
  would be found again, and so on for ever.
- Blocks are never held back for stores. Instead every block that vLLM gives out is told to the workers, which give up
  what they have not copied of it.
- A chunk is stored in the step that completes it, so that a long prompt's chunks are there for others before its last.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from adapter.geometry import Geometry
from adapter.scheduler import Pending, SchedulerAdapter
from adapter.vllm.identity import LoraFingerprints, extra_keys, why_not_cached
from adapter.vllm.plans import Load, StepPlan, StepReport, Store

if TYPE_CHECKING:
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.outputs import KVConnectorOutput
    from vllm.v1.request import Request

#: What all lookups of one step may wait for answers, which mostly take a quarter of a millisecond. Without it a request
#: would wait for the next step, as long as a step takes.
LOOKUP_WAIT_SECONDS = 0.002
#: After its last tokens the engine steps on so long at most, until nothing is pending: its metrics travel on steps.
LINGER_SECONDS = 1.0


@dataclass(slots=True)
class _Tracked:
    """One request.

    Attributes:
        salt, extra: what its keys are made of besides tokens.
        keys: of its full chunks; empty until they are needed, and after a reset.
        is_asked: a lookup was begun and is not void.
        local_tokens: what vLLM held itself when it last asked.
        stored_chunks: leading chunks that the gateway has, or was offered.
        load: given to the workers, and not reported received yet.
        failed_at: number of preemptions when a load failed; -1: none did.
        may_store: what it computes from now on is what its keys say.
    """

    request: Request
    salt: str
    extra: list[bytes | None] | None
    keys: list[bytes] = field(default_factory=list)
    is_asked: bool = False
    local_tokens: int = 0
    stored_chunks: int = 0
    load: Load | None = None
    failed_at: int = -1
    may_store: bool = True


class SchedulerHalf:
    """Plans loads and stores for one engine.

    Args:
        adapter: asks the gateway.
        clock: monotonic seconds; a seam for tests.
    """

    def __init__(self, adapter: SchedulerAdapter, clock: Callable[[], float] = time.monotonic) -> None:
        self._adapter = adapter
        self._clock = clock
        self._chunk_tokens = adapter.identity.chunk_tokens
        self._block_tokens = adapter.identity.block_tokens
        self._loras = LoraFingerprints()
        self._tracked: dict[str, _Tracked] = {}
        self._loads: list[Load] = []  # planned since the last step
        self._wait_left = LOOKUP_WAIT_SECONDS  # of this step
        self._is_pending = False  # in a worker, as of its last report
        self._linger_until = 0.0

    def set_geometries(self, geometries: Iterable[Geometry]) -> None:
        """The KV cache of every rank; nothing is found before.

        Raises:
            ValueError: the ranks' caches are not parts of one.
        """
        by_namespace = {self._adapter.identity.namespace(geometry): geometry for geometry in geometries}
        if len(by_namespace) != 1:
            raise ValueError(f"kvgate does not support ranks with unlike KV caches: {[*by_namespace.values()]}")
        self._adapter.set_geometry(by_namespace.popitem()[1])

    # -- a request -----------------------------------------------------------------------------------------------------

    def matched(self, request: Request, local_tokens: int) -> int | None:
        """Tokens that can be loaded beyond those that vLLM holds. None: not known yet, ask again in the next step."""
        tracked = self._track(request)
        if tracked is None:
            return 0
        tracked.local_tokens = local_tokens
        tracked.may_store = True  # it begins from nothing: whatever it computes is of now
        if request.skip_reading_prefix_cache or tracked.failed_at == request.num_preemptions:
            tracked.stored_chunks = 0
            return 0
        found = self._look_up(tracked)
        if found is Pending.PENDING:
            return None
        lease_ended = found == 0 and tracked.stored_chunks > 0
        tracked.stored_chunks = found // self._chunk_tokens
        if lease_ended:  # it has waited for blocks too long: what was found then may still be there
            tracked.is_asked = False
            return None
        gained = found - local_tokens
        return gained if gained > self._block_tokens else 0

    def allocated(self, request: Request, blocks: KVCacheBlocks, external_tokens: int) -> None:
        """The request was given blocks, ``external_tokens`` of them to be loaded into."""
        tracked = self._tracked.get(request.request_id)
        if tracked is None or tracked.load is not None:
            return
        tracked.is_asked = False  # whatever comes next is a new attempt
        if external_tokens == 0:
            self._adapter.release_lookup(request.request_id)
            return
        tracked.load = self._planned_load(tracked, list(blocks.get_block_ids()[0]), external_tokens)
        self._loads.append(tracked.load)
        chunk = self._chunk_tokens
        self._adapter.release_lookup(request.request_id, end=tracked.load.start)
        self._adapter.release_lookup(request.request_id, start=tracked.load.start + len(tracked.load.keys) * chunk)

    def finished(self, request: Request) -> None:
        """The request is over. A load of it that is under way is reported by the workers all the same."""
        if self._tracked.pop(request.request_id, None) is not None:
            self._adapter.end_session(request.request_id)

    # -- a step --------------------------------------------------------------------------------------------------------

    def plan(self, output: SchedulerOutput) -> StepPlan:
        """What the workers are to do in this step."""
        loads, self._loads = tuple(self._loads), []
        self._wait_left = LOOKUP_WAIT_SECONDS
        is_idle = output.total_num_scheduled_tokens == 0
        if not is_idle:
            self._linger_until = self._clock() + LINGER_SECONDS
        fresh = [block for load in loads for block in load.block_ids[load.skip_tokens // self._block_tokens :]]
        fresh += self._fresh_blocks(output)
        return StepPlan(loads, tuple(self._stores(output)), tuple(fresh), is_idle)

    def heard(self, output: KVConnectorOutput) -> None:
        """What the workers reported of a step."""
        report = output.kv_connector_worker_meta
        if isinstance(report, StepReport):
            self._is_pending = report.is_pending
        invalid = output.invalid_block_ids
        if invalid:
            for tracked in self._tracked.values():
                if tracked.load is not None and not invalid.isdisjoint(tracked.load.block_ids):
                    self._load_failed(tracked)
        for request_id in output.finished_recving or ():
            received = self._tracked.get(request_id)
            if received is not None:
                received.load = None
                self._adapter.end_lookup(request_id)

    @property
    def wants_steps(self) -> bool:
        """Whether the engine should go on stepping though it has nothing to compute: for the last numbers to travel."""
        return self._is_pending and self._clock() < self._linger_until

    def reset(self) -> bool:
        """Forget everything stored so far: nothing of before is found again. At once, and always True.

        Requests that run were computed before the reset, in part: they store nothing until they begin anew.
        """
        for tracked in self._tracked.values():
            tracked.keys = []
            tracked.is_asked = tracked.may_store = False
        return self._adapter.reset()

    # -- within --------------------------------------------------------------------------------------------------------

    def _track(self, request: Request) -> _Tracked | None:
        tracked = self._tracked.get(request.request_id)
        if tracked is not None:
            return tracked
        reason = why_not_cached(request)
        lora = request.lora_request
        fingerprint = "" if reason or lora is None else self._loras.of(lora)
        if fingerprint is None:
            reason = "the files of its LoRA adapter are not here, or have changed since it was loaded"
        if reason or fingerprint is None:
            self._adapter.log.warning("request_not_cached", reason=reason, request=request.request_id)
            return None
        tracked = _Tracked(request, request.cache_salt or "", extra_keys(request, self._chunk_tokens, fingerprint))
        self._tracked[request.request_id] = tracked
        return tracked

    def _look_up(self, tracked: _Tracked) -> int | Pending:
        request_id = tracked.request.request_id
        if not tracked.is_asked:
            tracked.is_asked = True
            self._adapter.maybe_submit_lookup_request(
                request_id, tracked.request.prompt_token_ids, tracked.salt, tracked.extra
            )
        found = self._adapter.check_lookup_result(request_id)
        if found is Pending.PENDING and self._wait_left > 0:
            began = self._clock()
            found = self._adapter.wait_lookup_result(request_id, self._wait_left)
            self._wait_left -= self._clock() - began
        return found

    def _keys(self, tracked: _Tracked) -> list[bytes]:
        if not tracked.keys:
            request = tracked.request
            tracked.keys = self._adapter.chunk_keys(
                request.request_id, request.prompt_token_ids, tracked.salt, tracked.extra
            )
        return tracked.keys

    def _planned_load(self, tracked: _Tracked, block_ids: list[int], external_tokens: int) -> Load:
        chunk, block = self._chunk_tokens, self._block_tokens
        first = tracked.local_tokens // chunk
        end = tracked.local_tokens + external_tokens
        if end % chunk:
            raise ValueError(f"vLLM takes {external_tokens} tokens, up to {end}: expected an edge of {chunk} tokens")
        return Load(
            tracked.request.request_id,
            tuple(self._keys(tracked)[first : end // chunk]),
            tuple(block_ids[first * chunk // block : end // block]),
            start=first * chunk,
            skip_tokens=tracked.local_tokens - first * chunk,
        )

    def _stores(self, output: SchedulerOutput) -> Iterator[Store]:
        """Of each request in this step, the chunks of its prompt that the step completes."""
        chunk = self._chunk_tokens
        for request_id, computed in self._computed_tokens(output):
            tracked = self._tracked.get(request_id)
            if tracked is None or not tracked.may_store:
                continue
            tokens = min(computed + output.num_scheduled_tokens[request_id], tracked.request.num_prompt_tokens)
            first, end = tracked.stored_chunks, tokens // chunk
            if end <= first:
                continue
            tables = output.kv_connector_block_state.get_block_ids(request_id)
            blocks = tables[0][first * chunk // self._block_tokens : end * chunk // self._block_tokens]
            keys = self._keys(tracked)
            tracked.stored_chunks = end
            yield Store(
                request_id,
                tuple(keys[first:end]),
                tuple(blocks),
                start=first * chunk,
                parent=keys[first - 1] if first else None,
            )

    @staticmethod
    def _computed_tokens(output: SchedulerOutput) -> Iterator[tuple[str, int]]:
        for new in output.scheduled_new_reqs:
            yield new.req_id, new.num_computed_tokens
        yield from zip(
            output.scheduled_cached_reqs.req_ids, output.scheduled_cached_reqs.num_computed_tokens, strict=True
        )

    def _fresh_blocks(self, output: SchedulerOutput) -> Iterator[int]:
        """Blocks given out in this step; those before the computed tokens are shared, or were loaded."""
        for new in output.scheduled_new_reqs:
            yield from new.block_ids[0][new.num_computed_tokens // self._block_tokens :]
        cached = output.scheduled_cached_reqs
        for request_id, computed, blocks in zip(
            cached.req_ids, cached.num_computed_tokens, cached.new_block_ids, strict=True
        ):
            if blocks is not None:
                held = computed // self._block_tokens if request_id in cached.resumed_req_ids else 0
                yield from blocks[0][held:]
        for copy in output.kv_cache_block_copies or ():
            yield copy.dst_block_id

    def _load_failed(self, tracked: _Tracked) -> None:
        request = tracked.request
        tracked.failed_at = request.num_preemptions
        tracked.stored_chunks = 0  # the gateway may have lost them: they are offered again
        self._adapter.log.warning("load_failed", reason=f"gateway {self._adapter.state}", request=request.request_id)
