"""Recipes: named YAML files, beside this one."""
