"""Analyses of trained models and data: Grad-CAM, audits, perturbations, shift, the paper's theory."""
