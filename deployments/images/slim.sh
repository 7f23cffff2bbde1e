#!/bin/sh
# Finishes the virtual environment $1: removes the tests of packages, which nothing imports, and compiles the rest but
# for what is large and seldom or never imported. Otherwise an image is some 400 MB larger.
set -eu
find "$1"/lib -depth -type d -name tests -exec rm -rf {} +
for torch in "$1"/lib/python*/site-packages/torch; do
    rm -rf "$torch"/test "$torch"/bin/test_* "$torch"/bin/*Test "$torch"/bin/protoc*
done
# Templates and backports for other versions of Python do not compile.
"$1"/bin/python -m compileall -qq -j 0 -x '/(transformers/models|phonenumbers|databricks|pip)/' "$1"/lib || true
