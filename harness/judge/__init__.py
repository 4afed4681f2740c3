"""Everything that is concluded from a result: `judgement.judge` does it once, for all who read it.

    stamps, intervals, steady    figures of one record, how sure they are, whether its window is steady
    energy                       joules of a window: readings, what they cover, their sum
    evidence                     what the rules look at, each figure computed once
    records, disturbed, honest   rules: evidence -> findings
    coherent                     whether the facts of a folder can all be true of one run
    score, diagnosis             the mixed runs, and what explains them
    figures, roofline            rows, cells and the matrix that reporters lay out
    judgement                    all of these, in order

This file imports none of them, because a worker needs only `steady` and `intervals`.
"""
