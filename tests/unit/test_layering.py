"""Who may import whom, read from the source: imports inside functions and TYPE_CHECKING blocks count too."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("gateway", "adapter", "dashboards")


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


#: Standard modules with which a module would read a clock, wait, or touch the world.
IMPURE = _words(
    "asyncio concurrent fcntl glob http io logging mmap multiprocessing os pathlib queue select selectors "
    "shutil signal socket sqlite3 subprocess sys tempfile threading time urllib"
)

#: Modules that turn bytes into code or into arbitrary objects, and ways around this test.
EXECUTABLE_MODULES = _words("pickle marshal shelve dill cloudpickle jsonpickle importlib runpy")
EXECUTABLE_CALLS = _words("eval exec compile __import__ recv_pyobj send_pyobj")


@dataclass(frozen=True)
class Room:
    """What the modules under one prefix may import, apart from themselves: the standard library, and what is listed."""

    ours: frozenset[str] = frozenset()  # of this project, each with all below it
    others: frozenset[str] = frozenset()  # distributions' top-level packages
    pure: bool = False


#: The ledger and its parts: pure, and knowing nothing of the rest of the adapter.
LEDGER = _words(
    "adapter.ledger adapter.handle_ledger adapter.actions adapter.pending adapter.reports adapter.retained "
    "adapter.totals adapter.window"
)

#: The longest prefix that fits a module decides. A module without a room is an error.
ROOMS: dict[str, Room] = {
    "gateway.wire.codes": Room(pure=True),
    "gateway.wire": Room(_words("gateway.wire"), _words("msgspec blake3")),
    "gateway.core": Room(_words("gateway.wire.codes"), _words("numpy"), pure=True),
    "gateway.access": Room(),
    "gateway.switches": Room(_words("gateway.wire.codes")),
    "gateway.lock": Room(),
    "gateway.log": Room(),
    "gateway.pool": Room(_words("gateway.wire gateway.lock"), _words("numpy msgspec")),
    "gateway.device.cuda": Room(_words("gateway.device"), _words("torch msgspec")),
    "gateway.device.devices": Room(_words("gateway.device")),
    "gateway.device": Room(others=_words("numpy")),
    # Copies for engines: asks the core as an adapter would, through its steps.
    "gateway.handles.operation": Room(_words("gateway.wire"), pure=True),
    "gateway.handles.book": Room(_words("gateway.handles.operation gateway.core gateway.wire"), pure=True),
    "gateway.handles": Room(_words("gateway.wire gateway.core gateway.device gateway.pool.mapping gateway.handles")),
    "gateway.metrics.outcomes": Room(_words("gateway.wire.codes"), pure=True),
    "gateway.metrics.table": Room(_words("gateway.wire.codes gateway.metrics.outcomes"), pure=True),
    "gateway.metrics": Room(
        _words("gateway.wire gateway.metrics.table gateway.metrics.outcomes"), _words("prometheus_client msgspec")
    ),
    "gateway.client": Room(_words("gateway.wire gateway.access"), _words("zmq msgspec")),
    "gateway.config": Room(others=_words("msgspec")),
    "gateway.listener": Room(_words("gateway.config")),
    "gateway.admin": Room(
        _words("gateway.wire gateway.metrics gateway.client gateway.config gateway.listener gateway.log"),
        _words("fastapi starlette uvicorn pydantic prometheus_client msgspec zmq"),
    ),
    # Checks of one gateway, for its operators and for those of engines: only looks.
    "gateway.doctor": Room(
        _words(
            "gateway.wire gateway.access gateway.lock gateway.pool gateway.client gateway.config gateway.run_dir "
            "gateway.metrics.process"
        ),
        _words("msgspec"),
    ),
    # A core without a daemon: traces of prompts.
    "gateway.bench": Room(_words("gateway.core gateway.wire.codes"), _words("numpy")),
    "gateway.cli": Room(
        _words(
            "gateway.wire gateway.client gateway.config gateway.lock gateway.run_dir gateway.daemon gateway.switches "
            "gateway.admin.views gateway.admin.overview gateway.admin.verdict gateway.doctor gateway.purge "
            "gateway.bench"
        ),
        _words("click rich httpx msgspec pydantic"),
    ),
    # The daemon itself: what is left of ``gateway`` wires the rooms together. Nothing of it knows engines.
    "gateway": Room(
        _words(
            "gateway.wire gateway.core gateway.access gateway.lock gateway.pool gateway.metrics.table "
            "gateway.metrics.outcomes gateway.client gateway.switches "
            "gateway.config gateway.listener gateway.log gateway.device gateway.handles"
        ),
        _words("msgspec zmq numpy"),
    ),
    # Inside an engine, for engines that ask for it: the gateway's own routes over the adapter. Imported lazily.
    "adapter.admin": Room(
        _words("adapter.log adapter.totals gateway.wire gateway.admin gateway.client gateway.config"),
        _words("fastapi starlette uvicorn prometheus_client"),
    ),
    "adapter.doctor": Room(
        _words("gateway.doctor gateway.device gateway.lock gateway.pool.mapping gateway.pool.format"),
    ),
    **dict.fromkeys(LEDGER, Room(LEDGER | _words("adapter.operation gateway.wire gateway.metrics.table"), pure=True)),
    "adapter": Room(
        LEDGER
        | _words(
            "adapter.admin gateway.wire gateway.access gateway.device gateway.lock gateway.log gateway.pool.mapping "
            "gateway.pool.format gateway.metrics.table gateway.switches"
        ),
        _words("msgspec numpy zmq prometheus_client"),
    ),
    # The one room of ours that lives in an engine: it may use what the engine is.
    "adapter.vllm": Room(
        _words("adapter gateway.wire.codes gateway.metrics.table"),
        _words("vllm torch msgspec blake3"),
    ),
    "dashboards": Room(_words("gateway.metrics.table"), _words("yaml grafana_foundation_sdk")),
}


@dataclass(frozen=True)
class Import:
    """One import as written: the module, and for ``from m import n`` also ``m.n``, which may be a module."""

    module: str
    line: int
    names: tuple[str, ...] = field(default=())

    def targets(self, modules: frozenset[str]) -> Iterator[str]:
        """The modules it really reaches: submodules where the names are such, else the module itself."""
        submodules = [f"{self.module}.{name}" for name in self.names if f"{self.module}.{name}" in modules]
        yield from submodules
        if len(submodules) < max(1, len(self.names)):
            yield self.module


def module_name(path: Path, root: Path) -> str:
    """The dotted name of a source file below ``root``."""
    parts = path.relative_to(root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports_of(tree: ast.AST, module: str, *, is_package: bool) -> Iterator[Import]:
    """Every import of a module, wherever it stands."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(alias.name, node.lineno)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = module.split(".")
                parents = parents[: len(parents) - node.level + (1 if is_package else 0)]
                base = ".".join([*parents, *([base] if base else [])])
            yield Import(base, node.lineno, tuple(alias.name for alias in node.names))


