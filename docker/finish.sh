#!/usr/bin/env bash
# The last step of an image: installs the wheel in /mnt/dist, and compiles the CPU kernels of the default model into
# NUMBA_CACHE_DIR, for this kind of CPU. Others, and other shapes, are compiled when they are first met.
set -euo pipefail

pip install --no-cache-dir --no-index --no-deps --force-reinstall --quiet /mnt/dist/*.whl
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
# what libraries leave there would be root's
export XDG_CACHE_HOME=$work/cache TMPDIR=$work
dnformer ingest synthetic:sbm --nodes 2000 --out graph
dnformer train /mnt/context/jobs/configs/demo.yaml \
    --set data.uri=graph --set train.workers=0 --set train.epochs=1
# whoever runs the image replaces the index of a kernel when another one is compiled
chmod -R a+rwX "$NUMBA_CACHE_DIR"
