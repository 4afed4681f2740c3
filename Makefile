PYTHON ?= python3
PIP = .venv/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: run test clean

run: .venv/run
	.venv/bin/mixmark run

test: .venv/dev
	scripts/check

.venv/run: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(PIP) --editable '.[torch,onnxruntime]'
	touch $@

.venv/dev: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(PIP) --editable '.[dev]'
	touch .venv/run $@

clean:
	rm -rf .venv build dist *.egg-info
