"""A run whose journal is followed: each look reads only the lines that are new."""

from __future__ import annotations

import os

from ditlab.errors import UserError, first_line
from ditlab.home import Home, RunFolder
from ditlab.reports.page import Page
from ditlab.reports.run.page import run_page
from ditlab.runs.report.collect import collect, report_source
from ditlab.runs.report.pictures import LinkedPictures
from ditlab.spec.experiment import Experiment
from ditlab.spec.recorded import load_recorded_experiment
from ditlab.storage.plain_files import open_plain
from ditlab.tracking.journal.content import JournalContent
from ditlab.tracking.journal.reader import LARGEST_JOURNAL, read_journal
from ditlab.tracking.journal.side_index import read_content


class FollowedRun:
    """The page of one run as it is now. Not thread-safe."""

    def __init__(self, home: Home, folder: RunFolder) -> None:
        self.home, self.folder = home, folder
        self.pictures = LinkedPictures()
        """Files of the pictures that pages made so far refer to."""
        self._content: JournalContent | None = None
        self._inode = 0
        self._experiment: Experiment | None = None

    def page(self) -> Page:
        """The page as it is now. Raises UserError where the run's record cannot be read."""
        content = self._read()
        if self._experiment is None:
            self._experiment = self._load()
        source = report_source(self.home, self.folder, content=content, experiment=self._experiment)
        return run_page(collect(source, self.pictures))

    def _load(self) -> Experiment | None:
        try:
            return load_recorded_experiment(self.folder.spec)
        except UserError:
            return None  # the page says why

    def _read(self) -> JournalContent | None:
        """The journal's content, with the lines since the last call; None where it cannot be read, as the page says."""
        try:
            state = self.folder.journal.lstat()
            known = self._content
            if known is None or state.st_ino != self._inode or state.st_size < known.end:
                known = read_content(self.folder.journal)
                # A last line that was in writing is read again, with all others.
                self._content = known if self._ends_whole(known.end) else None
                self._inode = state.st_ino
            else:
                self._read_new(known)
            return known
        except OSError:
            self._content = None
            return None

    def _ends_whole(self, end: int) -> bool:
        with open_plain(self.folder.journal, LARGEST_JOURNAL) as file:
            return end == 0 or os.pread(file.fileno(), 1, end - 1) == b"\n"

    def _read_new(self, known: JournalContent) -> None:
        with open_plain(self.folder.journal, LARGEST_JOURNAL) as file:
            for line in read_journal(file, known.end):
                if not line.is_whole:
                    return
                known.add(line)


def page_fault(error: Exception) -> str:
    """Sentence on a page that cannot be made."""
    return str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {first_line(error)}"
