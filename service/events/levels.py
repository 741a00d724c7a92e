"""Levels of events."""

from collections.abc import Mapping
from typing import Any, get_args

from service.states import JobStatus
from service.wire.events import Level

LEVELS: tuple[Level, ...] = get_args(Level)

ERRORS = frozenset({"collapse"})
WARNINGS = frozenset(
    {
        "checkpoint_damaged",
        "checkpoint_failed",
        "classes_unmatched",
        "classifier_not_measured",
        "gradient_share",
        "images_damaged",
        "images_not_cached",
        "images_unreadable",
        "input_bound",
        "nan",
        "near_duplicates_split",
        "no_gpus",
        "nothing_held_out",
        "onnx_missing",
        "pictures_missing",
        "service-restarted",
        "step_skipped",
    }
)
WITHOUT_GPUS = "without_gpus"
"""What `no_gpus` says in `cluster` if no node has a GPU: then it is no warning."""
BAD_VERDICTS: Mapping[str, Level] = {
    "collapsed": "error",
    "falling": "warning",
    "no_better": "warning",
}


def event_level(type: str, data: Mapping[str, Any]) -> Level:
    """Return the level of an event. `service.events.repository` has the same rules in SQL.

    A change of status is an error if the job has failed, and a warning if only an attempt has.
    """
    if type == "status":
        if data.get("to") == JobStatus.FAILED:
            return "error"
        return "warning" if data.get("error") is not None else "info"
    if type == "verdict":
        return BAD_VERDICTS.get(str(data.get("verdict")), "info")
    if type == "no_gpus" and data.get("cluster") == WITHOUT_GPUS:
        return "info"
    if type in ERRORS:
        return "error"
    return "warning" if type in WARNINGS else "info"
