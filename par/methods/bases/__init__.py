"""What methods share: the base class of all of them and the bases of several."""
