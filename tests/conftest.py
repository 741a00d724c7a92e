"""Settings of the whole session."""

from __future__ import annotations

import gc

from hypothesis import settings


def pytest_configure() -> None:
    # How long an example takes says how busy the machine is, and nothing of what is tested.
    settings.register_profile("any machine", deadline=None)
    settings.load_profile("any machine")
    # Importing everything makes a million objects that stay. Python else walks all of them 26 times
    # meanwhile, which is a fifth of the collection's time.
    gc.disable()


def pytest_collection_finish() -> None:
    # And again at each full collection of garbage while tests run: a second each.
    gc.collect()
    gc.freeze()
    gc.enable()


def pytest_unconfigure() -> None:
    gc.unfreeze()  # else libraries miss their objects at the end, and say so
