"""What a linter would refuse in docker/, and what we promise of the images."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from docker.utils.build import exclude_paths

from .dockerfile import DOCKERFILE, ROOT, TARGETS, lineage, pip_commands, stages, texts, variables

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
KUBERAY = ROOT / "cluster" / "kuberay"
each_target = pytest.mark.parametrize("target", TARGETS)


def lint(file):
    hadolint = Path(sys.executable).with_name("hadolint")
    return subprocess.run([hadolint, file], capture_output=True, text=True, timeout=60)


def test_dockerfile_is_clean():
    done = lint(DOCKERFILE)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("good", "bad", "said"),
    [
        ("USER 1000:1000\n", "USER root\n", "DL3002"),
        (" --no-install-recommends", "", "DL3015"),
        (" --no-cache-dir", "", "DL3042"),
        ("# hadolint ignore=DL3008\n", "", "DL3008"),
        ('"${PYG_LIB_INDEX}" ', "${PYG_LIB_INDEX} ", "SC2070"),
        ("WORKDIR /work\n", "RUN cd /work\n", "DL3003"),
        ("WORKDIR /work\n", "WORKDIRS /work\n", "missing whitespace"),
    ],
    ids=["root", "recommends", "pip-cache", "unpinned", "unquoted", "cd", "misspelt"],
)
def test_planted_mistake_is_refused(tmp_path, good, bad, said):
    text = DOCKERFILE.read_text()
    assert good in text
    planted = tmp_path / "Dockerfile"
    planted.write_text(text.replace(good, bad))
    done = lint(planted)
    assert done.returncode != 0
    assert said in done.stdout + done.stderr


def test_make_lint_asks_hadolint():
    (commands,) = re.findall(r"^lint: .*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), re.M)
    assert "\t$(BIN)/hadolint docker/Dockerfile\n" in commands


@pytest.mark.parametrize("script", sorted(DOCKERFILE.parent.glob("*.sh")), ids=lambda s: s.name)
def test_script_is_clean(script):
    for command in (["bash", "-n"], [str(Path(sys.executable).with_name("shellcheck"))]):
        done = subprocess.run([*command, script], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stdout + done.stderr


@each_target
def test_image_runs_as_the_pods_user(target):
    template = yaml.safe_load((KUBERAY / "base" / "raycluster.yaml").read_text())["spec"][
        "headGroupSpec"
    ]["template"]["spec"]
    context = template["securityContext"]
    assert lineage(target)[-1] == ("USER", f"{context['runAsUser']}:{context['runAsGroup']}")
    pod = {entry["name"]: entry.get("value") for entry in template["containers"][0]["env"]}
    found = variables(target)
    for name in ("NUMBA_CACHE_DIR", "RAY_AUTH_MODE", "RAY_USAGE_STATS_ENABLED"):
        assert found[name] == f"{pod[name]}".strip('"'), name
    assert found["PATH"] == "/opt/dnformer/bin:${PATH}"


@each_target
def test_image_says_whether_it_is_well(target):
    (check,) = texts(lineage(target), "HEALTHCHECK")
    assert check.split("CMD ")[1] == '["python", "/opt/dnformer/health.py"]'
    assert "docker/health.py /opt/dnformer/health.py" in texts(lineage(target), "COPY")


@each_target
def test_image_says_what_it_is(target):
    (labels,) = texts(lineage(target), "LABEL")
    arguments = texts(lineage(target), "ARG")
    for label in ("version", "revision", "source", "licenses"):
        name = label.upper()
        assert f'org.opencontainers.image.{label}="${{{name}}}"' in labels
        assert [a for a in arguments if a.startswith(f"{name}=")]
    assert f"VERSION={PROJECT['version']}" in arguments


def test_all_name_one_version():
    tags = {"cpu": PROJECT["version"], "gpu": f"{PROJECT['version']}-gpu"}
    for target, tag in tags.items():
        command = f"docker build --file docker/Dockerfile --target {target} --tag dnformer:{tag} ."
        assert command in DOCKERFILE.read_text()
        for file in KUBERAY.glob(f"overlays/{target}/*/kustomization.yaml"):
            (image,) = yaml.safe_load(file.read_text())["images"]
            assert image["newTag"] == tag, file


def test_all_packages_have_the_versions_of_the_constraints():
    commands = list(pip_commands())
    assert len(commands) == 6
    loose = [c for c in commands if "--constraint constraints.txt" not in c]
    # the wheel of this checkout is made and installed, and PyG's page has one for each torch
    assert all("--no-deps" in c for c in loose)
    assert [c.split()[-1] for c in loose] == [".", "pyg-lib", "/mnt/dist/*.whl"]
    assert all("--no-index" in c for c in loose[1:])
    extras = [c.split()[-1] for c in commands if "'." in c]
    assert extras == ["'.[s3,gcs,mlflow]'"] * 2
    assert {"s3", "gcs", "mlflow"} <= PROJECT["optional-dependencies"].keys()


def test_all_stages_come_from_the_base_image():
    names: list[str] = []
    for name, stage in stages().items():
        assert stage[0].text.split()[0] in ("${BASE_IMAGE}", *names)
        names.append(name)


def test_no_secret_has_a_name_in_the_image():
    for stage in stages().values():
        for text in texts(stage, "ARG") + texts(stage, "ENV"):
            assert not re.search(r"(?i)token=|password|secret|_key", text), text
        for text in texts(stage, "RUN"):
            for secret in re.findall(r"--mount=type=secret,(\S+)", text):
                assert secret == "id=pip,target=/etc/pip.conf"


def sent(root):
    """The files of a checkout that a build sees."""
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    patterns = [line for line in lines if line and not line.startswith("#")]
    return {path for path in exclude_paths(root, patterns) if (Path(root) / path).is_file()}


def test_build_sees_no_more_than_it_needs(tmp_path):
    wanted = [
        ".dockerignore", "constraints.txt", "docker/finish.sh", "docker/health.py",
        "dnformer/cli.py", "dnformer/ops/cpu.py", "jobs/configs/demo.yaml", "pyproject.toml",
        "README.md",
    ]  # fmt: skip
    unwanted = [
        ".git/config", ".venv/bin/python", "runs/demo/config.json", "cache/demo/manifest.json",
        ".env", "dnformer/.env.local", "dnformer/tls.key", "dnformer/ca.pem", "token",
        "dnformer/ops/__pycache__/cpu.cpython-311.pyc", "dnformer.egg-info/PKG-INFO",
        "tests/test_cli.py", "cluster/README.md", "docker/Dockerfile", "jobs/configs/cora.yaml",
    ]  # fmt: skip
    for name in wanted + unwanted:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
    assert sent(tmp_path) == set(wanted)


def test_build_sees_all_that_it_copies():
    seen = sent(ROOT)
    copies = [text for stage in stages().values() for text in texts(stage, "COPY")]
    local = [name for text in copies if "--from" not in text for name in text.split()[:-1]]
    assert {"dnformer", "constraints.txt", "docker/health.py"} <= set(local)
    runs = [text for stage in stages().values() for text in texts(stage, "RUN")]
    script = (DOCKERFILE.parent / "finish.sh").read_text()
    bound = re.findall(r"/mnt/context/(\S+)", " ".join([*runs, script]))
    assert set(bound) == {"docker/finish.sh", "jobs/configs/demo.yaml"}
    for name in [*local, *bound]:
        assert [path for path in seen if path == name or path.startswith(f"{name}/")], name
