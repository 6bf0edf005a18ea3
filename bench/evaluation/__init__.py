"""The program of `make evaluation`: runs the simulator on the papers' loads and writes docs/evaluation.md."""
