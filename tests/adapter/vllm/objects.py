"""vLLM's objects, as far as the connector reads them. The tests in ``tests/engine`` use the real ones."""

from types import SimpleNamespace

BLOCK_TOKENS = 16


def request(
    request_id: str = "r",
    tokens: list[int] | None = None,
    *,
    cache_salt: str | None = None,
    lora: SimpleNamespace | None = None,
    items: tuple[SimpleNamespace, ...] = (),
    skip_reading: bool = False,
    preemptions: int = 0,
    embeds: object = None,
    resumable: bool = False,
) -> SimpleNamespace:
    """A vLLM Request."""
    tokens = list(range(100)) if tokens is None else tokens
    return SimpleNamespace(
        request_id=request_id,
        prompt_token_ids=tokens,
        num_prompt_tokens=len(tokens),
        cache_salt=cache_salt,
        lora_request=lora,
        mm_features=list(items),
        skip_reading_prefix_cache=skip_reading,
        num_preemptions=preemptions,
        prompt_embeds=embeds,
        prompt_is_token_ids=None,
        resumable=resumable,
    )


def item(identifier: str | None, offset: int, length: int) -> SimpleNamespace:
    """A multimodal item of a prompt."""
    return SimpleNamespace(identifier=identifier, mm_position=SimpleNamespace(offset=offset, length=length))


def lora(path: str, name: str = "tuned", number: int = 1) -> SimpleNamespace:
    """A LoRA adapter that a request asks for."""
    return SimpleNamespace(lora_name=name, lora_path=path, lora_int_id=number)


def table(block_ids: list[int]) -> SimpleNamespace:
    """What a request was given."""
    return SimpleNamespace(get_block_ids=lambda: (block_ids,))


class Step:
    """Makes a SchedulerOutput: requests that are scheduled, and what they hold."""

    def __init__(self) -> None:
        self._new: list[SimpleNamespace] = []
        self._cached: list[tuple[str, int, list[int] | None]] = []
        self._resumed: set[str] = set()
        self._scheduled: dict[str, int] = {}
        self._tables: dict[str, list[int]] = {}
        self._copies: list[SimpleNamespace] = []

    def new(self, request_id: str, blocks: list[int], scheduled: int, computed: int = 0) -> "Step":
        """A request's first step."""
        self._new.append(SimpleNamespace(req_id=request_id, num_computed_tokens=computed, block_ids=(blocks,)))
        self._scheduled[request_id], self._tables[request_id] = scheduled, blocks
        return self

    def running(
        self, request_id: str, blocks: list[int], scheduled: int, computed: int, given: list[int] | None = None
    ) -> "Step":
        """A further step; ``given`` are blocks it did not have before."""
        self._cached.append((request_id, computed, given))
        self._scheduled[request_id], self._tables[request_id] = scheduled, blocks
        return self

    def resumed(self, request_id: str, blocks: list[int], scheduled: int, computed: int) -> "Step":
        """A preempted request's next step."""
        self._resumed.add(request_id)
        return self.running(request_id, blocks, scheduled, computed, blocks)

    def copies_to(self, block: int) -> "Step":
        """A block is copied on write."""
        self._copies.append(SimpleNamespace(dst_block_id=block))
        return self

    def output(self) -> SimpleNamespace:
        cached = SimpleNamespace(
            req_ids=[request_id for request_id, _, _ in self._cached],
            num_computed_tokens=[computed for _, computed, _ in self._cached],
            new_block_ids=[None if given is None else (given,) for _, _, given in self._cached],
            resumed_req_ids=self._resumed,
        )
        return SimpleNamespace(
            scheduled_new_reqs=self._new,
            scheduled_cached_reqs=cached,
            num_scheduled_tokens=self._scheduled,
            total_num_scheduled_tokens=sum(self._scheduled.values()),
            kv_connector_block_state=SimpleNamespace(get_block_ids=lambda name: (self._tables[name],)),
            kv_cache_block_copies=self._copies or None,
        )


def report(finished: tuple[str, ...] = (), invalid: tuple[int, ...] = (), meta: object = None) -> SimpleNamespace:
    """A KVConnectorOutput."""
    return SimpleNamespace(
        finished_recving=set(finished), invalid_block_ids=set(invalid), kv_connector_worker_meta=meta
    )
