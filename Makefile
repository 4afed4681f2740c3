PYTHON ?= python3
PIP = .venv/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: run test docs clean

run: .venv/run
	.venv/bin/mixmark run

test: .venv/dev
	scripts/check

docs: .venv/docs
	.venv/bin/python -m sphinx --fail-on-warning --quiet -d build/docs docs build/site
	@echo "The site begins at build/site/index.html"

.venv/run: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(PIP) --editable '.[torch,onnxruntime]'
	touch $@

.venv/dev: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(PIP) --editable '.[dev]'
	touch .venv/run .venv/docs $@

.venv/docs: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(PIP) --editable '.[docs]'
	touch $@

clean:
	rm -rf .venv build dist *.egg-info
