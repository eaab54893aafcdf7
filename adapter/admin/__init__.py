"""An HTTP admin server inside an engine's process: state, drain, resume and metrics of one worker half.

Opt-in (``AdapterConfig.admin``), because a drain is needed most when the gateway is gone. FastAPI and uvicorn (extra
``kvgate[admin]``) are imported when a server is made, and not before.
"""

from adapter.admin.report import Report
from adapter.admin.server import AdminServer

__all__ = ["AdminServer", "Report"]
