"""Published data sets, read from the files that their authors distribute and laid out as folders of classes."""

from dasl_core.data.published.layout import PUBLISHED, PreparedPart, PublishedDataset, prepare

__all__ = ["PUBLISHED", "PreparedPart", "PublishedDataset", "prepare"]
