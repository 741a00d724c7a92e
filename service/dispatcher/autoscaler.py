"""Shows Ray's autoscaler the demand of jobs, by a small program that runs on Ray."""

from __future__ import annotations

import json
import logging
import shlex
from datetime import datetime, timedelta
from uuid import uuid4

from service.dispatcher.context import DispatcherContext, passed
from service.dispatcher.executor import ExecutorUnavailable, SubmissionRefused
from service.scheduling.autoscaling import Bundles

logger = logging.getLogger(__name__)

_EVERY = timedelta(seconds=10)
"""Shortest time between two requests, each of which is a submission to Ray."""


class AutoscalerDemand:
    """The last demand that Ray's autoscaler was shown; a new dispatcher shows its first one in any case."""

    def __init__(self, context: DispatcherContext) -> None:
        self._context = context
        self._shown: Bundles | None = None
        self._tried_at: datetime | None = None

    def show(self, bundles: Bundles) -> None:
        """Show a demand if it has changed; an empty one withdraws that before."""
        now = self._context.clock()
        if bundles == self._shown or not passed(self._tried_at, now, _EVERY):
            return
        self._tried_at = now
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
        self._shown = bundles
