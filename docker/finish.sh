#!/usr/bin/env bash
# The last step of an image: installs the wheel in /srv, and compiles the CPU kernels of the default model and of the
# demo into NUMBA_CACHE_DIR, for this kind of CPU. Others, and other shapes, are compiled when they are first met.
set -euo pipefail

pip install --no-cache-dir --no-index --no-deps --force-reinstall --quiet /srv/*.whl
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
export XDG_CACHE_HOME=$work/cache
dnformer ingest synthetic:sbm --nodes 2000 --out graph
short=(--set data.uri=graph --set train.workers=0 --set train.epochs=1)
dnformer train /mnt/jobs/configs/demo.yaml "${short[@]}"
printf 'name: default\ndata: {uri: graph, split: {random: [0.6, 0.2, 0.2]}}\n' >default.yaml
dnformer train default.yaml "${short[@]}"
# whoever runs the image replaces the index of a kernel when another one is compiled
chmod -R a+rwX "$NUMBA_CACHE_DIR"
