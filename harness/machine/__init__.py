"""The machine: what it is, what can be measured on it, and what disturbs a measurement.

setup          all that a run needs to know: devices, suites, meters, configuration
devices        asks each adapter for its devices, in a process of its own
cpu_slices     divides the CPU into devices
config         reads mixmark.toml
suite_claims   what a suite says of itself, for the rules
machine_lock   one measurement at a time
noise_floor    how much this machine's figures vary from run to run
disclosure     the machine, its software and its settings, as a result states them
power_supply   what supplies the machine with power, and its power profile
counters       the counters of the machine at one instant, and what happened between two instants
accelerators   calls the vendors' watchers, which are plugins, so that none of them can disturb a run
nvidia         the watcher of NVIDIA's GPUs
sampling       a thread that reads the counters and the watchers about once a second, and the canary: a fixed loop whose
               time shows how fast one core is now
other_load     the load of other programs

With `resources` and `worker.process`, this is the only place with calls of one operating system.
"""
