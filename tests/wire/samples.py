"""One message of every type, with every field set to something that is not its default."""

from gateway.wire import codes, messages

BOOT = bytes(range(16))
PARTY = bytes(range(16, 32))
POOL = bytes(range(32, 48))
NAMESPACE = bytes(range(48, 64))
KEYS = (b"\x01" * 32, b"\x02" * 32)
ASKED = {"number": 7, "boot": BOOT, "deadline": 12.5}
ANSWERED = {"number": 7, "boot": BOOT}
ASKED_BY = {"requested_by": "token", "peer": "127.0.0.1:5000", "reason": "upgrade"}

OPERATION = messages.OperationInfo(
    number=41,
    request_id="request-1",
    kind=codes.OperationKind.STORE,
    phase=codes.Phase.SETTLED,
    age_seconds=0.5,
    chunks=2,
    outcome=codes.OutcomeKind.FAILED,
    reason=codes.Reason.COPY_ERROR,
    chunks_done=1,
    settled_at=1700000000.25,
)
GAUGE = messages.Sample("pending_stores", (), 3.0)
COUNTER = messages.Sample("operations", ("store", "stored"), 9.0)
HISTOGRAM = messages.HistogramSample("lookup_wait_seconds", (), (1, 0, 2), 0.75)
STATS = messages.AdapterStats(
    state=codes.State.HEALTHY,
    gauges=(GAUGE,),
    counters=(COUNTER,),
    histograms=(HISTOGRAM,),
    pending=(OPERATION,),
    settled=(OPERATION,),
)
DRAIN = messages.DrainInfo(
    id="0a0b",
    state=codes.Lifecycle.DRAINED,
    reason="upgrade",
    requested_by="token",
    requested_at=1700000000.0,
    deadline_at=1700000030.0,
    finished_at=1700000001.0,
    flush=True,
    exit=True,
    outcome=codes.DrainOutcome.COMPLETED,
    remaining=messages.Remaining(operations=1, leases=2),
    done=3,
    aborted=4,
    engines=("engine-a",),
)
ENGINE = messages.EngineInfo(
    name="engine-a",
    model="model-a",
    state=codes.Lifecycle.READY,
    fenced=False,
    parties=(
        messages.PartyInfo(
            party=PARTY.hex(),
            role=codes.Role.WORKER,
            group="group-1",
            pid=12,
            namespace=NAMESPACE.hex(),
            shard=0,
            replica=0,
            state=codes.State.HEALTHY,
            registered_at=1700000000.0,
            last_heartbeat_at=1700000001.0,
            reserved_bytes=4096,
            quarantined_bytes=8192,
            read_leases=1,
            sessions=0,
            software="kvgate-adapter/0.1.0",
        ),
    ),
    pending_stores=3,
    pending_retrieves=2,
    retained_events=1,
    last_heartbeat_at=1700000001.0,
    gauges=(GAUGE,),
    counters=(COUNTER,),
    histograms=(HISTOGRAM,),
)

REQUESTS: tuple[messages.AnyRequest, ...] = (
    messages.Hello(
        number=7, oldest_version=1, newest_version=1, pool_format=1, monotonic=3.5, software="kvgate-adapter/0.1.0"
    ),
    messages.Register(
        **ASKED,
        party=PARTY,
        role=codes.Role.WORKER,
        group="group-1",
        engine="engine-a",
        model="model-a",
        namespace=NAMESPACE,
        shard=1,
        shard_count=2,
        replica=1,
        replicas=3,
        chunk_bytes=32 << 20,
        holds_nothing=False,
        pid=12,
        software="kvgate-adapter/0.1.0",
        chunk_tokens=128,
    ),
    messages.Unregister(**ASKED, party=PARTY),
    messages.Ping(
        **ASKED,
        party=PARTY,
        next_operation=42,
        operations=(40, 41),
        next_session=6,
        sessions=(5,),
        stats=STATS,
    ),
    messages.Lookup(**ASKED, party=PARTY, session=5, namespace=NAMESPACE, keys=KEYS),
    messages.Release(**ASKED, party=PARTY, session=5, start=0, end=2),
    messages.EndSession(**ASKED, party=PARTY, session=5),
    messages.Reserve(**ASKED, party=PARTY, operation=41, keys=KEYS, depth=3, parent=b"\x03" * 32),
    messages.Commit(**ASKED, party=PARTY, operation=41, pool_id=POOL, reservations=(1 << 40, (1 << 40) + 1)),
    messages.Abort(**ASKED, party=PARTY, operation=41, reservations=(1 << 40,)),
    messages.Read(**ASKED, party=PARTY, operation=41, keys=KEYS),
    messages.EndRead(**ASKED, party=PARTY, operation=41),
    messages.Store(
        **ASKED,
        party=PARTY,
        operation=41,
        keys=KEYS,
        blocks=b"\x05\0\0\0\x09\0\0\0",
        event=b"event-1",
        cell=6,
        depth=3,
        parent=b"\x03" * 32,
    ),
    messages.Retrieve(
        **ASKED,
        party=PARTY,
        operation=41,
        keys=KEYS,
        blocks=b"\x05\0\0\0\x09\0\0\0",
        event=b"event-1",
        skip_blocks=1,
    ),
    messages.Cancel(**ASKED, party=PARTY, operation=41),
    messages.ReleaseEvent(**ASKED, party=PARTY, operation=41),
    messages.SnapshotRequest(**ASKED, transfers=True),
    messages.Drain(**ASKED, **ASKED_BY, engine="engine-a", deadline_seconds=0.0, flush=True, exit=True),
    messages.Resume(**ASKED, **ASKED_BY, engine="engine-a"),
    messages.Clear(**ASKED, **ASKED_BY, model="model-a", namespace=NAMESPACE.hex(), all=True, dry_run=True),
    messages.Fence(**ASKED, **ASKED_BY, engine="engine-a"),
    messages.Switch(
        **ASKED, **ASKED_BY, scope=codes.SwitchScope.MODEL, name="org/model-a", mode=codes.SwitchMode.NO_STORE
    ),
)

