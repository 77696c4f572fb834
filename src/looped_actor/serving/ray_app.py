"""The server as a Ray Serve application, for a cluster.

serve run looped_actor.serving.ray_app:app policy=rush-hour-micro replicas=2
"""

from typing import Any

from looped_actor.serving.app import make_app
from looped_actor.serving.metrics import Metrics
from looped_actor.serving.model import ServedModel
from looped_actor.serving.options import ServeOptions
from looped_actor.serving.server import load_policies
from looped_actor.utils.errors import UserError


def app(arguments: dict[str, str]) -> Any:
    """Return the application; Ray Serve is its proxy and restarts its replicas.

    Args:
      arguments: `policy`, a name or a folder on a file system that all nodes share; `name`, its name in URLs;
        `replicas`; `accelerators`, per replica; and the integer fields of `ServeOptions`.
    """
    from ray import serve

    given = dict(arguments)
    policy, accelerators = given.pop("policy", ""), float(given.pop("accelerators", "0"))
    name = given.pop("name", "") or policy.rstrip("/").rpartition("/")[2]
    if not policy:
        raise UserError("give policy=NAME or policy=FOLDER")
    numbers: dict[str, Any] = {key: int(value) for key, value in given.items()}
    options = ServeOptions(**numbers)

    def build() -> Any:
        metrics = Metrics()
        (loaded,) = load_policies({name: policy}, options).values()
        return make_app({name: ServedModel(name, loaded, options, metrics)}, options, metrics)

    deployment: Any = serve.deployment(
        serve.ingress(build)(),
        name="looped-actor",
        num_replicas=options.replicas,
        max_ongoing_requests=options.max_open,
        ray_actor_options={"num_gpus": accelerators},
    )
    return deployment.bind()
