"""How related tasks are: frozen features, class prototypes, task distances, and the plan that follows from them."""
