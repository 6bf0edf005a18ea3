"""Configless nodes: a copy of slurm.conf on a node is not planned on, and what Slurm does not send is named."""

from __future__ import annotations

from pathlib import Path

import pytest
from images import SLURM_CONF, make_plan, read_context, seen

from slurmwrap.errors import UsageError
from slurmwrap.install import install_workflow


@pytest.mark.parametrize("through_link", [True, False])
def test_the_copy_of_slurm_conf_on_a_configless_node_is_refused(image: Path, through_link: bool) -> None:
    cache = image / "var/spool/slurmd/conf-cache"
    cache.mkdir(parents=True)
    for folder in (cache, *cache.parents[:3]):
        folder.chmod(0o755)
    (cache / "slurm.conf").write_text(SLURM_CONF)
    (image / "run/slurm").mkdir(parents=True)
    (image / "run/slurm/conf").symlink_to("/var/spool/slurmd/conf-cache")
    before = seen(image)
    named = Path("/run/slurm/conf/slurm.conf" if through_link else "/var/spool/slurmd/conf-cache/slurm.conf")
    with pytest.raises(UsageError, match="is the copy that Slurm keeps on a configless node"):
        install_workflow.make(read_context(image), {}, "/shared/slurmwrap", named, "22.05")
    assert seen(image) == before


@pytest.mark.parametrize("configless", [True, False])
def test_an_included_file_that_configless_nodes_may_not_get_is_named(image: Path, configless: bool) -> None:
    if configless:
        conf = image / "etc/slurm/slurm.conf"
        conf.write_text("SlurmctldParameters=idle_on_node_suspend,enable_configless\n" + SLURM_CONF)
    _, plan = make_plan(image)
    named = [text for text in plan.remarks if text.startswith("/etc/slurm/more.conf: Slurm sends it to configless")]
    assert len(named) == configless and plan.conflicts == ()
