"""Why a job failed: observations, evidence, taxonomy, signatures, classifier. Pure."""
