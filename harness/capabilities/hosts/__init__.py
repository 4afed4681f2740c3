"""A run over several hosts: one leading process, and an agent on each host that measures the devices there.

`agent` is the program on each host: it finds devices, starts workers, reads meters and dispatches its own feeds, with
the code that measures a run of one host. In the leading process, `launchers` start the agents, `agents` exchanges
`messages` with them, `gather` joins the descriptions of their hosts, and `executor` measures phases on them. The rest
of the code sees one machine with many devices. `names` translates ids and timestamps between a host and the run.

In the window of a mix neither a feed nor a call per feed crosses the network: every two seconds each host reports its
progress and gets a grant (`coordinator`), and every second a ping of a few bytes tracks its clock (`clocks`).
"""
