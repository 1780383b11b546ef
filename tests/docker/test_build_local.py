"""docker/build-local.sh with stand-ins for buildah, debootstrap, pip and root."""

import os
import shutil
import subprocess

import pytest

from .dockerfile import ROOT

# it keeps its arguments, and the configuration and folder that it is to hand to pip
BUILDAH = """
shift 4
echo "$*" >>"$CALLS"
for argument in "$@"; do
    case $argument in
    id=pip,src=*) cat "${argument#id=pip,src=}" >>"$CALLS.pip" ;;
    *:/media:ro) ls "${argument%:/media:ro}" >>"$CALLS" ;;
    esac
done
case $1 in
from) echo container ;;
inspect) [ "$#" -eq 4 ] || echo "$IMAGE_USER" ;;
images) echo 2 GB ;;
run)
    case $* in
    *"pip list"*) printf '%s\\n' dnformer==0.1.0 $INSTALLED ;;
    *"! -writable"*) echo $CLOSED ;;
    esac
    ;;
esac
"""
PIP = "for line in $PIP_SAYS; do echo \"$line\" | tr , ' '; done\n"
COMMANDS = [
    "bash", "cat", "cp", "dirname", "grep", "head", "ls", "mkdir", "mktemp", "rm", "sed", "sort",
    "tail", "tr",
]  # fmt: skip


@pytest.fixture
def build(tmp_path):
    """Runs the script in a checkout of its own; what was called is in `calls`."""
    checkout, tools = tmp_path / "checkout", tmp_path / "bin"
    (checkout / "docker").mkdir(parents=True)
    for name in ("docker/build-local.sh", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, checkout / name)
    tools.mkdir()

    def start(
        *arguments, missing=(), user="1000:1000", installed="", closed="", pip_says="", uid=0
    ):
        said = {"buildah": BUILDAH, "debootstrap": "", "git": "echo 0123\n", "python3": PIP}
        said["id"] = f"echo {uid}\n"
        for name in COMMANDS:
            (tools / name).symlink_to(shutil.which(name))
        for name in said.keys() - set(missing):
            (tools / name).write_text(f"#!/bin/bash\n{said[name]}")
            (tools / name).chmod(0o755)
        own = {"CALLS": tmp_path / "calls", "IMAGE_USER": user}
        own |= {"INSTALLED": installed, "CLOSED": closed, "PIP_SAYS": pip_says}
        own |= {"TMPDIR": tmp_path, "PATH": tools}
        return subprocess.run(
            [tools / "bash", checkout / "docker" / "build-local.sh", *arguments],
            env=os.environ | {name: str(value) for name, value in own.items()},
            capture_output=True, text=True, timeout=60,
        )  # fmt: skip

    return start


def test_image_is_built_and_tried_by_two_ids(build, tmp_path):
    done = build("--build-arg", "LICENSES=MIT")
    assert done.returncode == 0, done.stderr
    calls = (tmp_path / "calls").read_text().splitlines()
    (built,) = [call for call in calls if call.startswith("build ")]
    assert "--target cpu --tag localhost/dnformer:" in built
    assert "--build-arg REVISION=0123" in built
    assert built.endswith("--build-arg LICENSES=MIT .")
    for user in ("1000:1000", "4321:4321"):
        own = [call.split(" -- ")[1] for call in calls if call.startswith(f"run --user {user} ")]
        assert "python /opt/dnformer/health.py" in own
        assert "dnformer ingest synthetic:sbm --nodes 10000 --out cache/demo" in own
        assert "dnformer train jobs/configs/demo.yaml --fresh" in own
    assert calls.count("rm container") == 2


def test_settings_of_pip_reach_the_build_and_nothing_else(build, tmp_path):
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    (wheels / "torch-2.13.0-cp311-cp311-linux_x86_64.whl").touch()
    says = (
        "global.index-url='https://user:secret@pip.example.com/simple' "
        "global.find-links='/nowhere' global.extra-index-url='file:///srv/simple' "
        f":env:.find-links='{wheels},https://pip.example.com/page' :env:.cert='/etc/own.pem'"
    )
    done = build(pip_says=says)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "calls.pip").read_text().splitlines() == [
        "[global]",
        "index-url = https://user:secret@pip.example.com/simple",
        "find-links = /media https://pip.example.com/page",
    ]
    calls = (tmp_path / "calls").read_text()
    assert "\ntorch-2.13.0-cp311-cp311-linux_x86_64.whl\n" in calls
    # torch is in the folder; the certificates are the build's
    assert "--build-arg TORCH_INDEX= " in calls
    assert "--volume /etc/own.pem:/etc/ssl/certs/ca-certificates.crt:ro" in calls
    assert "secret@" not in calls + done.stdout + done.stderr
    kept = {path for path in tmp_path.rglob("*") if path.is_file() and not path.is_symlink()}
    assert [path.name for path in kept if "secret@" in path.read_text()] == ["calls.pip"]


def test_torch_comes_from_the_index_where_no_folder_has_it(build, tmp_path):
    assert build().returncode == 0
    assert "TORCH_INDEX" not in (tmp_path / "calls").read_text()


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"uid": 1000}, "run it as root"),
        ({"missing": ["buildah"]}, "install buildah"),
        ({"missing": ["debootstrap"]}, "install debootstrap"),
        ({"user": "0:0"}, "the image's user is root"),
        ({"closed": "/tmp/of-root"}, "user 1000:1000 cannot write /tmp/of-root"),
        ({"installed": "unheard-of==1.0"}, "constraints.txt does not pin these"),
    ],
    ids=["user", "buildah", "debootstrap", "root-image", "closed", "unpinned"],
)
def test_what_is_wrong_is_named(build, wrong, said):
    done = build(**wrong)
    assert done.returncode == 1
    assert said in done.stderr.splitlines()[-1]


def test_versions_are_compared_in_one_spelling(build):
    done = build(installed="PyYAML==6.0.4 torch==2.13.0+cpu typing_extensions==4.16.0")
    assert done.returncode == 0, done.stdout + done.stderr
