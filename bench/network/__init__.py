"""Simulations and peers that the network figures compare with the product."""
