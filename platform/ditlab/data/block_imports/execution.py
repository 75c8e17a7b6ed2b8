"""Execution of an import's blocks: what runs them, and the work of one."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from ditlab.data.block_imports.plan import InputBlock
from ditlab.data.block_imports.receipt import BlockReceipt, whole_receipt, write_receipt
from ditlab.data.processes import fitting_processes, in_processes
from ditlab.errors import UserError


class BlockRules(Protocol):
    """Rules by which an importer makes shards of a block: a frozen dataclass that can be pickled."""

    def convert(self, block: InputBlock, folder: Path) -> BlockReceipt:
        """Read a block and write its shards below a folder, with `block.prefix`; nothing else may depend on them.

        Raises UserError for what the importer's options refuse.
        """
        ...


class BlockExecutor(Protocol):
    """Runner of blocks, on one machine or several."""

    def run(self, work: Callable[[InputBlock], BlockReceipt], blocks: Sequence[InputBlock]) -> Iterator[BlockReceipt]:
        """Yield the receipt of each block once, in any order, as it is there. Raises whatever `work` raises."""
        ...


@dataclass(frozen=True)
class BlockWork:
    """Work of a block, which can be pickled: its shards, and then its receipt."""

    rules: BlockRules
    folder: Path
    """Folder of the unfinished import."""

    @property
    def uses_gpu(self) -> bool:
        """True for rules that say so: their work is faster on a GPU."""
        return bool(getattr(self.rules, "uses_gpu", False))

    def __call__(self, block: InputBlock) -> BlockReceipt:
        """Make a block's shards. Raises as `import_block` does."""
        return import_block(block, self.rules, self.folder)


def import_block(block: InputBlock, rules: BlockRules, folder: Path) -> BlockReceipt:
    """Make a block's shards below a folder, then its receipt: a pure function of block and rules.

    Done twice, also at once, it gives the same files; what is whole is not done again. Raises UserError as the rules
    do, for a file that was changed since it was listed, and for a folder that cannot be written.
    """
    try:
        receipt = whole_receipt(folder, block)
        if receipt is not None:
            return receipt
        folder.mkdir(parents=True, exist_ok=True)
        receipt = rules.convert(block, folder)
        _check_unchanged(block)
        write_receipt(folder, block, receipt)
    except OSError as error:
        raise UserError(
            f"{folder.parent} cannot be written ({error.strerror}); free space there or choose another folder with "
            "--out, and give the same command again: it goes on from its whole blocks."
        ) from error
    return receipt


def _check_unchanged(block: InputBlock) -> None:
    """Raise UserError for a file of this machine that was changed, as the plan's fingerprint would not say so."""
    for file in (*block.files, *block.beside):
        if file.stamp.isdigit() and not file.is_remote and file.stamp != file.current_stamp():
            raise UserError(
                f"{file.place} was changed during the import; give the command again once the source stays as it is."
            )


@dataclass(frozen=True)
class ProcessExecutor:
    """Execution in processes of this machine; one block at a time in this process, where one is enough."""

    processes: int | None = None
    """None: as many as the cores and the input allow."""
    verb: str = "decodes"
    """Work of a process in messages: `decodes`."""

    def run(self, work: Callable[[InputBlock], BlockReceipt], blocks: Sequence[InputBlock]) -> Iterator[BlockReceipt]:
        """Yield the receipts of blocks in their order. Raises as `processes.in_processes` does."""
        processes = min(self.processes or fitting_processes(sum(block.bytes for block in blocks)), len(blocks))
        yield from map(work, blocks) if processes <= 1 else in_processes(work, blocks, processes, self.verb)
