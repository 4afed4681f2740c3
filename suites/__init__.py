"""The standard workloads, one folder each, and the modules that several of them share.

A suite's folder holds its inputs, network, loop, gate, cost model, latency limits and exported graphs.
"""

if __name__ == "suites":
    raise ImportError("import mixmark.suites: under another name every class would exist twice")