def _below(module: str, prefix: str) -> bool:
    return module == prefix or module.startswith(f"{prefix}.")


def room_of(module: str) -> str | None:
    """The prefix whose rules a module follows."""
    fitting = [prefix for prefix in ROOMS if _below(module, prefix)]
    return max(fitting, key=len, default=None)


def _refusal(module: str, target: str) -> str | None:
    """Why ``module`` may not import ``target``; None: it may."""
    prefix = room_of(module)
    if prefix is None:
        return "belongs to no room"
    room = ROOMS[prefix]
    top = target.split(".", maxsplit=1)[0]
    if top in PACKAGES:
        # A bare ``gateway`` holds the version only, and the rest of the daemon is a room of files, not of a folder.
        own = target == "gateway" or (_below(target, prefix) and room_of(target) == prefix)
        return None if own or any(_below(target, ours) for ours in room.ours) else f"{prefix} may not import {target}"
    if top == "__future__":
        return None
    if top in sys.stdlib_module_names:
        return f"{prefix} is pure and may not import {target}" if room.pure and top in IMPURE else None
    return None if top in room.others else f"{prefix} may not import {target}"


def violations(root: Path) -> list[str]:
    """Every import below ``root`` that breaks the layering, one sentence each."""
    sources = [path for package in PACKAGES for path in sorted((root / package).rglob("*.py"))]
    modules = frozenset(module_name(path, root) for path in sources)
    found = []
    for path in sources:
        module = module_name(path, root)
        tree = ast.parse(path.read_text(encoding="utf-8"), str(path))
        for item in imports_of(tree, module, is_package=path.name == "__init__.py"):
            for target in item.targets(modules):
                reason = _refusal(module, target)
                if reason:
                    found.append(f"{path.relative_to(root)}:{item.line}: {reason}")
    return found


