"""The stage worker: layers of a model, their cache, and the links to its neighbours."""
