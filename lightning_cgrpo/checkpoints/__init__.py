"""Reading, checking and writing checkpoints, and ending a run with one."""
