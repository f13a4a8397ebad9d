"""The journal orders commands and makes them durable. One contract, two implementations.

contract.py   what the engine relies on
memory.py     order only, nothing survives the process
wal.py        group commit on top of the files below
segments.py   the log files: write a batch, roll, retire, reuse
recovery.py   reads the files back after a stop or a crash
checkpoints.py the whole state in one file, so that old segments can go
folder.py     the data folder: its identity and its lock
disk.py       the only code that touches the file system
"""
