"""One module a bench; `lab.bench` lists them."""
