"""The compose file's and the manifests' layout, laid by hand and tried: other users, no capabilities, a read-only tree.

Users, groups, paths, mount options and commands are the files' own; the pool is smaller, and the ports are free ones.
"""

import json
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.deploy.files import document, image_environ
from tests.deploy.test_compose import ENGINE, GATEWAY, VOLUME
from tests.support.container import Node
from tests.support.daemon import COMMAND, REPOSITORY, Daemon
from tests.support.namespaces import needs_mounts
from tests.support.poll import until

pytestmark = needs_mounts  # which takes root, as becoming another user does

POOL = "--pool-size=32MiB"
SLABS = {"KVGATE_SLAB_SIZE": "4MiB", "KVGATE_MIN_CHUNK_BYTES": "256KiB"}  # the demo engine's chunks take 4 MiB
GROUP = GATEWAY["user"].split(":")[1]
PYTHON = str(Path(sys.executable))


@contextmanager
def node(volumes: Mapping[str, str]) -> Iterator[Node]:
    base = Path(tempfile.mkdtemp(prefix="kvgate-test-", dir="/dev/shm"))
    try:
        with Node(base, volumes) as laid:
            yield laid
    finally:
        shutil.rmtree(base)


class Gateway(Daemon):
    """``kvgate serve`` in a container of a node."""

    def __init__(self, on: Node, container: tuple[str, ...], words: list[str]) -> None:
        environ = {name: str(on.at(value)) if "/" in value else value for name, value in image_environ().items()}
        self._base = Path(tempfile.mkdtemp(prefix="kvgate-test-", dir="/dev/shm"))
        super().__init__(
            {**SLABS, **environ},
            (*words[1:], POOL, "--probe=127.0.0.1:0", "--admin=127.0.0.1:0"),
            own_run_dir=False,
            base=self._base,
            prefix=container,
        )
        self.environ = environ
        self._seen = on.seen(image_environ()["KVGATE_RUN_DIR"])
        self._admin_seen = on.seen(image_environ()["KVGATE_ADMIN_DIR"])

    @property
    def admin_dir(self) -> Path:
        return self._admin_seen

    def wait_ready(self, seconds: float = 30.0) -> Daemon:
        super().wait_ready(seconds)
        self.run_dir = self._seen  # the way there from outside
        return self

    def close(self) -> None:
        super().close()
        shutil.rmtree(self._base)


def status_of(pid: int) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def demo_engine(on: Node, container: tuple[str, ...]) -> str:
    """What the demo engine says in a container of this node."""
    run_dir = on.at(ENGINE["command"][0])
    done = on.run(container, PYTHON, REPOSITORY / "examples" / "engine.py", run_dir, environ=ENGINE["environment"])
    assert done.returncode == 0, done.stderr
    return done.stdout


def load_again(on: Node, container: tuple[str, ...]) -> None:
    """The demo engine loads what it stored. It waits 0.2 s for its lookup, and a busy machine may take longer."""
    until(lambda: "loaded 768 tokens, 0 blocks failed, value 0.5" in demo_engine(on, container), 90, "a load")


def owned(options: str, uid: str, gid: str) -> str:
    """A tmpfs' mount options, with another owner."""
    return re.sub(r"gid=\d+", f"gid={gid}", re.sub(r"\buid=\d+", f"uid={uid}", options))


def of_user(user: str) -> str:
    """The shared volume's mount options, as if the gateway's user were this one."""
    return owned(VOLUME["o"], user.partition(":")[0], GROUP)


@pytest.mark.parametrize("user", [GATEWAY["user"], "65534:65534"])
def test_the_compose_files_gateway_serves_the_demo_engine(user: str) -> None:
    (private,) = GATEWAY["tmpfs"]
    path, _, options = private.partition(":")
    uid, gid = user.split(":")
    volumes = {"/kvgate": of_user(user), path: owned(options, uid, gid)}
    with node(volumes) as laid:
        container = laid.container(user, [GROUP])
        engine = laid.container(ENGINE["user"], ENGINE["group_add"])
        with Gateway(laid, container, GATEWAY["command"]).start() as gateway:
            status = status_of(gateway.pid)
            assert status["Uid"].split() == [uid] * 4
            assert {int(status[name], 16) for name in ("CapPrm", "CapEff", "CapInh", "CapBnd", "CapAmb")} == {0}
            assert status["NoNewPrivs"] == "1"
            for pid in gateway.processes():
                assert status_of(pid)["Uid"] == status["Uid"]

            assert demo_engine(laid, engine).startswith("stored, gateway healthy")
            load_again(laid, engine)

            checked = laid.run(container, *COMMAND, *GATEWAY["healthcheck"]["test"][2:], environ=gateway.environ)
            assert checked.returncode == 0, checked.stderr
            assert gateway.stop() == 0


