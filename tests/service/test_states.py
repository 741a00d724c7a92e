"""The service's states use the words that it shares with workers and clients."""

from typing import get_args

from dasl_core import vocabulary
from service.protocol import TaskOutcome
from service.states import AttemptOutcome, AttemptState, Desired, TaskState


def test_desired_has_the_words_of_the_vocabulary() -> None:
    assert set(Desired) == set(get_args(vocabulary.Desired))


def test_each_outcome_is_the_state_of_an_ended_attempt() -> None:
    assert set(get_args(AttemptOutcome)) <= set(AttemptState)
    assert set(get_args(vocabulary.TrainingOutcome)) <= set(get_args(vocabulary.Outcome))


def test_other_runs_end_in_states_of_runs_and_tasks() -> None:
    assert set(get_args(TaskOutcome)) <= set(AttemptState) & set(TaskState)
