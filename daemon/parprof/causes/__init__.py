"""What to do about it: the places where a program loses most, each with its kind, its bounds and its remedy.

Three steps, a module each. `evidence` makes a tree of the program's own code out of samples (`ownership` says whose
code a frame is, `routes` how a path leads through it), `sites` finds the subtrees in which one and the same thing goes
wrong, and `kinds` tells what that is, also from how threads wait (`waiting`). `sleepers` says before that who kept all
others asleep, `upstream` who may keep the reader of a pipe waiting; `processes` and `interpreters` tell what is one
process's, or in no code of the program's. `cause` is what the reader is told of a site, `placeless` what is at none;
`ranking` puts them together: who wants the causes of a profile asks that.

Nothing is imported here: measuring takes `handed` and `nameless`, and the rest waits until there is something to
report.
"""
