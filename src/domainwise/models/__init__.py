"""From trained to used: fit, predict, evaluate, save and load, tune, compare, export, and a watch on drift."""
