#!/usr/bin/env bash
# Gradescope runs this once, as root, when it builds an image from the zip file of a student copy.
# Choose a base image with Python 3.11 or newer: Ubuntu 22.04 or 24.04.
set -e
cd /autograder/source
apt-get update
apt-get install -y python3.12-venv || apt-get install -y python3.11-venv
PYTHON=$(command -v python3.12 || command -v python3.11)
"$PYTHON" -m venv .venv
# The CPU build of torch is much smaller than PyPI's.
torch=$(grep '^torch' requirements.txt)
.venv/bin/pip install -c constraints.txt "$torch" --index-url https://download.pytorch.org/whl/cpu
.venv/bin/pip install -c constraints.txt -r requirements.txt
