"""Commands that submit, list and steer jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from service.cli.connection import connect
from service.cli.names import JobId
from service.cli.output import (
    AsJson,
    figure,
    note,
    plain,
    print_facts,
    print_json,
    print_json_line,
    print_table,
    say,
)
from service.cli.show import epochs
from service.cli.specs import Overrides, SpecFile, read_spec

if TYPE_CHECKING:
    from service.client.models import Job


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command()(submit)
    app.command()(validate)
    app.command("jobs")(list_jobs)
    app.command()(watch)
    app.command()(logs)
    app.command()(cancel)
    app.command()(pause)
    app.command()(resume)
    app.command()(clone)
    app.command()(update)


def submit(
    spec: SpecFile,
    overrides: Overrides,
    watch: Annotated[bool, typer.Option("--watch", help="Follow the job until it ends.")] = False,
    idempotency_key: Annotated[
        str | None, typer.Option(help="Submitting again with the same key gives the same job.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Submit a job."""
    body = read_spec(spec, overrides)
    with connect() as client:
        job = client.jobs.submit(body, idempotency_key=idempotency_key)
        if not watch:
            if as_json:
                print_json(plain(job))
            else:
                say(f"Submitted {job.name} as {job.id}. Watch it with: dasl watch {job.id}")
            return
        if not as_json:
            note(f"Submitted {job.name} as {job.id}.")
    _watch(job.id, as_json)


