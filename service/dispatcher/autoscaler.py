"""Shows Ray's autoscaler the demand of jobs, by a small program that runs on Ray."""

from __future__ import annotations

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
"""Shortest time between two requests, each of which is a submission to Ray."""
_REPEAT_EVERY = timedelta(minutes=5)
"""Interval at which an unchanged demand is shown again, in case the program before failed."""
_TURN = timedelta(minutes=5)
"""How long a turn of `autoscaling.choose` lasts: a node should have joined by then."""


class AutoscalerDemand:
    """The last demand that Ray's autoscaler was shown; a new dispatcher shows its first one in any case."""

    def __init__(self, context: DispatcherContext) -> None:
        self._context = context
        self._shown: Bundles | None = None
        self._shown_at: datetime | None = None
        self._tried_at: datetime | None = None
        self._withdrawals = 0
        """How often an empty demand was shown since one that was not empty."""
        self._nodes: frozenset[str] = frozenset()

    def forget(self) -> None:
        """Show the demand again, because Ray may have lost it."""
        self._shown_at = None

    def show(self, cluster: Cluster, running: Sequence[Demand], waiting: Sequence[Demand]) -> None:
        """Show a demand if it has changed or may be lost; without waiting jobs, withdraw the one before."""
        now = self._context.clock()
        nodes = frozenset(node.id for node in cluster.nodes)
        if nodes != self._nodes:
            self.forget()
        self._nodes = nodes
        if not passed(self._tried_at, now, _EVERY):
            return
        self._tried_at = now
        limit, turn = self._context.settings.cluster_limit, int(now.timestamp() // _TURN.seconds)
        chosen = autoscaling.choose(running, waiting, limit, turn)
        bundles = autoscaling.bundles([*running, *chosen]) if chosen else []
        if bundles == self._shown and not self._is_repeated(now):
            return
        command = self._context.entrypoints.demand.format(bundles=shlex.quote(json.dumps(bundles)))
        name = f"demand-{uuid4().hex}"
        try:
            self._context.executor.submit(name, command, {}, "")
        except (ExecutorUnavailable, SubmissionRefused) as error:
            logger.warning("Ray's autoscaler was not shown the demand of jobs: %s", error)
            return
        finally:
            # Not before: the loop that removes it would find it unknown. It may also run if Ray did not answer.
            self._context.demand_programs.add(name)
        self._withdrawals = 0 if bundles else self._withdrawals + 1
        self._shown, self._shown_at = bundles, now

    def _is_repeated(self, now: datetime) -> bool:
        """Whether the unchanged demand is shown again; an empty one only once, as most clusters never wait."""
        return self._withdrawals < 2 and passed(self._shown_at, now, _REPEAT_EVERY)
