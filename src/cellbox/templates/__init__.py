"""Templates: recipes → root filesystem → baked snapshot.

Reading order: `recipe.py` (what is asked for), `templates.py` (the front), `builder.py` (the steps), `sandboxed.py`
(how a step runs), `bake.py` (the snapshot), `catalogue.py` (where all of it lies).
"""
