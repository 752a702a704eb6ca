#!/usr/bin/env bash
exec bash "$(dirname "$0")/benchmarks/gpu.sh" "$@"  # its old name
