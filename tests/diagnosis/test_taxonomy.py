"""The taxonomy: 30 categories and success, as documented."""

from __future__ import annotations

from slurmwrap.diagnosis.taxonomy import CATEGORIES, DECISIONS, DOMAINS, FAILURES, TITLES, list_decisions

CONTRACT = {
    "syntax_error": ("U", "stop"),
    "import_error": ("U", "stop"),
    "cannot_load_libs": ("AE", "stop"),
    "semantic_error": ("U", "stop"),
    "incorrect_inputs": ("U", "blacklist_input"),
    "permission_error": ("U", "stop"),
    "traceback_from_crash": ("U", "stop"),
    "gpu_oom": ("U", "stop"),
    "cpu_oom": ("U", "resize"),
    "model_diverged": ("U", "stop"),
    "checkpoint_error": ("U", "retry"),
    "storage_full": ("IF", "stop"),
    "core_dump": ("AE", "stop"),
    "invalid_memory_access": ("AE", "stop"),
    "cuda_failure": ("AE", "stop"),
    "cuda_init_failed": ("AE", "retry_elsewhere"),
    "cuda_version_mismatch": ("AE", "stop"),
    "mpi_error": ("AE", "stop"),
    "mpi_runtime_failure": ("AE", "retry"),
    "nccl_error": ("AE", "retry"),
    "address_in_use": ("AE", "retry"),
    "gpu_ecc_error": ("IF", "retry_elsewhere"),
    "gpu_hardware": ("IF", "retry_elsewhere"),
    "node_failure": ("IF", "retry_elsewhere"),
    "storage_io": ("IF", "retry"),
    "network_error": ("IF", "retry"),
    "job_preempted": ("RS", "retry"),
    "time_limit": ("RS", "resize"),
    "cancelled": ("RS", "none"),
    "no_signature": ("", "retry"),
}


def test_categories_have_the_documented_domain_and_default_decision() -> None:
    found = {name: (known.domain, known.decision) for name, known in CATEGORIES.items() if name in FAILURES}
    assert found == CONTRACT
    assert len(FAILURES) == 30
    assert set(CATEGORIES) - set(FAILURES) == {"success", "completed_with_error"}
    assert {TITLES[name] for name in FAILURES if name != "cancelled"}.isdisjoint(CATEGORIES)


def test_every_category_has_a_known_domain_known_decisions_and_advice() -> None:
    for known in CATEGORIES.values():
        assert known.domain in ("", *DOMAINS)
        assert set(list_decisions(known.id)) <= set(DECISIONS)
        assert known.meaning
        assert known.advice or known.id == "success"


def test_allowed_decisions_begin_with_the_default_decision() -> None:
    assert list_decisions("storage_full") == ("stop", "retry_elsewhere")
    assert list_decisions("checkpoint_error") == ("retry", "stop")
    assert list_decisions("gpu_oom") == ("stop",)
