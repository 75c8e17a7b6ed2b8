"""Progress bars of imports: bytes of downloads, counts of anything else."""

from types import TracebackType

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    ProgressColumn,
    Task,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text


class Amount(ProgressColumn):
    """A task's progress as text: `3.1/9.9 MB`, `120,000/1,000,000 peaks`."""

    def __init__(self) -> None:
        super().__init__()
        self._bytes = DownloadColumn()

    def render(self, task: Task) -> Text:
        """Format a task's progress."""
        unit = task.fields["unit"]
        if unit == "bytes":
            return self._bytes.render(task)
        total = "?" if task.total is None else f"{task.total:,.0f}"
        return Text(f"{task.completed:,.0f}/{total} {unit}", style="progress.download")


class ImportBars:
    """A bar for each task that an importer reports, on standard error; nothing is drawn before the first report."""

    def __init__(self) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(), Amount(), TimeRemainingColumn())
        self._bars = Progress(*columns, console=Console(stderr=True))
        self._tasks: dict[str, TaskID] = {}

    def __enter__(self) -> "ImportBars":
        return self

    def __call__(self, what: str, done: int, total: int | None, unit: str = "bytes") -> None:
        """See `ditlab.data.import_request.ImportProgress`."""
        if not self._tasks:
            self._bars.start()
        if what not in self._tasks:
            self._tasks[what] = self._bars.add_task(what, total=total, unit=unit)
        self._bars.update(self._tasks[what], completed=done, total=total)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._bars.stop()