def test_the_tree_is_read_only_and_the_operators_directory_is_out_of_an_engines_reach() -> None:
    volumes = {"/kvgate": VOLUME["o"], "/run/kvgate": "mode=0700,uid=10001,gid=10001"}
    with node(volumes) as laid:
        container = laid.container(GATEWAY["user"])
        engine = laid.container(ENGINE["user"], ENGINE["group_add"])
        for place in (REPOSITORY, Path(tempfile.gettempdir()), laid.base.parent, laid.base):
            touched = laid.run(laid.container("0:0"), "touch", place / "kvgate-was-here")
            assert "Read-only file system" in touched.stderr, place
        with Gateway(laid, container, GATEWAY["command"]).start():
            assert {"gateway.sock", "pool"} <= {*laid.run(engine, "ls", laid.at("/kvgate/run")).stdout.split()}
            for path in ("/run/kvgate", "/run/kvgate/admin"):
                assert "Permission denied" in laid.run(engine, "ls", laid.at(path)).stderr
            outsider = laid.run(laid.container("65533:65533"), "ls", laid.at("/kvgate"))
            assert "Permission denied" in outsider.stderr


def test_the_manifests_init_container_prepares_a_directory_of_roots_again_and_again() -> None:
    pod = document("daemonset.yaml")["spec"]["template"]["spec"]
    (prepare,) = pod["initContainers"]
    (kvgate,) = pod["containers"]
    of_pod = pod["securityContext"]
    user = f"{of_pod['runAsUser']}:{of_pod['runAsGroup']}"
    engines = document("engine.yaml")["spec"]["template"]["spec"]["securityContext"]["supplementalGroups"]
    security = prepare["securityContext"]
    with node({"/kvgate": "", "/run/kvgate": "mode=0777"}) as laid:
        container = laid.container(user)
        root = laid.container(f"{security['runAsUser']}:{security['runAsGroup']}", (), security["capabilities"]["add"])
        command = [str(laid.at(word)) if word.startswith("/") else word for word in prepare["command"]]
        engine = laid.container("65534:65534", [str(group) for group in engines])
        for chunks in (0, 3):  # each time that a pod starts on this node
            prepared = laid.run(root, *command)
            assert prepared.returncode == 0, prepared.stderr
            with Gateway(laid, container, kvgate["args"]).start() as gateway:
                assert gateway.snapshot().slots.ready == chunks, "what was stored before the restart"
                if not chunks:
                    assert demo_engine(laid, engine).startswith("stored, gateway healthy")
                load_again(laid, engine)
                assert gateway.stop() == 0


def test_the_init_container_needs_the_capabilities_it_has() -> None:
    pod = document("daemonset.yaml")["spec"]["template"]["spec"]
    (prepare,) = pod["initContainers"]
    with node({"/kvgate": ""}) as laid:
        command = [str(laid.at(word)) if word.startswith("/") else word for word in prepare["command"]]
        too_few = ((), ("FOWNER",), ("CHOWN",))
        failed = [laid.run(laid.container("0:0", (), capabilities), *command) for capabilities in too_few]
        done = laid.run(laid.container("0:0", (), prepare["securityContext"]["capabilities"]["add"]), *command)

    assert [run.returncode for run in failed] == [1, 1, 1]
    assert done.returncode == 0


def test_a_gateway_outside_the_group_of_its_engines_is_told_so() -> None:
    """What the compose file's run_dir_group is for: without it no engine of another user gets in."""
    with node({"/kvgate": of_user("65534:65534"), "/run/kvgate": "mode=0777"}) as laid:
        gateway = Gateway(laid, laid.container("65534:65534"), GATEWAY["command"])
        with gateway:
            gateway.spawn()
            assert gateway.wait() == 1
            (line,) = gateway.log_lines("start_failed")
            assert f"group {GROUP}" in str(line["reason"])
            assert "uid 65534" in json.dumps(line)
