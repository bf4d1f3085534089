#!/usr/bin/env bash
# docs.sh [plots|serve]: builds the site of the documentation into build/site. Fails if a link leads nowhere, a page is
# missing or too long, or a picture does not show docs/results. `plots` draws the pictures anew. `serve` shows the site
# at http://127.0.0.1:8001 and follows changes. MkDocs and matplotlib have an environment of their own, build/docs-venv.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/step.sh

readonly VENV=build/docs-venv WANTED=scripts/site/requirements.txt
if ! cmp -s $WANTED $VENV/installed.txt; then
  python3 -m venv $VENV || fail "Python has no venv: apt-get install python3-venv"
  $VENV/bin/pip install --quiet --disable-pip-version-check -r $WANTED ||
    fail "PyPI can't be reached. The pages can be read as they are, in docs/. To build the site, set PIP_INDEX_URL to a mirror, or
install $WANTED into $VENV by hand and copy the file to $VENV/installed.txt"
  cp $WANTED $VENV/installed.txt
fi

export PYTHONDONTWRITEBYTECODE=1 NO_MKDOCS_2_WARNING=1
case "${1:-build}" in
  plots) $VENV/bin/python scripts/plots.py docs/results ;;
  serve) $VENV/bin/mkdocs serve --quiet --dev-addr 127.0.0.1:8001 ;;
  build)
    python3 scripts/check-links.py
    $VENV/bin/python scripts/plots.py docs/results --check
    $VENV/bin/mkdocs build --strict 2>&1 | { grep -v "^INFO" || true; }
    echo "The site is in build/site: open build/site/index.html"
    ;;
  *) fail "docs.sh [plots|serve]" ;;
esac
