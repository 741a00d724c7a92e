"""Files beside images that are not read, as their endings are not those of images."""

import os
from collections import Counter
from collections.abc import Collection

from dasl_core.text import printable

_MOST_ENDINGS, _LONGEST_ENDING, _SHOWN = 50, 20, 8
_OTHERS = "other endings"


class IgnoredFiles:
    """How many files have which lowercase ending ("" for none), and the first of each."""

    def __init__(self) -> None:
        self.endings: Counter[str] = Counter()
        self._examples: dict[str, str] = {}

    def add(self, path: str) -> None:
        """Count a file."""
        path = printable(path)
        ending = os.path.splitext(path)[1].lower()
        # Bounded, because names may end in hashes or dates.
        is_usual = ending in self.endings or len(self.endings) < _MOST_ENDINGS
        ending = ending if is_usual and len(ending) <= _LONGEST_ENDING else _OTHERS
        self.endings[ending] += 1
        self._examples[ending] = min(self._examples.get(ending, path), path)

    def advise(self) -> str:
        """Return what to do about images without an ending, or with one of digits, as PACS name them; "" if none may be."""
        may_be = any(not ending.strip(".0123456789") for ending in self.endings)
        return ". Those that are images need an ending, such as .dcm for DICOM" * may_be

    def describe(self, endings: Collection[str] | None = None) -> str:
        """Describe those with some endings, by default all, most frequent first: `2 .psd (a.psd, ...), 1 .mp4 (b.mp4)`."""
        shown = self.endings.keys() if endings is None else self.endings.keys() & {*endings}
        ordered = sorted(shown, key=lambda ending: (-self.endings[ending], ending))
        parts = []
        for ending in ordered[:_SHOWN]:
            count, more = self.endings[ending], ", ..." if self.endings[ending] > 1 else ""
            parts.append(
                f"{count} {ending or 'without an ending'} ({self._examples[ending]}{more})"
            )
        if remaining := sum(self.endings[ending] for ending in ordered[_SHOWN:]):
            parts.append(f"{remaining} others")
        return ", ".join(parts)
