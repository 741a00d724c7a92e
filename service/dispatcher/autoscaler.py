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
from service.scheduling.autoscaling import Bundles, Request
from service.scheduling.nodes import Cluster, Node
from service.scheduling.packing import Demand, Room

logger = logging.getLogger(__name__)

_EVERY = timedelta(seconds=10)
"""Shortest time between two requests, each of which is a submission to Ray."""
_REPEAT_EVERY = timedelta(minutes=5)
"""Interval at which an unchanged demand is shown again, in case the program before failed."""
_GUESS_FOR = timedelta(minutes=5)
"""How long a guess is shown if no node joins that it can use."""
_NO_GUESS_FOR = timedelta(minutes=1)
"""How long the jobs that fit the limit are shown without a guess, between two of them."""


class AutoscalerDemand:
    """The last demand that Ray's autoscaler was shown; a new dispatcher shows its first one in any case.

    A guess (see `autoscaling`) that no node can serve makes Ray's autoscaler add none at all. So the distinct guesses
    take turns: one that brought no node goes behind those that were not shown, and then those that were shown
    earlier. While jobs wait that fit the limit, these are shown alone before each guess.
    """

    def __init__(self, context: DispatcherContext) -> None:
        self._context = context
        self._shown: Bundles | None = None
        self._shown_at: datetime | None = None
        self._tried_at: datetime | None = None
        self._withdrawals = 0
        """How often an empty demand was shown since one that was not empty."""
        self._nodes: frozenset[str] = frozenset()
        self._guess: Demand | None = None
        self._alone = False
        """Whether jobs that fit the limit are shown without a guess."""
        self._turn_began_at: datetime | None = None
        self._in_vain: dict[Demand, None] = {}
        """Guesses that brought no node, the one of the last turn at the end."""

    def forget(self) -> None:
        """Show the demand again, because Ray may have lost it."""
        self._shown_at = None

    def show(self, cluster: Cluster, running: Sequence[Demand], waiting: Sequence[Demand]) -> None:
        """Show a demand if it has changed or may be lost; without waiting jobs, withdraw the one before."""
        now = self._context.clock()
        nodes = frozenset(node.id for node in cluster.nodes)
        if nodes != self._nodes:
            self.forget()
        if any(self._is_for_guess(node) for node in cluster.nodes if node.id not in self._nodes):
            self._turn_began_at = now
        self._nodes = nodes
        if not passed(self._tried_at, now, _EVERY):
            return
        self._tried_at = now
        bundles = self._next(running, waiting, now).bundles
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

    def _is_for_guess(self, node: Node) -> bool:
        guess = self._guess
        return (
            guess is not None
            and guess.choice.allows(node)
            and Room.of(node).places(guess.worker) > 0
        )

    def _next(self, running: Sequence[Demand], waiting: Sequence[Demand], now: datetime) -> Request:
        """Return the request of this turn, or of the next one if this turn is over."""
        limit, guess = self._context.settings.cluster_limit, self._guess
        self._in_vain = {each: None for each in self._in_vain if each in waiting}
        request = autoscaling.request(running, waiting, limit, guess)
        lasts = _NO_GUESS_FOR if guess is None else _GUESS_FOR
        is_over = passed(self._turn_began_at, now, lasts)
        needed = (
            self._alone and bool(request.waiting) if guess is None else guess in request.waiting
        )
        if needed and not is_over:
            return request
        if guess is not None and guess in waiting and is_over:
            self._in_vain.pop(guess, None)
            self._in_vain[guess] = None
        was_alone, self._turn_began_at = self._alone, now
        self._guess, request = None, autoscaling.request(running, waiting, limit, None)
        self._alone = bool(request.waiting)
        if self._alone and not was_alone:
            return request
        guesses = autoscaling.guesses(running, waiting, limit)
        order = {each: number for number, each in enumerate(self._in_vain)}
        for guess in sorted(guesses, key=lambda each: order.get(each, -1)):
            with_guess = autoscaling.request(running, waiting, limit, guess)
            if guess in with_guess.waiting:
                self._guess, self._alone = guess, False
                return with_guess
        return request
