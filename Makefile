PYTHON ?= python3
PIP = .venv/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: smoke run test test-all docs clean

# At Ctrl-C the shell waits for mixmark, which shows what was measured so far.
smoke: OPTIONS = --tier smoke
smoke run: .venv/run
	@trap : INT; .venv/bin/mixmark run $(OPTIONS); code=$$?; \
	printf '\nTo call mixmark by its name:  export PATH="%s:$$PATH"\n' "$(CURDIR)/.venv/bin"; \
	printf 'or in full from any folder:   "%s" --help\n' "$(CURDIR)/.venv/bin/mixmark"; \
	exit $$code

test: .venv/dev
	scripts/check

test-all: .venv/dev
	scripts/check --all

docs: .venv/docs
	.venv/bin/python -m sphinx --fail-on-warning --quiet -d build/docs docs build/site
	@echo "The site begins at build/site/index.html"

.venv/run: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(PIP) --editable '.[torch,onnxruntime,openvino]'
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
