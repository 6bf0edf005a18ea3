"""Read what NVIDIA's dcgmi prints: `dcgmi diag -r 1 -j` of DCGM 3 and 4, and `dcgmi health -c`. Pure.

DCGM 3 has {"DCGM GPU Diagnostic": {"test_categories": [{"tests": [{"name", "results": [{"gpu_ids", "status"}]}]}]}}, with
warnings as texts. DCGM 4 names the object "DCGM Diagnostic", has "entity_group" and "entity_id" in place of "gpu_ids", and
warnings as objects with a severity. Lines of text may come before the JSON, and a test may be null.
"""
import json
import re

# DCGM_ERROR_CONFIG (dcgm_errors.h): a setting of the host, as persistence mode that is off. No fault of a GPU.
CONFIG = 5
FAILED = ("fail", "failed", "error")


def find_failures(text):
    """Return ([failure], [setting of the host that DCGM would change]). Raise ValueError if `text` is no diagnosis."""
    start = text.find("{")
    if start < 0:
        raise ValueError("dcgmi printed no diagnosis: %s" % _last_line(text))
    report, _ = json.JSONDecoder().raw_decode(text, start)
    body = report.get("DCGM Diagnostic") or report.get("DCGM GPU Diagnostic") if isinstance(report, dict) else None
    if not isinstance(body, dict) or not isinstance(body.get("test_categories"), list):
        said = body.get("runtime_error") if isinstance(body, dict) else ""
        raise ValueError("dcgmi printed no results%s" % (": %s" % said if said else ""))
    failures, settings, results = [], [], 0
    for test in _objects(part for category in _objects(body["test_categories"]) for part in category.get("tests") or ()):
        for result in _objects(test.get("results") or ()):
            results += 1
            if str(result.get("status", "")).lower() in FAILED:
                warnings = result.get("warnings") or []
                wanted = settings if _is_setting(warnings) else failures
                wanted.append(_describe(test, result, warnings))
    if not results:
        raise ValueError("dcgmi printed no results")
    return failures, settings


def _objects(found):
    return [one for one in found if isinstance(one, dict)]


def _is_setting(warnings):
    """Return whether all warnings are about settings. Those of DCGM 3 have no severity, and count as faults."""
    return bool(warnings) and all(isinstance(one, dict) and one.get("error_severity") == CONFIG for one in warnings)


def _describe(test, result, warnings):
    texts = [str(one.get("warning", "")) if isinstance(one, dict) else str(one) for one in warnings]
    gpu = result.get("entity_id", result.get("gpu_ids", ""))
    return "%s, GPU %s: %s" % (test.get("name"), gpu, "; ".join(texts) or "failed")


def find_health(text):
    """Return DCGM's overall health, "healthy", "warning" or "failure"; "" if no watches are set, so it knows nothing."""
    found = re.search(r"Overall Health\W+(Healthy|Warning|Failure)\b", text, re.IGNORECASE)
    return found.group(1).lower() if found else ""


def find_health_faults(text):
    """Return the lines of the report that name a failure, without the frame of the table."""
    lines = [re.sub(r"\s*\|\s*", " ", line).strip() for line in text.splitlines() if "Failure" in line]
    return [line for line in lines if not line.startswith("Overall Health")]


def _last_line(text):
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:200] if lines else "nothing"
