"""A run over several hosts: one leading process, and an agent on each host that measures the devices there.

`agent` is the program on each host: it finds devices, starts workers, reads meters and dispatches its own feeds, with
the code that measures a run of one host. In the leading process, `launchers` start the agents, `agents` exchanges
`messages` with them, `gather` puts together what they have found, and `executor` measures phases on them: to the rest
of the code they look like one machine with many devices. `names` translates ids and timestamps between a host and the
run.

In the window of a mix neither a feed nor a call per feed crosses the network: every two seconds each host reports sums
and gets a credit (`coordinator`), and every second a message of a few bytes keeps its clock (`clocks`).
"""