def validate(
    spec: SpecFile,
    overrides: Overrides,
    local: Annotated[
        bool, typer.Option("--local", help="Only check the form, without asking a server.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Check a spec and show what it would do: every "auto" resolved, steps, parameters."""
    body = read_spec(spec, overrides)
    if local:
        if as_json:
            print_json({"valid": True})
        else:
            say(f"{spec} is a valid spec.")
        return
    with connect() as client:
        answer = plain(client.jobs.validate(body))
    if as_json:
        print_json(answer)
        return
    import yaml

    resolved = answer.pop("resolved")
    say(yaml.safe_dump(resolved, sort_keys=False, allow_unicode=True).rstrip())
    say()
    print_facts(_leaves(answer))


def list_jobs(
    status: Annotated[str | None, typer.Option(help="Only jobs in this state.")] = None,
    method: Annotated[str | None, typer.Option(help="Only jobs of this method.")] = None,
    tag: Annotated[
        str | None, typer.Option(metavar="KEY:VALUE", help="Only jobs with this tag.")
    ] = None,
    limit: Annotated[int, typer.Option("-n", "--limit", min=1, help="How many at most.")] = 20,
    as_json: AsJson = False,
) -> None:
    """List jobs, newest first."""
    from itertools import islice

    with connect() as client:
        every = client.jobs.list(status=status, method=method, tag=tag, page_size=min(limit, 100))
        found = list(islice(every, limit))
    if as_json:
        print_json([plain(job) for job in found])
        return
    rows = [
        [
            job.id,
            job.name,
            job.status,
            job.priority,
            epochs(job),
            figure(_loss(job)),
            job.created_at,
        ]
        for job in found
    ]
    print_table(["ID", "NAME", "STATUS", "PRIORITY", "EPOCH", "LOSS", "CREATED"], rows)


def watch(job: JobId, as_json: AsJson = False) -> None:
    """Follow a job until it ends; exit code 0 if it succeeded. Ctrl-C leaves it running."""
    _watch(job, as_json)


def logs(
    job: JobId,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with new lines.")] = False,
    tail: Annotated[int | None, typer.Option(min=1, help="Only the last lines, this many.")] = None,
    attempt: Annotated[
        int | None, typer.Option(min=1, help="Of which attempt; without, of the newest.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Print the log of an attempt of a job."""
    if follow and attempt is not None:
        raise typer.BadParameter("--follow goes through all attempts; leave --attempt out")
    with connect() as client:
        if follow:
            for line in client.jobs.follow_logs(job, tail=tail):
                if as_json:
                    print_json_line({"line": line})
                else:
                    say(line)
            return
        text = client.jobs.logs(job, tail=tail, attempt=attempt)
    if as_json:
        print_json({"job": job, "lines": text.splitlines()})
    elif text:
        say(text.rstrip("\n"))
    else:
        note("There are no log lines yet.")


def cancel(job: JobId, as_json: AsJson = False) -> None:
    """Ask a job to stop; a running one does so after its current step."""
    with connect() as client:
        found = client.jobs.cancel(job)
    if as_json:
        print_json(plain(found))
    else:
        ended = found.status == "cancelled"
        say(f"{found.id} is cancelled." if ended else f"{found.id} stops after its current step.")


def pause(job: JobId, as_json: AsJson = False) -> None:
    """Ask a job to give up its place; it is saved after its current step."""
    with connect() as client:
        found = client.jobs.pause(job)
    if as_json:
        print_json(plain(found))
    else:
        rests = found.status == "paused"
        say(f"{found.id} is paused." if rests else f"{found.id} pauses after its current step.")
        note(f"Let it go on{'' if rests else ', once it is paused'}: dasl resume {found.id}")


def resume(job: JobId, as_json: AsJson = False) -> None:
    """Queue a paused job again; it goes on from where it was saved."""
    with connect() as client:
        found = client.jobs.resume(job)
    if as_json:
        print_json(plain(found))
    else:
        say(f"{found.id} is {found.status} again.")


def clone(
    job: JobId,
    overrides: Overrides,
    checkpoint: Annotated[
        str, typer.Option(help='Id of a checkpoint of the job to go on from; "none" starts anew.')
    ] = "newest",
    watch: Annotated[
        bool, typer.Option("--watch", help="Follow the new job until it ends.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Queue a new job that goes on from another one's checkpoint, with changed settings."""
    from dasl_core.spec import apply_overrides

    try:
        changes = apply_overrides({}, overrides)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    with connect() as client:
        made = client.jobs.clone(
            job, changes, checkpoint=None if checkpoint == "none" else checkpoint
        )
    if watch:
        _watch(made.id, as_json)
    elif as_json:
        print_json(plain(made))
    else:
        start = made.start_checkpoint_id
        where = f"goes on from {start}" if start else "starts anew"
        say(
            f"Submitted {made.name} as {made.id}, which {where}. Watch it with: dasl watch {made.id}"
        )


def update(
    job: JobId,
    priority: Annotated[
        int | None, typer.Option(help="Of the queued jobs the one with the highest starts first.")
    ] = None,
    name: Annotated[str | None, typer.Option(help="Another name.")] = None,
    tag: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY:VALUE", help="Set a tag; the others stay. May be repeated."),
    ] = None,
    untag: Annotated[
        list[str] | None, typer.Option(metavar="KEY", help="Take a tag away. May be repeated.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Change a job's priority, name or tags, while it waits, runs, or is over. Of two that change tags
    at the same time the later one wins."""
    if priority is None and name is None and not tag and not untag:
        raise typer.BadParameter("give --priority, --name, --tag or --untag")
    given = [each.partition(":") for each in tag or []]
    for key, colon, _ in given:
        if not key or not colon:
            raise typer.BadParameter(f"--tag {key}: expected KEY:VALUE, such as team:vision")
    with connect() as client:
        tags: dict[str, str] | None = None
        if tag or untag:
            tags = {k: v for k, v in client.jobs.get(job).tags.items() if k not in (untag or [])}
            tags |= {key: value for key, _, value in given}
        found = client.jobs.update(job, name=name, tags=tags, priority=priority)
    if as_json:
        print_json(plain(found))
        return
    marks = ", ".join(f"{key}:{value}" for key, value in found.tags.items()) or "none"
    say(f"{found.id}: name {found.name}, priority {found.priority}, tags {marks}.")


def _watch(job_id: str, as_json: bool) -> None:
    from service.cli.views import choose_view
    from service.cli.watching import print_failure, watch_job

    # Its own loop waits for a server that is away, and says so.
    with connect(patience=0.0) as client:
        try:
            with choose_view(as_json) as view:
                ended = watch_job(client, job_id, view)
        except KeyboardInterrupt as interrupt:
            note(
                f"\n{job_id} goes on. Watch it again: dasl watch {job_id}   "
                f"Stop it: dasl cancel {job_id}"
            )
            raise typer.Exit(130) from interrupt
        if ended.status != "succeeded":
            print_failure(client, ended)
            raise typer.Exit(1)


def _loss(job: Job) -> float | None:
    return job.progress.loss if job.progress else None


def _leaves(value: dict[str, Any]) -> list[tuple[str, object]]:
    """`{"a": {"b_c": 1}}` as `("b c", 1)`."""
    found: list[tuple[str, object]] = []
    for key, item in value.items():
        if isinstance(item, dict):
            found += _leaves(item)
        else:
            found.append((key.replace("_", " "), f"{item:,}" if isinstance(item, int) else item))
    return found
