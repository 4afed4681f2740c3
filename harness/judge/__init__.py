"""Draws every conclusion from the facts of a result. `assessment.judge` does it once, for everything that reads one.

Each line imports from the lines above it only (tests/judge/test_layers.py):

    findings                      codes with their severity, words and remedy, declared where they are found
    statistics                    figures of one record, their intervals, and whether its window is steady
    energy                        joules of a window: readings, what they cover, their sum
    hosts, roofline               facts of each host; the ceilings that the probes reached
    mixed_run                     one run of the mix: what was completed, in what time, for how many joules
    score                         the score over all runs, and its grade
    load, drill                   the mix at levels of load, by other policies, and without a device for a while
    caps                          the mix with less power
    diagnosis                     what explains a mixed run: its bound and where the time went
    evidence                      all that the rules look at, each figure computed once
    screening                     which routes may be the fastest
    rules                         integrity, interference, records, mix, energy; consistency looks at facts alone
    solo_rates, scaling           rates for the plan; the mix on some hosts
    paths                         what bytes take from one memory to another
    verdict, references           the result in one word; the scores of other machines
    assessment                    all of these, in order
    compare                       two assessments, or machines side by side

This file imports none of them, because a worker needs only `statistics`.
"""
