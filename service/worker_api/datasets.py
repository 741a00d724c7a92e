"""Data sets in the form that runs need."""

from sqlalchemy.orm import Session

from service.datasets import repository as datasets
from service.datasets.versions import repository as versions
from service.protocol import WorkerDataset


def worker_dataset(session: Session, dataset_id: str, number: int) -> WorkerDataset:
    """Build the description of a data set's version that a job or preview needs."""
    dataset = datasets.by_id(session, dataset_id)
    version = versions.get(session, dataset_id, number)
    assert version is not None, "a data set is kept while an unfinished job or preview needs it"
    index_uri = version.index_uri
    assert index_uri is not None, "so are the files of the version"
    return WorkerDataset(
        id=dataset.id,
        name=dataset.name,
        uri=dataset.uri,
        version=version.number,
        index_uri=index_uri,
        facts=version.facts,
        upload_folder=dataset.upload_folder,
    )
