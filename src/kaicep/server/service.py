"""The service of a running deployment: one ASGI application, for programs and for people.

Requests read what the deployment's thread has laid out on the board; what takes longer is done in processes
of their own. Only to register and to remove a query is that thread asked.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Self

from kaicep.connectors.listening import Guard, Listening
from kaicep.errors import Diagnostic, Mistake
from kaicep.server.app import MOST, Application
from kaicep.storage.disk import replace_file

if TYPE_CHECKING:
    from kaicep.endtoend.deployment import Deployment
    from kaicep.endtoend.spark_deployment import SparkDeployment

__all__ = ["ADDRESS", "Service"]

ADDRESS = "address.json"
"""The file of the state folder that says where the service is."""


class Service:
    """Listens while it is entered. `url` says where."""

    def __init__(self, deployment: Deployment | SparkDeployment) -> None:
        listen = deployment.config.listen
        self._file = deployment.config.state / ADDRESS
        self.application = Application(deployment)
        app = Guard(self.application.asgi, listen.host, self.application.admit, MOST)
        try:
            self._server = Listening(app, listen.host, listen.port)
        except OSError as error:
            hint = (
                "another program listens there, or the address is not this machine's; port 0 is any free one"
            )
            where = f"{listen.host}:{listen.port}"
            raise Mistake(Diagnostic(f"cannot listen on {where}: {error.strerror}", hint=hint)) from None
        self.url = self._server.url

    def __enter__(self) -> Self:
        self._server.start()
        self.application.board.start()
        replace_file(self._file, json.dumps({"url": self.url}).encode())
        return self

    def __exit__(self, *error: object) -> None:
        self._file.unlink(missing_ok=True)
        self.application.close()
        self._server.stop()