REPLIES: tuple[messages.AnyReply, ...] = (
    messages.Error(**ANSWERED, code=codes.ErrorCode.DRAINING, message="draining", retry_after_ms=250),
    messages.Done(**ANSWERED),
    messages.Welcome(
        **ANSWERED,
        version=1,
        pool_format=1,
        pool_id=POOL,
        state=codes.Lifecycle.READY,
        health=codes.Health.HEALTHY,
        monotonic=3.75,
        max_message_bytes=1 << 20,
        max_keys=8192,
        heartbeat_seconds=1.0,
        lease_seconds=10.0,
        reservation_seconds=30.0,
    ),
    messages.Pong(
        **ANSWERED,
        state=codes.Lifecycle.DRAINING,
        health=codes.Health.DEGRADED,
        known=True,
        reason="admin has exited",
        drain=messages.DrainNotice(id="0a0b", deadline=42.5),
        sessions=(5,),
        lease_deadline=22.5,
    ),
    messages.Found(**ANSWERED, chunks=2, lease_deadline=22.5),
    messages.Reserved(
        **ANSWERED,
        pool_id=POOL,
        grants=(
            messages.SlotGrant(codes.ReserveStatus.GRANTED, 3, 12288, 1 << 40),
            messages.SlotGrant(codes.ReserveStatus.EXISTS),
        ),
        reservation_deadline=42.5,
    ),
    messages.Committed(**ANSWERED, results=(codes.CommitStatus.COMMITTED, codes.CommitStatus.EXISTS)),
    messages.Readable(
        **ANSWERED,
        pool_id=POOL,
        slots=(messages.ReadSlot(3, 12288, 1 << 40), messages.ReadSlot()),
        lease_deadline=42.5,
    ),
    messages.Copied(**ANSWERED, results=(codes.CopyStatus.COPIED, codes.CopyStatus.MISSING), event=b"event-2"),
    messages.Drained(**ANSWERED, already=True, drain=DRAIN),
    messages.Cleared(**ANSWERED, chunks=5, bytes=20480, held_chunks=1),
    messages.SnapshotReply(
        **ANSWERED,
        version="0.1.0",
        state=codes.Lifecycle.READY,
        health=codes.Health.HEALTHY,
        ready=True,
        checks=(messages.CheckInfo(name="loop", ok=True, critical=True, age_seconds=0.01, reason=""),),
        started_at=1700000000.0,
        progress=1.0,
        drain=DRAIN,
        engines=(ENGINE,),
        namespaces=(
            messages.NamespaceInfo(
                namespace=NAMESPACE.hex(), model="model-a", chunks=5, bytes=20480, last_hit_at=1700000000.5
            ),
        ),
        slots=messages.SlotCounts(
            ready=5,
            writing=1,
            quarantined=1,
            ready_bytes=20480,
            writing_bytes=4096,
            quarantined_bytes=4096,
            free_bytes=8359936,
            pool_bytes=8388608,
            allocated_bytes=8400896,
        ),
        gauges=(GAUGE,),
        counters=(COUNTER,),
        histograms=(HISTOGRAM,),
        transfers=(messages.TransferInfo(engine="engine-a", party=PARTY.hex(), operation=OPERATION),),
        run_dir="/run/kvgate",
        loop_age_seconds=0.01,
    ),
)


def tag(message: messages.Request | messages.Reply) -> str:
    return str(message.__struct_config__.tag)
