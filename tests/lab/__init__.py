"""Scenarios over the real programs: the demo, the benches, the end-to-end suite and the kill loop.

Standard library only. Everything a scenario makes (stores, caches, sockets, mounts, daemons) lies below one `Work`
directory of its own and is gone when the scenario ends, however it ends. Run by `./x`, which builds the programs and
says where they are.
"""
