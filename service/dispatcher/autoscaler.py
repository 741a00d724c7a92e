"""Request nodes from Ray's autoscaler, by a small program that runs on Ray."""

import json
import logging
import shlex
from collections.abc import Sequence
from datetime import datetime, timedelta
from uuid import uuid4

from service.dispatcher.context import DispatcherContext, passed
from service.dispatcher.executor import ExecutorUnavailable, SubmissionRefused
from service.scheduling import autoscaling
from service.scheduling.autoscaling import Bundles
from service.scheduling.nodes import Cluster
from service.scheduling.packing import Demand

logger = logging.getLogger(__name__)

_EVERY = timedelta(seconds=10)
"""Shortest time between two requests; each is a submission to Ray."""
_REPEAT_EVERY = timedelta(minutes=5)
"""Interval at which an unchanged request is repeated, in case the last program failed."""
_TURN = timedelta(minutes=5)
"""Duration of a turn of `autoscaling.choose`; a node should join within it."""


class AutoscalerDemand:
    """The last resource request to Ray's autoscaler; a new dispatcher always sends its first one."""

    def __init__(self, context: DispatcherContext) -> None:
        self._context = context
        self._shown: Bundles | None = None
        self._shown_at: datetime | None = None
        self._tried_at: datetime | None = None
        self._withdrawals = 0
        """Number of empty requests since the last one that was not empty."""
        self._nodes: frozenset[str] = frozenset()

    def forget(self) -> None:
        """Repeat the request in the next round, because Ray may have lost it."""
        self._shown_at = None

    def show(self, cluster: Cluster, running: Sequence[Demand], waiting: Sequence[Demand]) -> None:
        """Request resources if the demand changed or may be lost; withdraw the request if no job waits."""
        now = self._context.clock()
        nodes = frozenset(node.id for node in cluster.nodes)
        if nodes != self._nodes:
            self.forget()
        self._nodes = nodes
        if not passed(self._tried_at, now, _EVERY):
            return
        self._tried_at = now
        limit, turn = self._context.settings.cluster_limit, int(now.timestamp() // _TURN.seconds)
        requested = autoscaling.choose(running, waiting, limit, turn)
        bundles = autoscaling.bundles([*running, *requested]) if requested else []
        # An unchanged request is repeated, an empty one once.
        is_repeated = self._withdrawals < 2 and passed(self._shown_at, now, _REPEAT_EVERY)
        if bundles == self._shown and not is_repeated:
            return
        command = self._context.entrypoints.demand.format(bundles=shlex.quote(json.dumps(bundles)))
        name = f"demand-{uuid4().hex}"
        try:
            self._context.executor.submit(name, command, {}, "")
        except (ExecutorUnavailable, SubmissionRefused) as error:
            logger.warning("Ray's autoscaler did not get the resource request: %s", error)
            return
        finally:
            # Add it after the submission: `SubmissionRemoval` drops what Ray does not know. The program may run
            # even if Ray did not answer.
            self._context.demand_programs.add(name)
        self._withdrawals = 0 if bundles else self._withdrawals + 1
        self._shown, self._shown_at = bundles, now
