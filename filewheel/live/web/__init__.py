"""The web page of a wheel, and the JSON behind it. Needs the extra `filewheel[web]`: Starlette and uvicorn.

`access` decides who may read and act; `app` answers; `stream` sends what changes; `server` listens.
"""

from filewheel.live.web.access import Access
from filewheel.live.web.app import make_app
from filewheel.live.web.server import Server

__all__ = ["Access", "Server", "make_app"]
