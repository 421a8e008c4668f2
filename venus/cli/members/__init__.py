"""`venus cluster move|drain|add|remove|dissolve|promote|accept-loss`: which brokers replicate and lead a business."""
