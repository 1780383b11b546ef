#!/usr/bin/env bash
# on_ray.sh COMMAND...    inside a Slurm job: Ray on all its nodes, and the command on the first, as their driver.
# Out of time or preempted, the command is told to stop, and the job goes back into the queue; it goes on from there.
set -euo pipefail

[ $# -ge 3 ] || { echo "usage: sbatch cluster/slurm/train.sbatch RUN.yaml [--set path=value ...]" >&2; exit 2; }
command -v dnformer >/dev/null || { echo "no dnformer on the PATH: activate its environment before sbatch" >&2; exit 2; }

# a folder that all nodes see, and nobody else
shared=$HOME/.cache/dnformer/slurm-$SLURM_JOB_ID
umask 077
mkdir -p "$shared"
trap 'rm -rf "$shared"' EXIT
token=$shared/token pid=$shared/driver
python -c 'import secrets; print(secrets.token_hex(32), end="")' >"$token"

hosts=$(scontrol show hostnames "$SLURM_JOB_NODELIST")
head=${hosts%%$'\n'*}
port=$((20000 + SLURM_JOB_ID % 10000))
export RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH=$token RAY_USAGE_STATS_ENABLED=0
# symmetric-run tells neither its own count of nodes nor the command of the Ray that it started
export RAY_ADDRESS=$head:$port
# nodes start at different times
export RAY_SYMMETRIC_RUN_CLUSTER_WAIT_TIMEOUT=300 RAY_py_gcs_connect_timeout_s=300
export NUMBA_CACHE_DIR=$HOME/.cache/dnformer/numba

stopped=
# shellcheck disable=SC2329  # the trap calls it
stop() {
    stopped=yes
    # it saves after its step, and ends with 143
    [ ! -s "$pid" ] || kill -TERM "$(cat "$pid")" || true
}
trap stop USR1 TERM

# the first node ends with its driver; the others would wait long for it, and are killed, whatever srun says of that
# shellcheck disable=SC2016  # the inner shell's own
srun --wait=15 --kill-on-bad-exit=1 ray symmetric-run --address "$RAY_ADDRESS" --min-nodes "$SLURM_JOB_NUM_NODES" \
    --num-cpus "$SLURM_CPUS_PER_TASK" --temp-dir "/tmp/ray-$SLURM_JOB_ID" --metrics-export-port 8080 -- \
    bash -c 'code=$1 pid=$2; shift 2; "$@" & echo $! >"$pid"; wait $!; echo $? >"$code"; exit "$(cat "$code")"' \
    driver "$shared/code" "$pid" "$@" &
step=$!
code=0
# a signal ends `wait`, not the step
while kill -0 "$step" 2>/dev/null; do
    code=0
    wait "$step" || code=$?
done
[ ! -s "$shared/code" ] || code=$(cat "$shared/code")

if [ -n "$stopped" ] && [ "$code" -ne 0 ]; then
    scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
