"""Recipes are documents: YAML files that say everything a run is made of, and open with what they reproduce.

`load_recipe("emoji-r/smope", ["train.epochs=12"])` gives the mapping that `smope.methods.resolve` turns into a checked config.
"""

from smope.recipes.keys import apply_overrides
from smope.recipes.loader import RecipeInfo, list_recipes, load_recipe

__all__ = ["RecipeInfo", "apply_overrides", "list_recipes", "load_recipe"]
