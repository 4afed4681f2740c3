"""What this process may use of its machine, by affinity, control groups and the kernel's files: the one place that is
asked for the size of a pool, a worker, a slice or a plan.

cpus      the hardware threads, their cores, and the CPU quota
memory    how much memory there is and how much of it can still be allocated
processor the model, the caches and the extensions of the host's processor
cgroups   the control groups that this process is in, and their limits
psutils   asks psutil, and knows what it raises
files     reads the small text files of /proc and /sys
"""
