"""What stands beside the product's modules of the network in their figures."""
