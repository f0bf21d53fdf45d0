"""Four stages from general text to a task, each on top of the last (DAPT and TAPT, arXiv:2004.10964), as one plan.

`plan` is what is asked for, and `reader` reads it; `provenance` names every stage by what goes into it, and `cache`
keeps the runs by those names; `stages` carries them out, and `texts`, `held_out`, `blend` and `contamination` do what
is done around them; `payoff` and `report` say what came of it; `pipeline` is the whole of it.
"""
