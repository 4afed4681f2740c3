"""The machine: what it is and what disturbs a measurement on it.

disclosure    the machine, its software and its settings, as a result states them
processor     the host's processor
power_supply  what supplies the machine with power, and its power profile
counters      the counters of the machine at one instant, and what happened between two instants
accelerators  calls the vendors' watchers, which are plugins, so that none of them can disturb a run
nvidia        the watcher of NVIDIA's GPUs
sampling      a thread that reads the counters and the watchers about once a second, and the canary: a fixed loop whose
              time shows how fast one core is now
other_load    the load of other programs

With `worker.process`, this is the only place with calls of one operating system.
"""
