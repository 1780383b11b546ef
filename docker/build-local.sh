#!/usr/bin/env bash
# Builds the cpu image where there is no Docker engine, and runs the demo in it: buildah, on a base by debootstrap.
#   docker/build-local.sh [--build-arg NAME=VALUE]...    more arguments for `buildah build`
# Needs root, the packages buildah and debootstrap, and 12 GB in cache/image, where the image stays. Packages come from
# where pip's configuration says; MIRROR is Debian's mirror.
set -euo pipefail
cd "$(dirname "$0")/.."

mirror=${MIRROR:-http://deb.debian.org/debian}
place=$PWD/cache/image
base=localhost/dnformer-base:bookworm
image=localhost/dnformer:$(sed -n 's/^version = "\(.*\)"$/\1/p' pyproject.toml)
# works inside containers, too
export BUILDAH_ISOLATION=chroot
mkdir -p "$place"
scratch=$(mktemp -d)
container=
leave() {
    [ -z "$container" ] || storage rm "$container" >/dev/null
    rm -rf "$scratch"
}
trap leave EXIT

fail() { echo "docker/build-local.sh: $*" >&2; exit 1; }

storage() { buildah --root "$place/store" --runroot "$place/run" "$@"; }

# What python:slim is elsewhere, on Debian alone.
make_base() {
    debootstrap --variant=minbase --include=ca-certificates,python3,python3-venv bookworm "$scratch/root" "$mirror" >"$scratch/log" \
        || { tail -n 20 "$scratch/log" >&2; return 1; }
    rm -rf "$scratch/root/var/cache/apt" "$scratch/root/var/lib/apt/lists"/*
    container=$(storage from scratch)
    tar -C "$scratch/root" -cf "$scratch/root.tar" .
    storage add --quiet "$container" "$scratch/root.tar" /
    storage config --env PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin --cmd bash "$container"
    storage commit --quiet --rm "$container" "$base" >/dev/null
    container=
}

# The value of one of pip's settings, from its files and its environment, which counts more.
setting() {
    { python3 -m pip config list || true; } | sort | sed -n "s/^[^=]*\.$1='\(.*\)'\$/\1/p" | head -n 1
}

# pip's settings for the build, and the folders and files that they name: `options` for buildah.
take_pip_settings() {
    local name value links=
    echo "[global]" >"$scratch/pip.conf"
    for name in index-url extra-index-url trusted-host proxy default-timeout; do
        value=$(setting "$name")
        # an index in a folder is not there in the build
        [ -z "$value" ] || [[ $value == *file://* ]] || echo "$name = $value" >>"$scratch/pip.conf"
    done
    mkdir "$scratch/wheels"
    for value in $(setting find-links); do
        if [ -d "$value" ]; then cp "$value"/*.whl "$scratch/wheels/"; else links+=" $value"; fi
    done
    # /media is there, and empty, in any Debian: no trace of the mount stays in the image
    echo "find-links = /media$links" >>"$scratch/pip.conf"
    options=(--secret "id=pip,src=$scratch/pip.conf" --volume "$scratch/wheels:/media:ro")
    # a folder that has torch is where torch is to come from
    ! compgen -G "$scratch/wheels/torch-*.whl" >/dev/null || options+=(--build-arg TORCH_INDEX=)
    value=$(setting cert)
    [ -z "$value" ] || options+=(--volume "$value:/etc/ssl/certs/ca-certificates.crt:ro")
}

# Runs a command in the container as a user.
inside() {
    local user=$1
    shift
    storage run --user "$user" --volume "$PWD/jobs:/work/jobs:ro" "$container" -- "$@"
}

# What is installed, but not by a version of constraints.txt.
unpinned() {
    # one spelling of names; torch's build is the index's affair
    inside 1000 pip list --format=freeze | sed 's/+.*//; s/_/-/g' | tr '[:upper:]' '[:lower:]' \
        | grep -vE '^(dnformer|pip)==' | grep -vxFf <(sed 's/_/-/g' constraints.txt | tr '[:upper:]' '[:lower:]')
}

# What an image is for, in a new container by a user that is not root: `make demo`.
try_as() {
    local user=$1 kernels closed
    container=$(storage from "$image")
    echo "user $user: $(inside "$user" id)"
    inside "$user" python /opt/dnformer/health.py
    closed=$(inside "$user" find /tmp /work /cache -path /work/jobs -prune -o ! -writable -print)
    [ -z "$closed" ] || fail "user $user cannot write $closed"
    kernels=$(inside "$user" find /cache/numba -type f)
    inside "$user" dnformer ingest synthetic:sbm --nodes 10000 --out cache/demo
    inside "$user" dnformer train jobs/configs/demo.yaml --fresh
    [ "$kernels" = "$(inside "$user" find /cache/numba -type f)" ] || fail "the demo had to compile kernels"
    ! unpinned || fail "constraints.txt does not pin these"
    storage rm "$container" >/dev/null
    container=
}

[ "$(id -u)" = 0 ] || fail "run it as root: it makes a base image with debootstrap"
for tool in buildah debootstrap; do command -v "$tool" >/dev/null || fail "install $tool"; done
storage inspect --type image "$base" >/dev/null 2>&1 || make_base
take_pip_settings
SECONDS=0
# a layer for each step would be kept as a whole where the file system has no overlays; OCI's format knows no HEALTHCHECK
storage build --layers=false --force-rm --format docker --file docker/Dockerfile --target cpu --tag "$image" \
    --build-arg BASE_IMAGE="$base" --build-arg REVISION="$(git describe --always --dirty --abbrev=40)" \
    "${options[@]}" "$@" .
built_s=$SECONDS
own=$(storage inspect --type image --format '{{.Docker.Config.User}}' "$image")
[ "${own%%:*}" -gt 0 ] || fail "the image's user is root"
try_as "$own"
# an id that has no name in the image, as some clusters give
try_as 4321:4321
echo "built in $built_s s, $(storage images --format '{{.Size}}' "$image"): $image"
