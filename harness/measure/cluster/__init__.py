"""Several hosts: one process leads the run, and an agent on each host measures what it is given there.

`agent` is the program on each host: it looks for devices, starts workers, reads meters and dispatches its own feeds,
with the code that measures a run of one host. `remotes` reaches the agents, `gather` puts together what they found, and
`site` leads them: to the rest of the code it looks like one machine with many devices. `messages` is what they say to
each other, over an authenticated stream (`measure.cluster.link`), and `names` turns what a host calls its own into what
the run calls it, and its clock into the run's.

In the window of a mix no feed, no answer and no call per feed crosses the network: every two seconds each host tells
sums, and gets a credit (`measure.cluster.coordinator`); every second a message of a few bytes keeps its clock
(`measure.cluster.clocks`).
"""
