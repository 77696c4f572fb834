"""Options of a server."""

import contextlib
import ipaddress
import pathlib
from dataclasses import dataclass

from looped_actor.runs.custom import read_code
from looped_actor.runs.run import CustomCode
from looped_actor.utils.checks import at_least_one
from looped_actor.utils.errors import UserError

TOKEN = "LOOPED_ACTOR_TOKEN"
"""Environment variable with the bearer token that clients need."""
METRICS_FOLDER = "PROMETHEUS_MULTIPROC_DIR"
"""Environment variable with the folder of shared counters. prometheus_client reads it when it is imported."""


@dataclass(frozen=True)
class ServeOptions:
    """Address and limits of a server."""

    host: str = "127.0.0.1"
    port: int = 8000
    replicas: int = 1
    """Processes that share the port. Each serves all policies."""
    slots: int | None = None
    """States that loop together in a replica. None: chosen for the device."""
    max_waiting: int = 1024
    """Length of the queue of each policy in a replica; further requests are refused with 503."""
    max_loops: int | None = None
    """Maximum number of loops that a request may ask for. None: as in training."""
    max_rows: int = 256
    """Maximum number of examples in a request."""
    max_bytes: int = 2**24
    """Maximum size of the body of a request."""
    board: tuple[int, int] | None = None
    """Puzzles: rows and columns of the boards. None: as in training."""
    code: str | None = None
    """Custom environments: Python file with `env` and `build`, which is executed."""
    token: str = ""
    """Bearer token that clients need. Empty: none, allowed on the loopback interface only."""

    def __post_init__(self) -> None:
        at_least_one(self, "replicas", "max_waiting", "max_rows", "max_bytes")
        if not self.token and not _is_loopback(self.host):
            raise UserError(
                f"{self.host} can be reached by other machines: put a token into the environment variable "
                f"{TOKEN}, or serve on 127.0.0.1"
            )

    @property
    def max_open(self) -> int:
        """Maximum number of open requests of a replica; others are refused before their body is read."""
        return 2 * self.max_waiting + 64

    @property
    def custom_code(self) -> CustomCode | None:
        """Code of a custom environment. Executes its file."""
        if self.code is None:
            return None
        module = read_code(pathlib.Path(self.code))
        return CustomCode(module.build, module.env)


def _is_loopback(host: str) -> bool:
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"
