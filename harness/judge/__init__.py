"""Draws every conclusion from the facts of a result. `assessment.judge` does it once, for everything that reads one.

Each line imports from the lines above it only (tests/judge/test_layers.py):

    findings                      codes with their severity, words and remedy, declared where they are found
    statistics                    timestamps: figures of one record; intervals: how well they are known, and steadiness
    energy                        joules of a window: the reading of each source, and the sum of those that may be added
    roofline                      the ceilings that the probes reached
    mixed_run                     one run of the mix: what was completed, in what time, for what energy, on which hosts
    score                         the score over all runs, and its grade
    diagnosis                     what explains a mixed run: its bound and where the time went
    evidence                      all that the rules look at, each figure computed once
    solo                          one suite alone on one device: what counts, and which is best
    solo_rates                    rates for the plan, of screening runs and of solo measurements
    rules                         integrity, interference and quality; consistency looks at facts alone
    verdict, references           the result in one word; the scores of other machines
    assessment                    all of these, in order

This file imports none of them, because a worker needs only `statistics`.
"""
