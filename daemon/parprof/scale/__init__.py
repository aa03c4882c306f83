"""Work and span: what a program could gain from more cores, and which site stands in the way.

`record` reads what the library in the target left behind, `model` computes bounds from it, `answer` says them.
"""
