"""Cache: files of blocks on a disk, their ledger, the space they take, claims on those in the making."""