def executable_decoding(root: Path, folders: tuple[str, ...]) -> list[str]:
    """Every place that could turn bytes into code or into arbitrary objects."""
    found = []
    for path in (path for folder in folders for path in sorted((root / folder).rglob("*.py"))):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), str(path))):
            names: list[str] = []
            if isinstance(node, ast.Import):
                names = [alias.name.split(".")[0] for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [(node.module or "").split(".")[0]]
            bad = [name for name in names if name in EXECUTABLE_MODULES]
            if isinstance(node, ast.Name) and node.id in EXECUTABLE_CALLS:
                bad.append(node.id)
            if isinstance(node, ast.Attribute) and node.attr in EXECUTABLE_CALLS - {"compile"}:
                bad.append(node.attr)
            found += [f"{path.relative_to(root)}:{node.lineno}: {name}" for name in bad]  # type: ignore[attr-defined]
    return found


def test_no_module_imports_upward() -> None:
    assert violations(ROOT) == []


def test_nothing_executable_is_ever_decoded() -> None:
    assert executable_decoding(ROOT, (*PACKAGES, "examples")) == []


@pytest.mark.parametrize(
    ("module", "line", "expected"),
    [
        ("gateway/core/slots.py", "import zmq", "may not import zmq"),
        ("gateway/core/slots.py", "from gateway.wire import messages", "may not import gateway.wire"),
        ("gateway/core/slots.py", "from time import monotonic", "is pure"),
        ("gateway/core/slots.py", "def f():\n    from gateway.pool import file", "may not import gateway.pool"),
        ("gateway/wire/codec.py", "import gateway.core.types", "may not import gateway.core.types"),
        ("gateway/wire/codec.py", "from ..core import types", "may not import gateway.core"),
        ("gateway/pool/file.py", "from gateway.core.types import SlotRecord", "may not import gateway.core.types"),
        ("gateway/admin/app.py", "from gateway.core import core", "may not import gateway.core"),
        ("gateway/admin/app.py", "import gateway.pool.format", "may not import gateway.pool.format"),
        ("gateway/metrics/collector.py", "from gateway.pool.file import PoolFile", "may not import gateway.pool.file"),
        ("gateway/doctor/pool.py", "from gateway.daemon import run", "may not import gateway.daemon"),
        ("adapter/link.py", "from gateway.doctor import places", "may not import gateway.doctor"),
        ("gateway/cli/main.py", "from gateway.core.types import Refusal", "may not import gateway.core.types"),
        ("gateway/daemon.py", "import adapter", "may not import adapter"),
        ("gateway/daemon.py", "import fastapi", "may not import fastapi"),
        ("adapter/worker.py", "from gateway.pool import file", "may not import gateway.pool"),
        ("adapter/worker.py", "from gateway.core.types import Refusal", "may not import gateway.core.types"),
        ("adapter/worker.py", "from gateway.client import GatewayClient", "may not import gateway.client"),
        ("adapter/worker.py", "def f():\n    import torch", "may not import torch"),
        ("adapter/worker.py", "from gateway.admin import views", "may not import gateway.admin"),
        ("adapter/admin/server.py", "from gateway.core import core", "may not import gateway.core"),
        ("adapter/worker.py", "import vllm", "may not import vllm"),
        ("adapter/worker.py", "from adapter.vllm import plans", "may not import adapter.vllm"),
        ("adapter/vllm/connector.py", "from gateway.client import GatewayClient", "may not import gateway.client"),
        ("adapter/ledger.py", "import threading", "is pure"),
        ("dashboards/rules.py", "from gateway.wire import codes", "may not import gateway.wire"),
        ("adapter/worker.py", "if TYPE_CHECKING:\n    import fastapi", "may not import fastapi"),
    ],
)
def test_a_planted_violation_is_found(tmp_path: Path, module: str, line: str, expected: str) -> None:
    _plant(tmp_path, module, f"import zlib\n{line}\n")

    found = violations(tmp_path)

    assert len(found) == 1
    assert found[0].startswith(f"{module}:")
    assert expected in found[0]


@pytest.mark.parametrize(
    ("module", "line"),
    [
        (
            "gateway/core/slots.py",
            "from gateway.wire.codes import Role\nfrom gateway.core.types import Refusal\nimport numpy",
        ),
        ("adapter/worker.py", "from gateway.pool.mapping import PoolMapping\nfrom gateway.metrics import table"),
        ("dashboards/rules.py", "from gateway.metrics.table import ADAPTER"),
        ("gateway/admin/app.py", "from gateway import __version__"),
    ],
)
def test_what_is_allowed_passes(tmp_path: Path, module: str, line: str) -> None:
    for name in ("gateway/__init__.py", "gateway/metrics/table.py", "gateway/pool/mapping.py"):
        _plant(tmp_path, name, "")
    _plant(tmp_path, module, line)

    assert violations(tmp_path) == []


@pytest.mark.parametrize(
    "line",
    [
        "import pickle",
        "from marshal import loads",
        "eval('1')",
        "exec('')",
        "x = s.recv_pyobj()",
        "importlib.import_module",
    ],
)
def test_planted_decoding_is_found(tmp_path: Path, line: str) -> None:
    header = "import importlib\n" if line.startswith("importlib") else ""
    _plant(tmp_path, "adapter/link.py", f"{header}def f(s):\n    {line}\n")

    assert len(executable_decoding(tmp_path, PACKAGES)) == 1


@pytest.mark.parametrize(
    ("module", "absent"),
    [
        ("adapter", "fastapi starlette uvicorn torch click rich httpx gateway.core gateway.pool.file"),
        ("adapter.doctor", "fastapi starlette uvicorn torch click rich httpx gateway.core gateway.pool.file"),
        ("gateway.daemon", "fastapi starlette uvicorn torch adapter"),
        ("gateway.admin.__main__", "torch adapter gateway.core gateway.pool"),
    ],
)
def test_a_process_loads_no_more_than_its_part(module: str, absent: str) -> None:
    code = f"import sys, {module}; print(*sorted(set({absent.split()!r}) & set(sys.modules)))"

    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )

    assert done.stdout.split() == []


def _plant(root: Path, module: str, text: str) -> None:
    path = root / module
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
