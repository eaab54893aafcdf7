import subprocess
import sys

from tests.support.daemon import REPOSITORY

#: An engine's environment need not have these, and the adapter must not slow its start with them.
UNWANTED = ("fastapi", "starlette", "uvicorn", "torch", "click", "rich", "httpx", "gateway.core", "gateway.admin")


def test_the_adapter_imports_nothing_of_the_daemon_and_no_tensor_library() -> None:
    code = f"import sys, adapter; print([name for name in {UNWANTED!r} if name in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "[]"


def test_importing_starts_nothing() -> None:
    code = "import threading, adapter; print(threading.active_count())"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "1"
