"""Domain and task adaptation as one plan of stages (DAPT and TAPT, arXiv:2004.10964).

`plan` defines a plan and `read_plan` reads it; `provenance` computes the digests of the stages; `stage_runner` runs
them with `stage_recipes` and `stage_texts`; `forgetting`, `interpolation` and `contamination` measure and mix;
`stage_gains` and `report` summarize; `pipeline` is the command.
"""
