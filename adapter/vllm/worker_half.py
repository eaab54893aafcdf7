"""The worker half of the connector: carries the scheduler half's plans out on one rank's KV cache.

Owns: the order of things within a step of the model runner. Must not know: prompts, what is found. Tensors are used by
their public methods; nothing here imports vLLM. Runs on the worker's thread, which waits for copies only in a step that
computes nothing, for ``IDLE_WAIT_SECONDS`` at most.

In a step vLLM calls, in this order: ``begin_step`` (before blocks are overwritten), ``bind``, its forward pass,
``start_loads``, ``submit_stores``, ``received``, ``failed_blocks``. Where drafts are verified it asks what was received
before it lets stores begin, and some ranks do not get to begin them at all: what was planned and not begun is made up
for at the next step, before anything is overwritten.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from adapter.operation import IpcEvent, LoadStoreOp
from adapter.vllm.plans import RankGeometry, StepPlan, StepReport, Store
from adapter.worker import WorkerAdapter

#: In one process the engine would step in a busy loop while it waits for loads, and starve the threads that bring them:
#: each of its steps has the interpreter's lock for a millisecond or two, and the next chunk's copy waits for it. This
#: wait ends with the first load; a request that comes meanwhile waits as long at most.
IDLE_WAIT_SECONDS = 0.005


class WorkerHalf:
    """Stores and loads for one rank.

    Args:
        adapter: does it.
        record_event: an event that fires when all that was computed until now is; it may return None where everything
            is computed at once, as on a CPU.
    """

    def __init__(self, adapter: WorkerAdapter, record_event: Callable[[], IpcEvent | None]) -> None:
        self._adapter = adapter
        self._record_event = record_event
        self._unsaved: tuple[Store, ...] = ()

    # -- start ---------------------------------------------------------------------------------------------------------

    def register(self, caches: Mapping[str, Any], num_blocks: int, layout: str | None) -> None:
        """Take the KV cache: logical views ``[num_blocks, heads, tokens, content]``, in the order that strides tell.

        A kernel may count smaller blocks than vLLM's; so many of them make one of vLLM's.

        Raises:
            ValueError: it cannot be used; the message says why.
        """
        views = {
            name: tensor if tensor.shape[0] == num_blocks else tensor.unflatten(0, (num_blocks, -1))
            for name, tensor in caches.items()
        }
        self._adapter.register_kv_caches(views, layout=layout, block_axis=0)

    def geometry(self) -> RankGeometry:
        """For the scheduler half."""
        return RankGeometry(self._adapter.geometry.to_bytes())

    # -- a step --------------------------------------------------------------------------------------------------------

    def begin_step(self, plan: StepPlan) -> None:
        """Blocks are about to be overwritten: nothing read from them later is ever stored."""
        self.submit_stores()
        if plan.fresh_blocks:
            self._adapter.revoke_blocks(plan.fresh_blocks)

    def bind(self, plan: StepPlan) -> None:
        """This is the step's plan."""
        self._unsaved = plan.stores

    def start_loads(self, plan: StepPlan) -> None:
        """Begin to load; in a step that computes nothing, give what is under way a moment."""
        event = self._record_event() if plan.loads else None
        for load in plan.loads:
            operation = LoadStoreOp(load.keys, load.block_ids, start=load.start, skip_first_tokens=load.skip_tokens)
            self._adapter.submit_retrieve_request(load.request_id, operation, event)
        if plan.is_idle:
            self._adapter.wait_received(IDLE_WAIT_SECONDS)

    def submit_stores(self) -> None:
        """What the step was to store is computed now, or will be when its event fires. Never waits."""
        stores, self._unsaved = self._unsaved, ()
        event = self._record_event() if stores else None
        for store in stores:
            operation = LoadStoreOp(store.keys, store.block_ids, start=store.start, parent=store.parent)
            self._adapter.submit_store_request(store.request_id, operation, event)

    def received(self) -> set[str]:
        """Requests whose load is over since the last call, well or not."""
        return self._adapter.get_finished()[1]

    def failed_blocks(self) -> set[int]:
        """Blocks that loads did not fill."""
        return self._adapter.get_block_ids_with_load_errors()

    def report(self) -> StepReport:
        """For the scheduler half."""
        return StepReport(is_pending=not self._adapter.wait_settled(0))
